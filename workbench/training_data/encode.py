"""An example as the model will see it: its tokens, and which of them are learned.

`workbench data` shows what this gives, and the recipe finetune.py trains on it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from workbench.errors import HostError, UsageError
from workbench.training_data.templates import template_of
from workbench.training_data.values import Example, RowError, Turn

_HUB_SECONDS = 5.0
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedExample:
    """One example in tokens."""

    ids: tuple[int, ...]
    """Tokens."""
    learned: tuple[bool, ...]
    """Of each token whether it counts in the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A preference as DPO takes it: rendered texts."""

    prompt: str
    """What both answers begin from."""
    chosen: str
    """The better answer, with its end mark."""
    rejected: str
    """The worse one."""


def load_tokenizer(model: str | Path) -> Any:
    """The tokenizer of a model's folder or hub name.

    Raises:
        UsageError: there is none that can be loaded.
        HostError: transformers is not installed.
    """
    folder = Path(model).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} has no config.json: it is not a Hugging Face model's folder. Give the "
            "folder that save_pretrained or `hf download` wrote."
        )
    if not folder.is_dir() and _is_path(str(model)):  # else the hub is asked for a minute
        raise UsageError(_no_folder(str(model)))
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise HostError("A tokenizer needs transformers: pip install transformers") from error
    given = str(folder) if folder.is_dir() else str(model)
    try:
        here = folder.is_dir() or not _hub_answers()
        tokenizer = library.AutoTokenizer.from_pretrained(given, local_files_only=here)
    except Exception as error:
        raise UsageError(_why_no_tokenizer(folder, str(model), error)) from error
    _check_vocabulary(tokenizer, folder)
    return tokenizer


def _is_path(model: str) -> bool:
    """Whether it cannot be a hub name."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def _hub_answers() -> bool:
    """Whether the hub can be reached; transformers alone would try for a minute."""
    if urllib.request.getproxies():
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname or "", port), timeout=_HUB_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _no_folder(model: str) -> str:
    return f"No folder {model}. Give a Hugging Face model's folder, or a hub name OWNER/NAME."


def _why_no_tokenizer(folder: Path, model: str, error: Exception) -> str:
    if folder.is_dir():
        return (
            f"The tokenizer in {folder} cannot be loaded ({str(error).splitlines()[0][:120]}). The "
            "folder needs tokenizer.json and tokenizer_config.json beside config.json."
        )
    if model.count("/") != 1:
        return _no_folder(model)
    return (
        f"The model {model} is neither a folder here nor reachable on the hub: without a network "
        "give a folder; a gated model needs its licence accepted on its page and `hf auth login`."
    )


def _check_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Refuse a tokenizer with tokens that the model has no embedding for."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8-sig"))
    except (OSError, ValueError):
        return
    size: Any = config.get(
        "vocab_size", config.get("text_config", dict[str, Any]()).get("vocab_size")
    )
    if isinstance(size, int) and len(tokenizer) > size:
        raise UsageError(
            f"The tokenizer has {len(tokenizer):,} tokens, and the model in {folder} embeds "
            f"{size:,}. Use the tokenizer of this model, or resize its embedding first."
        )


@final
class Encoder:
    """Turns examples into tokens, with one template for all."""

    def __init__(
        self, tokenizer: Any, form: str, template: str | None = None, *, learn_all: bool = False
    ) -> None:
        """A template's name; None = the tokenizer's own. With `learn_all` prompts are learned too.

        Raises:
            UsageError: the tokenizer has no template, and this form needs one.
        """
        self.tokenizer, self.form, self._learn_all = tokenizer, form, learn_all
        self._template, self.template_name = "", "none: raw text"
        if form != "text":
            self._template, self.template_name = template_of(tokenizer, template, form)
        self.notes = tuple(self._notes(template))

    def _notes(self, template: str | None) -> list[str]:
        notes: list[str] = []
        tokenizer = self.tokenizer
        if tokenizer.eos_token_id is None:
            notes.append(
                "The tokenizer has no end-of-sequence token: the model cannot learn to stop. Add "
                "eos_token to tokenizer_config.json."
            )
        if tokenizer.pad_token_id is None:
            stands = (
                "the end-of-sequence token" if tokenizer.eos_token_id is not None else "token 0"
            )
            notes.append(
                f"The tokenizer has no padding token: {stands} pads, unseen and not learned."
            )
        if self.form == "text" and template:
            notes.append(f"Raw text has no turns: --template {template} changes nothing.")
        marks = set(re.findall(r"<\|\w+\|>", self._template))
        if unknown := sorted(marks - tokenizer.get_vocab().keys()):
            notes.append(
                f"The tokenizer does not know {', '.join(unknown)}: the template's marks are "
                "spelled with several tokens each, which works and costs length."
            )
        return notes

    def encode(self, example: Example) -> EncodedExample:
        """Tokens, and which are learned: answers with their end mark; of raw text all.

        Raises:
            RowError: the template refuses this conversation or loses a part of it.
        """
        if not example.turns:
            ids = list(self.tokenizer(example.text)["input_ids"])
            end = self.tokenizer.eos_token_id
            ids += [end] * (end is not None and ids[-1:] != [end])
            return EncodedExample(ids=tuple(ids), learned=(True,) * len(ids))
        if _GENERATION.search(self._template) and not self._learn_all:
            return self._marked(example.turns)
        text = self._render(example.turns)
        spans = [(0, len(text))] if self._learn_all else self._answers(example.turns, text)
        return self._tokens(text, spans)

    def prompt(self, text: str) -> list[int]:
        """Tokens of what the user says, up to where the answer begins; of raw text, its own.

        Raises:
            RowError: the template refuses it.
        """
        if self.form == "text":
            ids: list[int] = self.tokenizer(text)["input_ids"]
            end = self.tokenizer.eos_token_id
            return ids[:-1] if len(ids) > 1 and ids[-1] == end else ids
        prompt = self._render([Turn(role="user", content=text)], answer_follows=True)
        return self.tokenizer(prompt, add_special_tokens=False)["input_ids"]

    def pair(self, example: Example) -> Pair:
        """A preference as texts.

        Raises:
            RowError: the template refuses it or writes the prompt differently before the answers.
        """
        turns = example.turns[: example.prompt_turns]
        prompt = self._render(turns, answer_follows=True)
        chosen = self._render(example.turns)
        rejected = self._render((*turns, *example.rejected))
        if not (chosen.startswith(prompt) and rejected.startswith(prompt)):
            raise RowError("the template writes the prompt differently once an answer follows")
        return Pair(prompt=prompt, chosen=chosen[len(prompt) :], rejected=rejected[len(prompt) :])

    def shown(self, encoded: EncodedExample) -> list[tuple[str, bool]]:
        """The tokens' text in stretches, each with whether it is learned."""
        both = zip(encoded.ids, encoded.learned, strict=True)
        return [
            (
                self.tokenizer.decode([token for token, _ in part], skip_special_tokens=False),
                learned,
            )
            for learned, part in groupby(both, key=lambda pair: pair[1])
        ]

    def _render(self, turns: Sequence[Turn], *, answer_follows: bool = False) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                [turn.message() for turn in turns],
                chat_template=self._template,
                add_generation_prompt=answer_follows,
                tokenize=False,
            )
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RowError(f"the template refuses it: {reason}") from error

    def _marked(self, turns: Sequence[Turn]) -> EncodedExample:
        """By the template's own marks of what the assistant generates."""
        try:
            encoded = self.tokenizer.apply_chat_template(
                [turn.message() for turn in turns],
                chat_template=self._template,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RowError(f"the template refuses it: {reason}") from error
        learned = tuple(map(bool, encoded["assistant_masks"]))
        return EncodedExample(ids=tuple(encoded["input_ids"]), learned=learned)

    def _answers(self, turns: Sequence[Turn], text: str) -> list[tuple[int, int]]:
        """Where in the text the assistant's answers stand, their end marks included."""
        spans, at = list[tuple[int, int]](), 0
        for number, turn in enumerate(turns):
            content = turn.content.strip()
            if turn.role != "assistant":
                place = text.find(content, at)
                at = place + len(content) if place >= 0 else at  # a tool's may be written as JSON
                continue
            before = self._render(turns[:number], answer_follows=True)
            through = self._render(turns[: number + 1])
            begin = len(before) if text.startswith(before) else text.find(content, at)
            if text.startswith(before) and before == self._render(turns[:number]):
                # The template has no prompt for an answer. A space goes with the token behind it.
                begin = text.find(content, begin)
                begin -= text[begin - 1 : begin] == " "
            if begin < 0 or text.find(content, begin) < 0:
                raise RowError(f"the template drops or changes message {number + 1}")
            if text.startswith(through):
                end = len(through.rstrip("\n")) if number + 1 < len(turns) else len(text)
            else:
                end = self._end(text, text.find(content, begin) + len(content))
            end = len(text[:end].rstrip("\n")) if not text[:end].endswith(content) else end
            spans.append((begin, end))
            at = end
        return spans

    def _end(self, text: str, at: int) -> int:
        """Behind the end mark that follows an answer, where one follows."""
        marks = [token for token in self.tokenizer.all_special_tokens if text.startswith(token, at)]
        return at + max(map(len, marks), default=0)

    def _tokens(self, text: str, spans: Sequence[tuple[int, int]]) -> EncodedExample:
        """The whole text in tokens; learned are those that begin inside a span."""
        if not self.tokenizer.is_fast:
            return self._pieces(text, spans)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        learned = [
            any(begin <= at < end for begin, end in spans) for at, _ in encoded["offset_mapping"]
        ]
        return EncodedExample(ids=tuple(encoded["input_ids"]), learned=tuple(learned))

    def _pieces(self, text: str, spans: Sequence[tuple[int, int]]) -> EncodedExample:
        """Without offsets: stretch by stretch."""
        edges = sorted({0, len(text), *(edge for span in spans for edge in span)})
        ids, learned = list[int](), list[bool]()
        for begin, end in pairwise(edges):
            part = self.tokenizer(text[begin:end], add_special_tokens=False)["input_ids"]
            ids += part
            learned += [any(one <= begin < other for one, other in spans)] * len(part)
        return EncodedExample(ids=tuple(ids), learned=tuple(learned))

"""An example as the model will see it: its tokens, and which of them are learned.

`workbench data` shows what this gives, and the recipe finetune.py trains on it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, final

from workbench.training_data.answers import Render, answer_spans
from workbench.training_data.templates import template_of
from workbench.training_data.tokenizer import embedded_tokens
from workbench.training_data.values import Example, RowError, Turn

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedExample:
    """One example in tokens."""

    ids: tuple[int, ...]
    """Tokens."""
    learned: tuple[bool, ...]
    """Of each token whether it counts in the loss."""

    def learned_from(self, begin: int) -> EncodedExample:
        """The same tokens, of which all from this place on count."""
        counts = (at >= begin for at in range(len(self.ids)))
        return EncodedExample(ids=self.ids, learned=tuple(counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A preference as DPO takes it: one prompt with two answers, of which the answers count."""

    chosen: EncodedExample
    """The prompt and the better answer, up to its end mark."""
    rejected: EncodedExample
    """The prompt and the worse one."""


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
        self._embedded = embedded_tokens(tokenizer.name_or_path)
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
            RowError: the template refuses this conversation or loses a part of it, or the model
                does not know one of its tokens.
        """
        encoded = self._known(self._encode(example))
        if not any(encoded.learned):
            raise RowError("no token of it belongs to an answer: nothing to learn from")
        return encoded

    def _known(self, encoded: EncodedExample) -> EncodedExample:
        """The same, if the model embeds each token."""
        highest = max(encoded.ids, default=0)
        if self._embedded is not None and highest >= self._embedded:
            token = self.tokenizer.convert_ids_to_tokens(highest)
            raise RowError(f"the model has no embedding for its token {token!r}")
        return encoded

    def _encode(self, example: Example) -> EncodedExample:
        if not example.turns:
            ids = list(self.tokenizer(example.text)["input_ids"])
            end = self.tokenizer.eos_token_id
            ids += [end] * (end is not None and ids[-1:] != [end])
            return EncodedExample(ids=tuple(ids), learned=(True,) * len(ids))
        render = functools.partial(self._render, example.tools)
        self._check_calls(example, render)
        left_out = {place for place, turn in enumerate(example.turns) if not turn.learned}
        marked = bool(_GENERATION.search(self._template)) and not self._learn_all
        if marked and not left_out:
            return self._marked(example)
        text = render(example.turns)
        if self._learn_all and not left_out:
            return self._tokens(text, [(0, len(text))])
        marks = [*self.tokenizer.all_special_tokens, *self.tokenizer.get_added_vocab()]
        spans = answer_spans(example.turns, text, render, marks)
        if not marked and not self._learn_all:
            return self._tokens(text, [spans[place] for place in spans.keys() - left_out])
        but = self._tokens(text, [spans[place] for place in left_out & spans.keys()]).learned
        full = self._marked(example) if marked else self._tokens(text, [(0, len(text))])
        both = zip(full.learned, but, strict=True)
        return EncodedExample(ids=full.ids, learned=tuple(a and not b for a, b in both))

    def unused(self, example: Example) -> tuple[str, ...]:
        """What the example holds and the template does not show, in words."""
        keys = {key for turn in (*example.turns, *example.rejected) for key in turn.extra or {}}
        named = {f"key {key!r} of messages": key for key in sorted(keys)}
        named |= {"column 'tools'": "tools"} if example.tools else {}
        return tuple(
            f"{words}, which the template does not show"
            for words, key in named.items()
            if not self._reads(key)
        )

    def prompt(self, text: str) -> list[int]:
        """Tokens of what the user says, up to where the answer begins; of raw text, its own.

        Raises:
            RowError: the template refuses it.
        """
        if self.form == "text":
            ids: list[int] = self.tokenizer(text)["input_ids"]
            end = self.tokenizer.eos_token_id
            return ids[:-1] if len(ids) > 1 and ids[-1] == end else ids
        prompt = self._render((), [Turn(role="user", content=text)], answer_follows=True)
        return self.tokenizer(prompt, add_special_tokens=False)["input_ids"]

    def pair(self, example: Example) -> Pair:
        """A preference in tokens.

        Raises:
            RowError: the template refuses it or writes the prompt differently before the answers.
        """
        turns = example.turns[: example.prompt_turns]
        render = functools.partial(self._render, example.tools)
        self._check_calls(example, render)
        prompt = render(turns, answer_follows=True)
        both = [example.turns, (*turns, *example.rejected)]
        chosen, rejected = (self._preferred(prompt, render(all_turns)) for all_turns in both)
        # A token may hold the prompt's last letters and the answer's first ones.
        pairs = enumerate(zip(chosen.ids, rejected.ids, strict=False))
        same = next((at for at, (left, right) in pairs if left != right), len(chosen.ids))
        begin = min(same, chosen.learned.index(True), rejected.learned.index(True))
        return Pair(chosen=chosen.learned_from(begin), rejected=rejected.learned_from(begin))

    def _preferred(self, prompt: str, text: str) -> EncodedExample:
        """A whole text in tokens, of which what follows the prompt is learned, up to its end."""
        if not text.startswith(prompt):
            raise RowError("the template writes the prompt differently once an answer follows")
        end = len(text.rstrip("\n"))
        encoded = self._tokens(text, [(len(prompt), end)])
        if True not in encoded.learned:
            raise RowError("the template writes nothing behind the prompt")
        ends = len(encoded.ids) - encoded.learned[::-1].index(True)
        known = self._known(encoded)
        return EncodedExample(ids=known.ids[:ends], learned=known.learned[:ends])

    def sequences(self, example: Example) -> tuple[EncodedExample, ...]:
        """What the model computes of an example: of a pair the prompt with each of its answers.

        Raises:
            RowError: the template refuses it or loses a part of it.
        """
        if not example.rejected:
            return (self.encode(example),)
        pair = self.pair(example)
        return pair.chosen, pair.rejected

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

    def _reads(self, key: str) -> bool:
        """Whether the template names a key of a message; else it cannot show it."""
        return re.search(rf"\b{key}\b", self._template) is not None

    def _check_calls(self, example: Example, render: Render) -> None:
        """Refuse a call that the model would not see: what it learned instead is to say nothing.

        Some templates show calls, but not of a message that has a text, too.
        """
        both = [example.turns, (*example.turns[: example.prompt_turns], *example.rejected)]
        for turns in both[: 1 + bool(example.rejected)]:
            calling = [place for place, turn in enumerate(turns) if turn.calls]
            if calling and not self._reads("tool_calls"):
                raise RowError("the template does not show tool calls; choose one that does")
            text = render(turns) if calling else ""
            for place in calling:
                others = [*turns[:place], turns[place].with_other_calls(), *turns[place + 1 :]]
                if render(others) == text:
                    raise RowError(
                        f"the template does not show the tool calls of message {place + 1}"
                    )

    def _messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        """As the template takes them: a few want the arguments of calls as JSON text."""
        as_text = any(turn.calls for turn in turns) and self._arguments_as_text
        return [turn.message(arguments_as_text=as_text) for turn in turns]

    @functools.cached_property
    def _arguments_as_text(self) -> bool:
        """Whether the template fails at arguments that are an object, or writes no JSON of them."""
        call = {"type": "function", "function": {"name": "f", "arguments": {"probed": "value"}}}
        question = Turn(role="user", content="Call f.")
        calling = Turn(role="assistant", content="", extra={"tool_calls": [call]})

        def is_json(*, as_text: bool) -> bool:
            messages = [turn.message(arguments_as_text=as_text) for turn in (question, calling)]
            try:
                return '"probed"' in self._rendered((), messages)
            except RowError:
                return False

        return not is_json(as_text=False) and is_json(as_text=True)

    def _render(
        self,
        tools: Sequence[Mapping[str, Any]],
        turns: Sequence[Turn],
        *,
        answer_follows: bool = False,
    ) -> str:
        return self._rendered(tools, self._messages(turns), answer_follows=answer_follows)

    def _rendered(
        self,
        tools: Sequence[Mapping[str, Any]],
        messages: list[dict[str, Any]],
        *,
        answer_follows: bool = False,
    ) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=list(tools) or None,
                chat_template=self._template,
                add_generation_prompt=answer_follows,
                tokenize=False,
            )
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RowError(f"the template refuses it: {reason}") from error

    def _marked(self, example: Example) -> EncodedExample:
        """By the template's own marks of what the assistant generates."""
        try:
            encoded = self.tokenizer.apply_chat_template(
                self._messages(example.turns),
                tools=list(example.tools) or None,
                chat_template=self._template,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RowError(f"the template refuses it: {reason}") from error
        learned = tuple(map(bool, encoded["assistant_masks"]))
        return EncodedExample(ids=tuple(encoded["input_ids"]), learned=learned)

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
            learned += [any(start <= begin < stop for start, stop in spans)] * len(part)
        return EncodedExample(ids=tuple(ids), learned=tuple(learned))

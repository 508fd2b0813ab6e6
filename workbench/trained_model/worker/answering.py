"""Answers of a trained model, token by token: the recipe's of bytes, or of transformers."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import abc
import codecs
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.trained_model.worker.names import matched
from workbench.trained_model.worker.recipe_files import recipe_module
from workbench.trained_model.worker.tensors import open_tensors

Say = Callable[[dict[str, Any]], None]
_loaded: dict[str, Answerer] = {}  # the one model of this process


class Answerer(abc.ABC):
    """A model on its device."""

    note = ""
    """Why the latest answer is shorter than it was asked for; "" = it is not."""

    @abc.abstractmethod
    def answer(
        self, request: Mapping[str, Any], which: str, stopped: threading.Event
    ) -> Iterator[str]:
        """Text as it comes; of ``trained``, or of its ``base``."""

    @abc.abstractmethod
    def has_base(self) -> bool:
        """Whether its base is at hand."""


def answer(request: Mapping[str, Any], stopped: threading.Event, say: Say) -> None:
    """Load the model at the first request, then answer a prompt: once per asked side."""
    key = json.dumps(request["model"], sort_keys=True)
    if key not in _loaded:
        say({"loading": True})
        _loaded.clear()
        _loaded[key] = _load(request["model"])
    speaker = _loaded[key]
    say({"loaded": True, "has_base": speaker.has_base()})
    if request["prompt"] is None:
        say({"end": True})
        return
    sides = [side for side in request["sides"] if side != "base" or speaker.has_base()]
    for which in sides:
        began, tokens = time.monotonic(), 0
        for text in speaker.answer(request, which, stopped):
            tokens += 1
            say({"side": which, "text": text})
            if stopped.is_set():
                break
        seconds = time.monotonic() - began
        ended = {"tokens": tokens, "seconds": seconds, "stopped": stopped.is_set()}
        say({"side": which, **ended, "note": speaker.note})
    say({"end": True})


def _load(request: Mapping[str, Any]) -> Answerer:
    if request["family"] == "gpt":
        return _Bytes(request)
    if request["family"] == "tensors":
        raise UsageError(
            f"{Path(request['checkpoint']).name} holds weights of an unknown class, so it cannot "
            "answer. For a Hugging Face model, name a folder with its config.json with --base."
        )
    return _Transformer(request)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def next_token(logits: Tensor, request: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    """One token of logits [V]: the likeliest at temperature 0, else drawn from the top k."""
    if request["temperature"] <= 0:
        return logits.argmax()
    logits = logits.float() / request["temperature"]
    if request["top_k"]:
        least = logits.topk(min(request["top_k"], logits.numel())).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[0]


def positions(model: Any) -> int | None:
    """Longest sequence that a model of transformers takes; None = it does not say.

    Where positions are learned, one beyond the last is an error, on a GPU of the whole process.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            before = 0 if module.padding_idx is None else module.padding_idx + 1  # as in RoBERTa
            return module.num_embeddings - before
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


class _Bytes(Answerer):
    """The recipe gpt."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        place = Path(request["checkpoint"])
        options = json.loads((place / "options.json").read_bytes())["options"]
        shape = {key: int(options[key]) for key in ("layers", "hidden", "heads")}
        self._model = recipe_module("gpt_model").GPT(**shape)
        tensors, state = open_tensors(place), self._model.state_dict()
        names = matched(tensors, {name: tuple(value.shape) for name, value in state.items()}, {})
        read = tensors.read(names.values())
        self._model.load_state_dict({new: read[old] for new, old in names.items()})
        self._device, self._longest = _device(), int(options.get("seq_len") or 128)
        self._model.to(self._device).eval()

    def has_base(self) -> bool:
        """It begins with random numbers."""
        return False

    def answer(
        self,
        request: Mapping[str, Any],
        which: str,  # noqa: ARG002 - it has no base
        stopped: threading.Event,
    ) -> Iterator[str]:
        """Byte by byte; what is no whole letter yet waits."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        generator = torch.Generator(self._device).manual_seed(request["seed"])
        context = list(request["prompt"].encode()) or [10]
        for _ in range(request["max_tokens"]):
            if stopped.is_set():
                return
            window = torch.tensor([context[-self._longest :]], device=self._device)
            with torch.no_grad():
                logits = self._model(window)[0, -1]
            byte = int(next_token(logits, request, generator))
            context.append(byte)
            yield decoder.decode(bytes([byte]))


class _Transformer(Answerer):
    """A language model of transformers, with an adapter or without."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        from workbench.trained_model.worker import adapters, huggingface  # noqa: PLC0415 - seconds

        self._adapter = bool(request["adapter"])
        model = adapters.adapted(request)[0] if self._adapter else huggingface.load_model(request)
        inner = model.get_base_model() if self._adapter else model
        if not inner.can_generate() or inner.config.is_encoder_decoder:
            raise UsageError(
                f"The run trained a {type(inner).__name__}, which is not a language model that "
                "continues a text: workbench export-model writes it to a folder."
            )
        self._tokenizer: Any = huggingface.tokenizer_of(request)
        if self._tokenizer is None:
            raise UsageError(
                "No tokenizer was found beside the checkpoint or its base: name a folder that has "
                "it with --base."
            )
        self._device = _device()
        self._model = model.to(self._device).eval()
        self._positions = positions(inner)

    def has_base(self) -> bool:
        """With an adapter: the same model without it."""
        return self._adapter

    def answer(
        self, request: Mapping[str, Any], which: str, stopped: threading.Event
    ) -> Iterator[str]:
        """With the cache of keys and values, token by token."""
        generator = torch.Generator(self._device).manual_seed(request["seed"])
        ids = torch.tensor([self._tokens(request)], device=self._device)
        if which == "base":
            with self._model.disable_adapter():
                yield from self._stream(ids, request, generator, stopped)
        else:
            yield from self._stream(ids, request, generator, stopped)

    def _tokens(self, request: Mapping[str, Any]) -> list[int]:
        """Of the prompt; as a turn of a conversation where the tokenizer has a chat template."""
        if self._tokenizer.chat_template and not request["raw"]:
            turn = [{"role": "user", "content": request["prompt"]}]
            text = self._tokenizer.apply_chat_template(
                turn, add_generation_prompt=True, tokenize=False
            )
            return self._tokenizer(text, add_special_tokens=False)["input_ids"]
        ids: list[int] = self._tokenizer(request["prompt"])["input_ids"]
        return ids or [self._tokenizer.bos_token_id or self._tokenizer.eos_token_id or 0]

    def _stream(
        self,
        ids: Tensor,
        request: Mapping[str, Any],
        generator: torch.Generator,
        stopped: threading.Event,
    ) -> Iterator[str]:
        ends, cache, own, sent = self._ends(), None, list[int](), ""
        most = self._room(ids.shape[1], request["max_tokens"])
        for _ in range(most):
            if stopped.is_set():
                return
            with torch.no_grad():
                out = self._model(input_ids=ids, past_key_values=cache, use_cache=True)
            token = int(next_token(out.logits[0, -1], request, generator))
            if token in ends:
                return
            own.append(token)
            ids, cache = torch.tensor([[token]], device=self._device), out.past_key_values
            text: str = self._tokenizer.decode(own, skip_special_tokens=True)
            if text.endswith("\ufffd"):  # a letter that is not whole yet
                yield ""
                continue
            yield text[len(sent) :]
            sent = text
        if most < request["max_tokens"]:
            self.note = f"it ends at the model's {self._positions:,} positions"

    def _room(self, prompt: int, requested: int) -> int:
        """How many of the `requested` tokens there are positions for; the last one needs none.

        Raises:
            UsageError: the prompt alone is too long.
        """
        self.note = ""
        if self._positions is None:
            return requested
        if prompt > self._positions:
            raise UsageError(
                f"The prompt has {prompt:,} tokens and the model has {self._positions:,} "
                "positions: give a shorter one."
            )
        return min(requested, self._positions - prompt + 1)

    def _ends(self) -> set[int]:
        """Tokens that end an answer."""
        config: Any = getattr(self._model, "generation_config", None)
        ends: Any = getattr(config, "eos_token_id", None)
        ends = ends if isinstance(ends, list) else [ends]
        return {token for token in [*ends, self._tokenizer.eos_token_id] if token is not None}

"""`Conversation`: a trained model in a process of its own that answers prompts, beside its base."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.trained_model.process import ModelProcess
from workbench.trained_model.source import GPT, IMAGE_LORA, TENSORS, TrainedModel

TRAINED, BASE = "trained", "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How an answer is drawn."""

    max_tokens: Annotated[
        int, Option(help="Longest answer (bytes for the recipe gpt).", least=1, most=1_000_000)
    ] = 200
    """Of the recipe gpt: bytes."""
    temperature: Annotated[
        float,
        Option(
            help="0: the likeliest token each time; 1: as the model predicts.", least=0, most=100
        ),
    ] = 0.8
    """From 0 to 100; below 1 the likelier tokens gain."""
    top_k: Annotated[int, Option(help="Draw from the K likeliest tokens; 0: all.", least=0)] = 50
    """0 = all."""
    seed: Annotated[int, Option(help="Seed of the draws.", least=0)] = 0
    """The same seed gives the same answer on the same device."""
    raw: Annotated[
        bool, Option(help="Give the prompt as it is, without the tokenizer's chat template.")
    ] = False
    """Else as a turn of a conversation, where the tokenizer has a template."""

    def __post_init__(self) -> None:
        check_declared(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of an answer, or its end."""

    side: str
    """``trained`` or ``base``; "" for news of the model itself."""
    text: str = ""
    """What comes next."""
    tokens: int | None = None
    """At an answer's end: how many it has."""
    seconds: float | None = None
    """At an answer's end: how long it took."""
    stopped: bool = False
    """Whether it was ended by `stop`."""
    note: str = ""
    """At an answer's end: why it is shorter than asked for, as the end of a sentence."""


def sides_of(model: TrainedModel) -> tuple[str, ...]:
    """Whose answers there are: an adapter has its base beside it.

    Raises:
        UsageError: no class is known for the weights.
    """
    if model.family == TENSORS:
        raise UsageError(
            f"{model.checkpoint.name} holds weights of an unknown class, so it cannot answer. "
            "For a Hugging Face model, name a folder with its config.json with --base."
        )
    if model.family == IMAGE_LORA:
        raise UsageError(f"{model.run} trained a model that draws pictures: it cannot answer.")
    return (BASE, TRAINED) if model.adapter else (TRAINED,)


class Conversation:
    """Loads the model at the first prompt and keeps it; a context manager.

    Raises:
        UsageError: no class is known for the checkpoint, or it has no base that was asked for.
    """

    def __init__(self, model: TrainedModel) -> None:
        self.sides = sides_of(model)
        self.model, self._process = model, ModelProcess()

    @property
    def running(self) -> bool:
        """Whether the model's process lives."""
        return self._process.running

    @property
    def pid(self) -> int:
        """The model's process."""
        return self._process.pid

    def ask(
        self, prompt: str, sampling: Sampling | None = None, *, sides: tuple[str, ...] | None = None
    ) -> Iterator[Piece]:
        """The answers as they come, one side after the other.

        Raises:
            UsageError: the model cannot answer.
            ModelProcessError: the process failed or was killed.
        """
        chosen = self.sides if sides is None else sides
        if BASE in chosen and not self.model.adapter:
            how = "began at random" if self.model.family == GPT else "trained all weights"
            raise UsageError(
                f"{self.model.run} {how}: only an adapter (LoRA) has its base beside it."
            )
        request: dict[str, Any] = {"model": self.model.request(), "prompt": prompt}
        answers = self._process.ask(
            "answer", **request, sides=list(chosen), **asdict(sampling or Sampling())
        )
        for message in answers:
            if "loading" in message:
                yield Piece(side="", text="loading the model")
            elif "side" in message:
                yield Piece(
                    side=message["side"],
                    text=message.get("text", ""),
                    tokens=message.get("tokens"),
                    seconds=message.get("seconds"),
                    stopped=message.get("stopped", False),
                    note=message.get("note", ""),
                )

    def stop(self) -> None:
        """End the answer that is under way; the model stays loaded."""
        self._process.stop()

    def close(self) -> None:
        """End the model's process."""
        self._process.close()

    def __enter__(self) -> Conversation:  # noqa: PYI034 - final
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

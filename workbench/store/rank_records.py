"""What a rank writes of its start and of its end, each as one typed value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from workbench.store.schema import ProcessDoc


class SamplerDoc(TypedDict, total=False):
    """How a loader draws its samples."""

    loader: str
    sampler: str
    distributed: bool | None
    shuffle: bool | None
    set_epoch: bool | None
    iterations: int | None
    workers: int | None
    batches_a_step: int  # that one rank trains on
    data: int | None  # equal on ranks that hold the same data set; None = not known


class UnusedParametersDoc(TypedDict, total=False):
    """What DDP's gradients report the parameters."""

    step: int | None
    count: int | None  # got a gradient in none of the steps looked at
    sometimes: int | None  # in some of them
    parameters: int | None
    first: str | None
    find_unused_parameters: bool | None
    looks: int | None  # steps
    last: bool | None  # whether no more steps are looked at


class FailedPassesDoc(TypedDict, total=False):
    """Parts of steps that raised in a script that may have gone on."""

    first_step: int
    count: int
    error: str  # of the last one
    place: str  # of the last one: backward pass, forward pass or data loader


class FrameDoc(TypedDict, total=False):
    """A line of the user's code."""

    path: str
    line: int | None
    source: str | None


class LinkDoc(TypedDict, total=False):
    """An exception of a chain, the outermost first."""

    exception: str
    relation: str  # to the one before: "caused by"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """``metrics/rank-N.start.json``: who a rank is, and what it has learned of itself since."""

    rank: int = 0
    time: float = 0.0
    process: ProcessDoc | None = None
    world_size: int | None = None  # as the launcher said
    group_world_size: int | None = None  # of the process group that the script formed
    attempt_first_step: int | None = None
    spawned: bool = False  # the script started its process itself
    code: dict[str, Any] | None = None  # see `diagnose.frames.code_tree`
    samplers: list[SamplerDoc] | None = None
    unused_parameters: UnusedParametersDoc | None = None
    wrapped_inside: int | None = None  # DDP models inside a DDP model
    failed_passes: FailedPassesDoc | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> RankStart:
        """The record of a document that `shapes.fit` has checked."""
        return cls(**_field_values(cls, document))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """``metrics/rank-N.end.json``: how a rank ended, in its own words. Absent after SIGKILL."""

    rank: int = 0
    time: float = 0.0
    steps: int = 0
    ok: bool = False
    exit_code: int | None = None
    exception: str | None = None  # "ValueError: message"
    where: str | None = None  # "train.py:31 in main"
    frame: FrameDoc | None = None
    chain: list[LinkDoc] = field(default_factory=list[LinkDoc])
    traceback: str | None = None
    peak_memory_bytes: int | None = None
    stopped_at: int | None = None  # the step of a graceful stop
    nothing_left: bool = False  # whether it was resumed from a checkpoint of its last step
    checkpoint: str | None = None
    spawned: bool = False  # written by a process that the script started itself
    # pid -> exit code of such processes that did not end with 0
    child_exit_codes: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def problem(self) -> str | None:
        """What went wrong: the exception, else the exit code; None = nothing."""
        return self.exception or (None if self.ok else f"exit code {self.exit_code}")

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> RankEnd:
        """The record of a document that `shapes.fit` has checked.

        >>> RankEnd.of({"ok": True, "steps": None, "of_a_later_version": 1}).steps
        0
        """
        return cls(**_field_values(cls, document))


def _field_values(kind: type[RankStart | RankEnd], document: Mapping[str, Any]) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    return {name: document[name] for name in names if document.get(name) is not None}

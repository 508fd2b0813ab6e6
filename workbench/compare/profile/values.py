"""The values of a profile; see `workbench.compare.profile.analysis` for what the parts mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from workbench.units import format_seconds

SHOWN_WAITS = 4
_NEGLIGIBLE = 0.01  # of a step
_HARDLY = 0.0005  # of a step
PARTS = ("compute", "exposed", "copies", "input", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One traced step of one rank. All but `communication_seconds` add up to `wall_seconds`."""

    step: int
    """Optimizer step, as everywhere in the run."""
    wall_seconds: float
    """From the end of the step before to its own."""
    compute_seconds: float
    """Kernels run (GPU), or operators (CPU)."""
    exposed_seconds: float
    """Communication under way and nothing computed: includes waiting for other ranks."""
    copies_seconds: float
    """Copies between host and device while nothing else continues."""
    input_seconds: float
    """Waiting for data while nothing else continues."""
    idle_seconds: float
    """None of it: Python, launching, synchronising."""
    communication_seconds: float
    """All communication, also that which computing hides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """One rank's traced steps."""

    rank: int
    """Its number."""
    device: str
    """``cuda`` or ``cpu``."""
    begun_seconds: float
    """When its trace began, after the profile's origin."""
    steps: tuple[StepTime, ...]
    """In order."""
    memory: tuple[tuple[float, int], ...]
    """(seconds, bytes allocated), at most 300 points; on CPU counted from the trace's beginning;
    empty unless asked for."""
    stop_seconds: float | None
    """How long the training stood still after the last traced step."""
    export_seconds: float | None
    """How long writing the trace took, beside the training."""
    trace: Path
    """Its trace file."""

    def seconds(self, part: str) -> float:
        """Mean seconds a step of a part: wall, communication, or one of `PARTS`."""
        return sum(getattr(step, f"{part}_seconds") for step in self.steps) / max(
            1, len(self.steps)
        )

    def sentence(self) -> str:
        """Its mean step in a line; parts that hardly show are left out."""
        wall = self.seconds("wall")
        means = {part: self.seconds(part) for part in PARTS}
        parts = [
            f"{part} {format_seconds(seconds)} ({seconds / wall:.0%})"
            for part, seconds in means.items()
            if seconds > _HARDLY * wall
        ]
        return f"rank {self.rank}: {format_seconds(wall)} a step: {', '.join(parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A kernel or operator, over all ranks and traced steps."""

    name: str
    """As torch or the library calls it."""
    calls: float
    """Per step and rank."""
    seconds: float
    """Own time per step and rank, without what it called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One rank waits in collectives until another has entered them, too."""

    rank: int
    """Who waits."""
    for_rank: int
    """Who comes last."""
    seconds: float
    """Per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The traced steps of a run."""

    run: str
    """Run id."""
    folder: Path
    """Where its files lie."""
    origin_ns: int
    """Unix nanoseconds from which the seconds count."""
    ranks: tuple[RankProfile, ...]
    """Those whose trace could be read."""
    problems: dict[int, str]
    """Rank -> why it has no trace."""
    operations: tuple[Operation, ...]
    """The longest first."""
    waits: tuple[Wait, ...]
    """The longest first."""

    @property
    def traces(self) -> tuple[Path, ...]:
        """The trace files of the ranks."""
        return tuple(rank.trace for rank in self.ranks)

    def sentences(self) -> list[str]:
        """Who waits how long for whom; what is below 1 % of a step is not said."""
        wall = max((rank.seconds("wall") for rank in self.ranks), default=0.0)
        waits = [wait for wait in self.waits if wait.seconds > _NEGLIGIBLE * wall][:SHOWN_WAITS]
        if not waits and len(self.ranks) > 1:
            return ["No rank waits for another rank more than 1 % of a step."]
        return [
            f"Rank {wait.rank} waits {format_seconds(wait.seconds)} a step for rank "
            f"{wait.for_rank}."
            for wait in waits
        ]

    def __str__(self) -> str:
        """A line per rank, then who waits for whom."""
        lines = [rank.sentence() for rank in self.ranks]
        lines += [f"rank {rank} has no trace: {why}" for rank, why in self.problems.items()]
        return "\n".join([*lines, *self.sentences()])

    def document(self) -> dict[str, Any]:
        """As JSON: what `workbench profile --json` prints."""
        return {
            "run": self.run,
            "folder": str(self.folder),
            "steps": sorted({step.step for rank in self.ranks for step in rank.steps}),
            "ranks": [_rank_document(rank) for rank in self.ranks],
            "problems": {str(rank): why for rank, why in self.problems.items()},
            "operations": [asdict(operation) for operation in self.operations],
            "waits": [asdict(wait) for wait in self.waits],
        }


def _rank_document(profile: RankProfile) -> dict[str, Any]:
    means = {f"{part}_seconds": profile.seconds(part) for part in ("wall", *PARTS, "communication")}
    plain = {name.name: getattr(profile, name.name) for name in fields(profile)}
    return {
        **plain,
        "trace": str(profile.trace),
        "steps": [asdict(step) for step in profile.steps],
        "memory": [list(point) for point in profile.memory],
        "mean": means,
    }

"""What trackers receive: points of numbers on an axis, notes for people, and what the run is."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from workbench.store.run_record import RunRecord

Level = Literal["error", "warning", "note"]

# What the run is, in the order of the trackers' tables; the rest of run.json is for machines.
_ABOUT = ("name", "script", "recipe", "strategy_name", "processes", "device", "steps_total")
_MAX_NAME = 200
_OF_RANK = re.compile(r"/rank-\d+$")
_MAX_PARAMETER = 500  # the shortest limit among the trackers (MLflow's databases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Numbers at one place of one axis."""

    axis: Literal["steps", "system"]
    """``steps``: optimizer steps, counted from 1; ``system``: hardware samples, counted from 1."""
    at: int
    """Where on the axis."""
    time: float
    """Unix seconds of the event itself, not of the feeding."""
    key: str
    """Names the point permanently: the same point fed twice is known by it."""
    values: dict[str, float]
    """Number by name; names have only letters and digits of any script and ``_ - . /``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A finding, or the end of the run, as text."""

    key: str
    """Names the note permanently."""
    title: str
    """``hang on rank 1``."""
    text: str
    """Evidence, cause and next move."""
    level: Level
    """How bad."""
    step: int
    """Optimizer step it belongs to; 0 where it belongs to none."""
    time: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The run, as every tracker shows it."""

    run: str
    """Run id."""
    marker: str
    """Always unique; ids may come again in another store."""
    name: str
    """As the user gave it."""
    created_at: float
    """Unix seconds."""
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    """Script, strategy, workload …, flat; secrets were redacted when run.json was written."""


def about(run: RunRecord, directory_name: str) -> About:
    """What run.json tells; unknown values are left out."""
    facts: dict[str, Any] = {name: run.as_read.get(name) for name in _ABOUT}
    facts["arguments"] = " ".join(run.arguments)
    facts["workbench_version"] = run.workbench_version
    for group, inner in (
        ("strategy", run.strategy),
        ("workload", run.workload),
        ("resumed_from", run.resumed_from),
    ):
        facts |= {f"{group}.{name}": value for name, value in (inner or {}).items()}
    parameters = {
        clean_name(name): str(value)[:_MAX_PARAMETER]
        for name, value in facts.items()
        if value is not None and value != ""
    }
    return About(
        run=run.run or directory_name,
        marker=run.marker or directory_name,
        name=run.name or directory_name,
        created_at=run.created_at,
        parameters=parameters,
    )


def clean_name(name: str) -> str:
    """A metric's name as every tracker takes it.

    >>> clean_name("eval loss (%)"), clean_name("/a//b/"), clean_name("损失")
    ('eval_loss_', 'a/b', '损失')
    """
    allowed = re.sub(r"[^\w./-]+", "_", name)[:_MAX_NAME]
    return re.sub(r"/+", "/", allowed).strip("/") or "value"


@final
class TrackerNames:
    """A name of its own for each name that one rank logs; the first comer has the plain one.

    Feed it a rank's names in the order of its file, from the beginning: then an attaching tracker
    finds the same ones.

    >>> names = TrackerNames("said/")
    >>> names.of("a b"), names.of("a_b"), names.of("a b")
    ('said/a_b', 'said/a_b_28cb39ea', 'said/a_b')
    """

    def __init__(self, prefix: str, rank: int = 0) -> None:
        """`prefix`: of all of them; those of a rank but 0 end in ``/rank-N``."""
        self._prefix, self._tail = prefix, "" if rank == 0 else f"/rank-{rank}"
        self._names: dict[str, str] = {}
        self._taken = set[str]()

    def of(self, name: str) -> str:
        """As the trackers know it."""
        known_name = self._names.get(name)
        if known_name is None:
            known_name = self._names[name] = self._new(name)
        return known_name

    def _new(self, name: str) -> str:
        room = _MAX_NAME - len(self._tail)
        plain = clean_name(self._prefix + name)[:room].rstrip("/")
        is_other_rank = not self._tail and _OF_RANK.search(plain)
        if plain in self._taken or is_other_rank:
            mark = f"_{zlib.crc32(name.encode(errors='surrogatepass')):08x}"
            plain = plain[: room - len(mark)] + mark
        self._taken.add(plain)
        return plain + self._tail


def numbers(
    values: Mapping[str, Any], clean: Callable[[str], str] = clean_name
) -> dict[str, float]:
    """Only what is a number; None is unknown, and a bool is no measurement."""
    return {
        clean(name): value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }

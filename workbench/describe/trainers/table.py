"""The trainers and their assumptions, as the data files of this folder list them."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import UnknownNameError

FOLDER = Path(__file__).parent
DEFAULT = "pytorch"
"""Assumed where no trainer is named: what every other default of a job describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of assumptions.csv: what a trainer does to a field of a job, and when."""

    field: str
    """Option of a job, or a strategy's field."""
    value: str
    """As the command line takes it, or a product of numbers and ``hidden``."""
    when: tuple[str, ...]
    """Facts of the job that it needs (`facts`); with "!" in front: that must not be."""
    since: str
    """First month, YYYY-MM; "" = always."""
    until: str
    """First month in which it is no longer so; "" = still so."""
    source: str
    """Repository, file and release in which it can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A program or library that trains, with what it does by default."""

    name: str
    """As ``--trainer`` takes it."""
    title: str
    """As its makers write it."""
    based_on: str
    """Trainer whose assumptions it shares where it has none of its own; "" = none."""
    aliases: tuple[str, ...]
    """Other names."""
    imports: tuple[str, ...]
    """Modules whose import says that a script uses it."""
    releases: Mapping[str, str]
    """Release -> month in which it appeared, oldest first."""
    lines: tuple[Line, ...]
    """Its own assumptions; a later one of the same field counts."""

    @property
    def lineage(self) -> tuple[Trainer, ...]:
        """It and what it is based on, the most general first."""
        return (*(trainer(self.based_on).lineage if self.based_on else ()), self)


@functools.cache
def trainers() -> Mapping[str, Trainer]:
    """Every trainer by name, in the order of the file."""
    lines: dict[str, list[Line]] = {}
    for row in _rows("assumptions.csv"):
        when = tuple(row.pop("when").split())
        lines.setdefault(row.pop("trainer"), []).append(Line(when=when, **row))
    return {
        row["name"]: Trainer(
            name=row["name"],
            title=row["title"],
            based_on=row["based_on"],
            aliases=tuple(row["aliases"].split()),
            imports=tuple(row["imports"].split()),
            releases=dict(part.split("=") for part in row["releases"].split()),
            lines=tuple(lines.get(row["name"], ())),
        )
        for row in _rows("trainers.csv")
    }


def _rows(file: str) -> list[dict[str, str]]:
    with (FOLDER / file).open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def trainer(name: str) -> Trainer:
    """The trainer of that name or alias, in any case.

    Raises:
        UnknownNameError: no such trainer; close names are suggested.

    >>> trainer("NeMo").title
    'NVIDIA NeMo'
    """
    text = name.strip().lower()
    for entry in trainers().values():
        if text == entry.name or text in entry.aliases:
            return entry
    raise UnknownNameError.near("trainer", name, trainers())

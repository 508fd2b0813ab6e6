"""Constants of the time model that no source gives: fitted to published runs, each with bounds.

`fitted.csv` lists them: value, the bounds that physics and implementations allow, meaning. What a
source gives stands in the code with that source. `make fit` refits all of them with each source
of published runs left out in turn (tests/accuracy/fit.py); none knows a model or a run.

>>> 0 < fitted("contention") < 0.5
True
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).with_name("fitted.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One line of fitted.csv or fitted_memory.csv."""

    name: str
    """As `fitted` takes it."""
    value: float
    """Fitted to all published runs."""
    low: float
    """Least that is plausible."""
    high: float
    """Most that is plausible."""
    meaning: str
    """What it stands for, and its unit."""


def constants() -> Mapping[str, Constant]:
    """All of the time model by name, in the file's order."""
    return read_constants(PATH)


@functools.cache
def read_constants(path: Path) -> Mapping[str, Constant]:
    """All of a file by name, in its order."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row["name"]: Constant(
            name=row["name"],
            value=float(row["value"]),
            low=float(row["low"]),
            high=float(row["high"]),
            meaning=row["meaning"],
        )
        for row in rows
    }


_values = {name: constant.value for name, constant in constants().items()}


_reads: list[set[str]] = []


def fitted(name: str) -> float:
    """The value of a constant."""
    if _reads:
        _reads[-1].add(name)
    return _values[name]


@contextmanager
def reading() -> Generator[set[str]]:
    """The names of constants that are read meanwhile, for the fit."""
    names: set[str] = set()
    _reads.append(names)
    try:
        yield names
    finally:
        _reads.pop()


@contextmanager
def using(values: Mapping[str, float]) -> Generator[None]:
    """Other values of some constants, for the fit; not for several threads at once.

    Raises:
        KeyError: no such constant.
    """
    before = {name: _values[name] for name in values}
    _values.update(values)
    try:
        yield
    finally:
        _values.update(before)

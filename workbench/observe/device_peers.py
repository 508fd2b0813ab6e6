"""How far each device is from the others of its model: the slow, the hot, the empty one of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

COLUMNS = ("util", "memory_percent", "temperature_c", "power_w")
"""Percent of time with a kernel running, percent of the card's memory, degrees, watts."""
LEAST = 3  # of fewer devices none is the odd one
OUTLIERS = 5
_WORDS = {
    "util": ("busy", "%"),
    "memory_percent": ("of its memory in use", "%"),
    "temperature_c": ("", "°C"),
    "power_w": ("", "W"),
}
# How far readings of equal cards under equal load lie apart. One unit of deviation is that far.
_USUAL = {"util": 10.0, "memory_percent": 8.0, "temperature_c": 8.0}
_USUAL_POWER = 0.12  # of the median

Reading = Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Every device beside those of its model."""

    usual: list[dict[str, float | None]]
    """By model: the median of each of `COLUMNS`."""
    deviation: list[float | None]
    """By device: the largest deviation of any column, in units of what is usual; over 1 is odd."""
    outliers: list[dict[str, Any]]
    """The oddest devices: ``{"at": place, "text": sentence}``, worst first."""


def beside_peers(
    labels: Sequence[str], models: Sequence[int], readings: Sequence[Reading], *, judged: bool
) -> Peers:
    """Compare the devices of each model; `judged`: whether equal readings are to be expected."""
    usual: list[dict[str, float | None]] = []
    for model in range(max(models, default=-1) + 1):
        own = [reading for at, reading in zip(models, readings, strict=True) if at == model]
        usual.append({name: _median([reading[name] for reading in own]) for name in COLUMNS})
    many = Counter(models)
    worst_of: list[tuple[float, str] | None] = [
        _furthest(reading, usual[model]) if judged and many[model] >= LEAST else None
        for model, reading in zip(models, readings, strict=True)
    ]
    odd = [(worst, at) for at, worst in enumerate(worst_of) if worst is not None and worst[0] > 1]
    odd.sort(key=lambda outlier: (-outlier[0][0], outlier[1]))
    return Peers(
        usual=usual,
        deviation=[None if pair is None else round(min(pair[0], 99), 2) for pair in worst_of],
        outliers=[
            {"at": at, "text": _sentence(labels[at], name, readings[at], usual[models[at]])}
            for (_, name), at in odd[:OUTLIERS]
        ],
    )


def _furthest(reading: Reading, usual: Reading) -> tuple[float, str] | None:
    """The largest deviation and its column; None where nothing is known."""
    deviations: list[tuple[float, str]] = []
    for name in COLUMNS:
        value, middle = reading[name], usual[name]
        if value is None or middle is None:
            continue
        unit = _USUAL.get(name) or max(10.0, _USUAL_POWER * middle)
        deviations.append((abs(value - middle) / unit, name))
    return max(deviations, default=None)


def _sentence(label: str, name: str, reading: Reading, usual: Reading) -> str:
    quantity, unit = _WORDS[name]
    value, middle = reading[name], usual[name]
    own = f"{value:.0f} {unit} {quantity}".rstrip()
    return f"{label}: {own}; its peers {middle:.0f} {unit}"


def _median(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(median(numbers), 1) if numbers else None

"""The curves of a scaling study: each size's step, what it keeps, and what takes the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.compare.studies.scaling_fit import PredictedSize, extrapolate
from workbench.compare.studies.step_split import PARTS, Host, MeasuredSize, parts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One size on a curve."""

    ranks: int
    """Processes."""
    measured: bool
    """False: it follows from the measured sizes."""
    step_seconds: float
    """Median step, or the predicted one."""
    low_seconds: float
    """Measured: first quartile of the steps. Predicted: lower end of the range."""
    high_seconds: float
    """The third quartile, or the upper end."""
    parts: Mapping[str, float]
    """compute, communication, waiting (for the slowest rank), data: seconds that add up."""
    efficiency: float
    """Work per second and rank over that of the smallest size."""
    lost: Mapping[str, float]
    """Part -> share of the time that it takes beyond the smallest size; 1 - efficiency in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """All sizes of one mode."""

    mode: str
    """weak or strong."""
    points: tuple[CurvePoint, ...]
    """Measured ones first, each group rising."""


def curve_of(
    mode: str, by_mode: Mapping[str, Sequence[MeasuredSize]], host: Host, to: Sequence[int]
) -> Curve:
    """One mode's curve: the measured sizes, then those of `to` that lie beyond them."""
    measured, strong = by_mode[mode], mode == "strong"
    parts = parts_of(measured, host)
    last, measured_ranks = measured[-1].ranks, {point.ranks for point in measured}
    same_work = next((measured for measured in by_mode["weak"] if measured.ranks == last), None)
    beyond = [size for size in sorted(set(to)) if size not in measured_ranks and size > last]
    predicted = (
        extrapolate(measured, host, beyond, strong=strong, same_work=same_work if strong else None)
        if beyond and len(measured) > 1
        else []
    )
    base = (measured[0].ranks, parts[0])
    points = [
        _measured(point, part, base, strong=strong)
        for point, part in zip(measured, parts, strict=True)
    ]
    return Curve(
        mode=mode,
        points=(*points, *(_predicted(point, base, strong=strong) for point in predicted)),
    )


def _measured(
    measured: MeasuredSize,
    parts: Mapping[str, float],
    base: tuple[int, Mapping[str, float]],
    *,
    strong: bool,
) -> CurvePoint:
    ordered = sorted(split.step for split in measured.splits)
    efficiency, lost = _efficiency(measured.ranks, parts, base, strong=strong)
    return CurvePoint(
        ranks=measured.ranks,
        measured=True,
        step_seconds=sum(parts.values()),
        low_seconds=ordered[len(ordered) // 4],
        high_seconds=ordered[(3 * len(ordered)) // 4],
        parts=parts,
        efficiency=efficiency,
        lost=lost,
    )


def _predicted(
    point: PredictedSize, base: tuple[int, Mapping[str, float]], *, strong: bool
) -> CurvePoint:
    efficiency, lost = _efficiency(point.ranks, point.parts, base, strong=strong)
    return CurvePoint(
        ranks=point.ranks,
        measured=False,
        step_seconds=point.step_seconds,
        low_seconds=point.low_seconds,
        high_seconds=point.high_seconds,
        parts=point.parts,
        efficiency=efficiency,
        lost=lost,
    )


def _efficiency(
    ranks: int, parts: Mapping[str, float], base: tuple[int, Mapping[str, float]], *, strong: bool
) -> tuple[float, dict[str, float]]:
    """Kept share, and by cause the shares that are not: they add up to 1."""
    first, before = base
    shrunk = first / ranks if strong else 1.0
    step = sum(parts.values())
    lost = {name: (parts[name] - shrunk * before[name]) / step for name in PARTS}
    return shrunk * sum(before.values()) / step, lost

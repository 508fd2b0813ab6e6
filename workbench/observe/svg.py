"""Small line charts as inline SVG: no script, a few kilobytes, readable in light and dark.

The report must open anywhere, years later, also through Jupyter's sandboxed ``/files/``; plotly.js
would add 4.6 MB to every run. Live and study charts use Plotly.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

Number = float | int | None
_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34
_TOO_LARGE = 1e300
_CHARACTER = 7  # width of a digit of the ticks, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve of a chart."""

    name: str
    """Legend text."""
    x: Sequence[Number]
    """Abscissae."""
    y: Sequence[Number]
    """Ordinates; unknown values break the line."""
    css: str = "c0"
    """Colour class, c0 to c7."""
    dashed: bool = False
    """Dashed, for predictions and bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A sign at the top of a chart, which says more under the pointer."""

    x: float
    """Where."""
    text: str
    """What it says."""


def chart(
    title: str, lines: Sequence[Line], *, x_label: str, y_label: str, marks: Sequence[Mark] = ()
) -> str:
    """One figure; an empty string when no line has two known points.

    `marks` outside the curve are left out.
    """
    points = [
        (x, y)
        for line in lines
        for x, y in zip(line.x, line.y, strict=True)
        if _is_drawn(x) and _is_drawn(y)
    ]
    if len(points) < 2:
        return ""
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = min(y for _, y in points), max(y for _, y in points)
    margin = 0.06 * (y_high - y_low) or 0.06 * abs(y_high) or 1.0
    y_low, y_high = (0.0 if 0 <= y_low < margin * 4 else y_low - margin), y_high + margin
    x_high = x_high if x_high > x_low else x_low + 1
    inner_w, inner_h = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        left = _LEFT + inner_w * (x - x_low) / (x_high - x_low)
        return left, _TOP + inner_h * (y_high - y) / (y_high - y_low)

    body: list[str] = []
    for tick in ticks(y_low, y_high):
        _, top = place(x_low, tick)
        body.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{top:.1f}" '
            f'y2="{top:.1f}"/><text class="tick" x="{_LEFT - 6}" y="{top + 4:.1f}" '
            f'text-anchor="end">{tick:.6g}</text>'
        )
    for tick in ticks(x_low, x_high):
        text = f"{tick:.6g}"
        left = min(place(tick, y_low)[0], _WIDTH - len(text) * _CHARACTER / 2)  # whole, inside
        body.append(
            f'<text class="tick" x="{left:.1f}" y="{_HEIGHT - _BOTTOM + 16}" '
            f'text-anchor="middle">{text}</text>'
        )
    for line in lines:
        for path in _paths(line, place):
            dash = ' stroke-dasharray="5 4"' if line.dashed else ""
            body.append(f'<path class="line {line.css}"{dash} d="{path}"/>')
    body += [_sign(mark, place(mark.x, y_high)[0]) for mark in marks if x_low <= mark.x <= x_high]
    legend = "".join(
        f'<span class="key {line.css}">{html.escape(line.name)}</span>' for line in lines
    )
    label = f"{title}: {y_label} over {x_label}, last {points[-1][1]:.4g}"
    return (
        f"<figure><figcaption>{html.escape(title)} <small>{html.escape(y_label)}</small>{legend}"
        f'</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(label)}">{"".join(body)}'
        f'<text class="tick" x="{_WIDTH / 2}" y="{_HEIGHT - 2}" text-anchor="middle">'
        f"{html.escape(x_label)}</text></svg></figure>"
    )


def _sign(mark: Mark, left: float) -> str:
    return (
        f'<text class="mark" x="{left:.1f}" y="{_TOP + 4}" text-anchor="middle">◆'
        f"<title>{html.escape(mark.text)}</title></text>"
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values between `low` and `high`.

    >>> ticks(0, 10)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [
        round(float(index * step), 12) for index in range(first, math.floor(high / step + 1e-9) + 1)
    ]


def _is_drawn(value: Number) -> TypeGuard[float]:
    """Known, and no number so large that the span of two is infinite."""
    return value is not None and abs(value) < _TOO_LARGE  # False of NaN


def _paths(line: Line, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    paths: list[str] = []
    current: list[str] = []
    for x, y in zip(line.x, line.y, strict=True):
        if not (_is_drawn(x) and _is_drawn(y)):
            paths.append("".join(current))
            current = []
            continue
        left, top = place(x, y)
        current.append(f"{'L' if current else 'M'}{left:.1f} {top:.1f}")
    paths.append("".join(current))
    return [path for path in paths if path]

"""A small fit in plain Python: coefficients that cannot be negative, relative errors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

SINGULAR = 1e-12


def fit(
    rows: Sequence[Sequence[float]],
    targets: Sequence[float],
    scales: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """Coefficients >= 0 that make each row's sum match its target, relative errors squared.

    Every subset of the columns is solved and the best one without a negative coefficient is kept:
    exact, and cheap for the few columns of a step.

    Args:
        rows: One value per coefficient.
        targets: What the rows' sums should be.
        scales: What a row's error is relative to; None = its target. Rows of 0 are left out.

    >>> [round(one, 6) for one in fit([[1, 0], [0, 2], [1, 2]], [3.0, 8.0, 11.0])]
    [3.0, 4.0]
    >>> fit([[1.0, 1.0], [1.0, 2.0]], [2.0, 1.0])[1]  # would be -1
    0.0
    """
    usable_rows = [row for row in zip(rows, targets, scales or targets, strict=True) if row[2] > 0]
    width = len(rows[0]) if rows else 0
    scaled = [[*(value / scale for value in row), goal / scale] for row, goal, scale in usable_rows]
    best, least = (0.0,) * width, sum(row[-1] ** 2 for row in scaled)
    for count in range(1, width + 1):
        for columns in itertools.combinations(range(width), count):
            solved = _solve(scaled, columns)
            if solved is None or min(solved) < 0:
                continue
            error = sum(
                (sum(row[at] * value for at, value in zip(columns, solved, strict=True)) - row[-1])
                ** 2
                for row in scaled
            )
            if error < least - SINGULAR:
                least = error
                by_column = dict(zip(columns, solved, strict=True))
                best = tuple(by_column.get(at, 0.0) for at in range(width))
    return best


def _solve(rows: Sequence[Sequence[float]], columns: Sequence[int]) -> list[float] | None:
    """The unconstrained solution for these columns; the last one has the targets.

    None when the columns are alike.
    """
    sizes = [sum(row[at] ** 2 for row in rows) ** 0.5 or 1.0 for at in columns]
    table = [
        [
            *(
                sum(row[a] * row[b] for row in rows) / (size * other)
                for b, other in zip(columns, sizes, strict=True)
            ),
            sum(row[a] * row[-1] for row in rows) / size,
        ]
        for a, size in zip(columns, sizes, strict=True)
    ]
    count = len(columns)
    for at in range(count):
        pivot = max(range(at, count), key=lambda row: abs(table[row][at]))
        table[at], table[pivot] = table[pivot], table[at]
        if abs(table[at][at]) < SINGULAR:
            return None
        for row in range(count):
            if row != at:
                ratio = table[row][at] / table[at][at]
                table[row] = [a - ratio * b for a, b in zip(table[row], table[at], strict=True)]
    return [table[at][count] / table[at][at] / sizes[at] for at in range(count)]

"""Sets of time: spans ``(begin, end)`` in seconds, sorted and without overlap once united."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def united(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, sorted.

    >>> united([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0)])
    [(0.0, 2.0), (3.0, 4.0)]
    """
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def without(spans: Sequence[Span], excluded: Sequence[Span]) -> list[Span]:
    """What of `spans` lies outside `excluded`; both united.

    >>> without([(0.0, 4.0)], [(1.0, 2.0), (3.0, 5.0)])
    [(0.0, 1.0), (2.0, 3.0)]
    """
    remainder: list[Span] = []
    at = 0
    for begin, end in spans:
        while at < len(excluded) and excluded[at][1] <= begin:
            at += 1
        here, left = at, begin
        while here < len(excluded) and excluded[here][0] < end:
            if excluded[here][0] > left:
                remainder.append((left, excluded[here][0]))
            left = max(left, excluded[here][1])
            here += 1
        if left < end:
            remainder.append((left, end))
    return remainder


def within(spans: Sequence[Span], begin: float, end: float) -> float:
    """Seconds of united `spans` between `begin` and `end`.

    >>> within([(0.0, 2.0), (3.0, 5.0)], 1.0, 4.0)
    2.0
    """
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in spans)

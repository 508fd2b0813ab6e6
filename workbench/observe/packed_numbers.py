"""Many numbers in few bytes of JSON: each is one or two characters, its place between two ends.

A thousand devices or ranks are told of in a view of 64 kB that way. Two characters tell a value to
a part in 8,000, one to a part in 90.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

# Printable ASCII that JSON writes as it is, less the two below.
LEVELS = "".join(chr(code) for code in range(0x23, 0x7F) if chr(code) != "\\")
UNKNOWN, NOT_FINITE = " ", "!"
_TOO_LARGE = 1e300  # from here on as not finite: the span of two may be infinite
_TWO_DIGITS = 128  # up to so many numbers


class CodedRows(TypedDict):
    """Rows of equal length."""

    digits: int  # characters of a number
    low: float
    high: float
    rows: list[str]


def digits_of(count: int) -> int:
    """How many characters a number may take where there are `count` of them."""
    return 2 if count <= _TWO_DIGITS else 1


def coded(rows: Sequence[Sequence[float | None]], digits: int) -> CodedRows:
    """The numbers of `rows` between the lowest and the highest of all.

    >>> coded([[1.0, None, 3.0]], 1)
    {'digits': 1, 'low': 1.0, 'high': 3.0, 'rows': ['# ~']}
    """
    finite = [value for row in rows for value in row if value is not None and _is_finite(value)]
    low, high = (float(f"{end:.6g}") for end in (min(finite, default=0), max(finite, default=0)))
    top = len(LEVELS) ** digits - 1
    span = high - low

    def code(value: float | None) -> str:
        if value is None:
            return UNKNOWN * digits
        if not _is_finite(value):
            return NOT_FINITE * digits
        # Divided first: `top` by a span of denormal numbers is infinite.
        level = min(top, max(0, round((value - low) / span * top))) if span > 0 else 0
        if digits == 1:
            return LEVELS[level]
        return LEVELS[level // len(LEVELS)] + LEVELS[level % len(LEVELS)]

    return {
        "digits": digits,
        "low": low,
        "high": high,
        "rows": ["".join(map(code, r)) for r in rows],
    }


def _is_finite(value: float) -> bool:
    return abs(value) < _TOO_LARGE  # False of NaN


def decoded(numbers: CodedRows, row: int = 0) -> list[float | None]:
    """A row back; what was not finite comes as NaN.

    >>> decoded(coded([[1.0, None, 3.0]], 1))
    [1.0, None, 3.0]
    """
    digits, text = numbers["digits"], numbers["rows"][row]
    step = (numbers["high"] - numbers["low"]) / (len(LEVELS) ** digits - 1)
    values: list[float | None] = []
    for start in range(0, len(text), digits):
        code = text[start : start + digits]
        if code[0] == UNKNOWN:
            values.append(None)
        elif code[0] == NOT_FINITE:
            values.append(math.nan)
        else:
            level = 0
            for char in code:
                level = level * len(LEVELS) + LEVELS.index(char)
            values.append(numbers["low"] + level * step)
    return values

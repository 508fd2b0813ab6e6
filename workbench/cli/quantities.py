"""Large numbers as people write them: 300B tokens, 1.5T, 2e9, 1_000_000, 20,000."""

from __future__ import annotations

import math
import re

from workbench.describe.checks import MOST
from workbench.errors import UsageError

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_ROUNDING = 1e-12
"""What a product such as 1.1B may be off by without being meant as a fraction."""
_PATTERN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?\s*([kmbgt]?)")


def read_count(text: str, name: str = "tokens") -> int:
    """A whole number of at least 1, with an optional suffix k, M, B (or G), T.

    Args:
        text: as given on the command line.
        name: what is counted, for the message.

    Raises:
        UsageError: not such a number, below 1, not whole, or not finite.

    >>> read_count("300B"), read_count("1.5T"), read_count("2e9"), read_count("20,000")
    (300000000000, 1500000000000, 2000000000, 20000)
    """
    plain = re.sub(r"(?<=\d)[,_](?=\d{3}(?!\d))", "", str(text).strip())
    match = _PATTERN.fullmatch(plain.lower())
    value = 0.0
    if match is not None:
        value = float(match[1] + (match[2] or "")) * _SUFFIXES[match[3]]
    if match is None or not 1 <= value < MOST:
        raise UsageError(
            f"{name} must be a number of at least 1 and below 1e30, not {text!r}. "
            "Write it as 300B, 1.5T, 2e9 or 20000."
        )
    if abs(value - round(value)) > _ROUNDING * value:
        raise UsageError(f"{name} must be a whole number, not {text!r}. Write {math.ceil(value)}.")
    return round(value)


def read_range(text: str, name: str) -> tuple[float, float]:
    """One number above 0, or two as ``1.5-2.5``: the lower and the upper end.

    Raises:
        UsageError: anything else.

    >>> read_range("2.5", "price"), read_range("1.5-2.5", "price")
    ((2.5, 2.5), (1.5, 2.5))
    """
    parts = re.fullmatch(r"\$?([0-9.]+)(?:\s*-\s*\$?([0-9.]+))?", str(text).strip())
    try:
        low = float(parts[1]) if parts else math.nan
        high = float(parts[2]) if parts and parts[2] else low
    except ValueError:
        low = high = math.nan
    if not 0 < low <= high < 1e6:
        raise UsageError(
            f"{name} must be above 0, one number or a range, not {text!r}. Write 2.5 or 1.5-2.5."
        )
    return low, high

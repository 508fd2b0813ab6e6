"""Text for people from base units. GB or GiB is decided here, once.

Memory is shown in binary units (GiB = 2**30 bytes), as ``nvidia-smi`` and PyTorch do; a GPU's
"80 GB" is its maker's name for 79.6 GiB. Unknown is ``None`` and prints ``n/a``, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

UNKNOWN = "n/a"
KIB, MIB, GIB = 2**10, 2**20, 2**30


def format_bytes(count: float | None) -> str:
    """Bytes in binary units, three significant digits.

    >>> format_bytes(1536), format_bytes(80 * 2**30), format_bytes(2**63), format_bytes(None)
    ('1.5 KiB', '80 GiB', '8,388,608 TiB', 'n/a')
    """
    if count is None or not math.isfinite(count):
        return UNKNOWN
    value, sign = abs(float(count)), "-" if count < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 999.5 or unit == "TiB":
            return f"{sign}{value:.3g} {unit}" if value < 999.5 else f"{sign}{value:,.0f} {unit}"
        value /= 1024
    raise AssertionError


def format_count(number: float | None) -> str:
    """Plain counts with a decimal prefix: tokens, parameters, steps.

    >>> format_count(6_738_415_616), format_count(950), format_count(None)
    ('6.74 B', '950', 'n/a')
    """
    if number is None or not math.isfinite(number):
        return UNKNOWN
    value = float(number)
    for prefix in ("", " k", " M", " B"):
        if abs(value) < 999.5:
            return f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:,.3g} T"


def format_seconds(seconds: float | None, *, scale: float | None = None) -> str:
    """A duration: milliseconds below a second, then s, min, h, days.

    Args:
        seconds: The duration.
        scale: A duration whose units are used instead, because both are read together.

    >>> format_seconds(0.0213), format_seconds(75), format_seconds(7260), format_seconds(None)
    ('21.3 ms', '1 min 15 s', '2 h 01 min', 'n/a')
    >>> format_seconds(45 * 3600), format_seconds(45 * 3600, scale=66 * 3600)
    ('45 h 00 min', '1 d 21 h')
    >>> format_seconds(0.9996), format_seconds(-75)
    ('1 s', '-1 min 15 s')
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0:
        return f"-{format_seconds(-seconds, scale=scale)}"
    size = seconds if scale is None else scale
    if size < 60:
        in_ms = size < 0.9995
        return f"{_three_digits(1000 * seconds)} ms" if in_ms else f"{_three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if size < 3599.5:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if round(size) < 48 * 3600:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def _three_digits(value: float) -> str:
    """Three that count; of 1,000 and more all before the point, never a power of ten.

    >>> _three_digits(0.0123), _three_digits(86_400.2)
    ('0.0123', '86,400')
    """
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def format_hours(hours: float | None) -> str:
    """Hours as a duration.

    >>> format_hours(1.5), format_hours(None)
    ('1 h 30 min', 'n/a')
    """
    return UNKNOWN if hours is None else format_seconds(3600 * hours)


def format_column(seconds: Iterable[float | None]) -> list[str]:
    """Durations that are read below each other: all in one unit that shows the shortest, too.

    >>> format_column([43 * 3600, 86 * 3600, None]), format_column([95, 86 * 3600])
    (['1 d 19 h', '3 d 14 h', 'n/a'], ['1 min 35 s', '5160 min 00 s'])
    >>> format_column([2, 1234])
    ['2 s', '1,234 s']
    """
    every = list(seconds)
    finite = [value for value in every if value is not None and math.isfinite(value)]
    size, least = max(finite, default=0.0), min(finite, default=0.0)
    for limit, precision in ((48 * 3600, 3600), (3600, 60), (60, 1)):
        if size >= limit and least < 5 * precision:
            size = limit - 1
    return [format_seconds(value, scale=size) for value in every]


def format_between(low: float | None, high: float | None) -> str:
    """A range of durations, in the same units unless its ends are very different.

    >>> format_between(0.98, 1.2), format_between(45 * 3600 + 60, 66 * 3600)
    ('0.98 s to 1.2 s', '1 d 21 h to 2 d 18 h')
    >>> format_between(0.02, 300), format_between(None, 5)
    ('20 ms to 5 min 00 s', 'n/a to 5 s')
    """
    alike = low is not None and high is not None and low >= high / 10
    return f"{format_seconds(low, scale=high if alike else None)} to {format_seconds(high)}"


def format_joules(joules: float | None) -> str:
    """Energy: joules below a watt-hour, then Wh, kWh, MWh.

    >>> format_joules(950), format_joules(7200), format_joules(3.6e6 * 12.5), format_joules(None)
    ('950 J', '2 Wh', '12.5 kWh', 'n/a')
    >>> format_joules(1500)
    '1,500 J'
    """
    if joules is None or not math.isfinite(joules):
        return UNKNOWN
    value = joules / 3600
    if abs(value) < 1:
        return f"{_three_digits(joules)} J"
    for unit in ("Wh", "kWh"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.4g} MWh"


def format_grams(grams: float | None) -> str:
    """A mass: mg below a gram, then g, kg, t.

    >>> format_grams(0.02), format_grams(445), format_grams(12_300), format_grams(None)
    ('20 mg', '445 g', '12.3 kg', 'n/a')
    """
    if grams is None or not math.isfinite(grams):
        return UNKNOWN
    value = grams * 1000
    for unit in ("mg", "g", "kg"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.4g} t"


_MAX_USD_DIGITS = 12


def format_usd(usd: float | None) -> str:
    """Dollars, cents below a hundred; of less than a cent two digits that count.

    >>> format_usd(0.004), format_usd(12.5), format_usd(15234), format_usd(None)
    ('$0.0040', '$12.50', '$15,234', 'n/a')
    >>> format_usd(0.0000312), format_usd(0.0)
    ('$0.000031', '$0.00')
    """
    if usd is None or not math.isfinite(usd):
        return UNKNOWN
    if 0 < abs(usd) < 0.01:
        digits = max(4, 1 - math.floor(math.log10(abs(usd))))
        return f"${usd:.{min(digits, _MAX_USD_DIGITS)}f}"
    return f"${usd:,.2f}" if abs(usd) < 100 else f"${usd:,.0f}"


def format_ratio(measured: float | None, predicted: float | None) -> str:
    """Measured ÷ predicted, as every table of ours prints it.

    >>> format_ratio(11, 10), format_ratio(None, 10)
    ('1.10x', 'n/a')
    """
    if measured is None or not predicted:
        return UNKNOWN
    return f"{measured / predicted:.2f}x"


def format_some(items: Sequence[object], most: int) -> str:
    """The first of many, and how many more there are.

    >>> format_some([3, 5, 8], 3), format_some([3, 5, 8], 2)
    ('3, 5, 8', '3, 5 and 1 more')
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{', '.join(map(str, items[:most]))}{more}"

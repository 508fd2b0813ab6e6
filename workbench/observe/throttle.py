"""Why a GPU's clock is held down: NVML's clock event reasons (nvmlClocksEventReasons in nvml.h)."""

from __future__ import annotations

POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
THERMAL = SW_THERMAL | HW_THERMAL

_WORDS = ((THERMAL, "heat"), (POWER_BRAKE, "power brake"), (POWER_CAP, "power cap"))


def throttle_text(mask: int | None) -> str | None:
    """What slows the card down, worst first; "" = nothing, None = unknown.

    An idle card and clocks that someone set are no throttling. A hardware slowdown is for heat or
    for a power brake; it is a reason of its own only where the driver tells neither.

    >>> throttle_text(0x1), throttle_text(0x44), throttle_text(None)
    ('', 'heat, power cap', None)
    >>> throttle_text(0x48), throttle_text(0x88), throttle_text(0x8)
    ('heat', 'power brake', 'hardware slowdown')
    """
    if mask is None:
        return None
    words = [word for bits, word in _WORDS if mask & bits]
    if mask & HW_SLOWDOWN and not mask & (THERMAL | POWER_BRAKE):
        words.insert(0, "hardware slowdown")
    return ", ".join(words)

"""Why a GPU's clock is held down: NVML's clock event reasons (nvmlClocksEventReasons in nvml.h)."""

from __future__ import annotations

POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
THERMAL = SW_THERMAL | HW_THERMAL

_WORDS = (
    (THERMAL, "heat"),
    (POWER_BRAKE, "power brake"),
    (HW_SLOWDOWN, "hardware slowdown"),
    (POWER_CAP, "power cap"),
)


def throttle_text(mask: int | None) -> str | None:
    """What slows the card down, worst first; "" = nothing, None = unknown.

    An idle card and clocks that someone set are no throttling.

    >>> throttle_text(0x1), throttle_text(0x44), throttle_text(None)
    ('', 'heat, power cap', None)
    """
    if mask is None:
        return None
    return ", ".join(word for bits, word in _WORDS if mask & bits)

"""How long a page waits before its store is read again."""

from __future__ import annotations

_SHARE = 20  # of the time goes to reading at most, as a fraction: one part in so many
_LONGEST_SECONDS = 15.0  # an older table would be taken for the present


def pause_seconds(spent_seconds: float, least_seconds: float) -> float:
    """The pause after a reading that took `spent_seconds`; `least_seconds` at least."""
    return max(least_seconds, min(_SHARE * spent_seconds, _LONGEST_SECONDS))

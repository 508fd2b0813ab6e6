"""The checks that every described value shares, so that all of them refuse in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.errors import UnknownNameError, UsageError


def require_choice(field: str, given: str, allowed: Sequence[str]) -> None:
    """Refuse a word that is not in the list, naming near ones."""
    if given not in allowed:
        raise UnknownNameError.near(field.replace("_", " "), str(given), allowed)


def require_positive(field: str, given: object) -> None:
    """Refuse anything but a whole number of at least 1."""
    require_at_least(field, given, 1)


def require_at_least(field: str, given: object, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise UsageError(f"{field} must be a whole number, not {given!r}.")
    if given < least:
        raise UsageError(f"{field} must be at least {least}, not {given}.")

"""The checks that every described value shares, so that all of them refuse in the same words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Number, Real
from typing import Any, cast

from workbench.errors import UnknownNameError, UsageError

MOST = 1e30
"""Nothing that is counted reaches it: tokens, bytes, steps."""


def require_choice(field: str, given: Any, allowed: Sequence[Any]) -> None:
    """Refuse a word that is not in the list, naming near ones, or a number that is not."""
    if given in allowed and not isinstance(given, bool):
        return
    if allowed and isinstance(allowed[0], str):
        raise UnknownNameError.near(field.replace("_", " "), str(given), allowed)
    known = [
        str(choice) for choice in allowed if choice is not None
    ]  # None: the option is left out
    listed = " or ".join(filter(None, (", ".join(known[:-1]), known[-1])))
    raise UsageError(f"{field} must be {listed}, not {given!r}.")


def require_switch(field: str, given: Any) -> bool:
    """Refuse anything but True and False; 1, "no" and the like could mean either."""
    if not isinstance(given, bool):
        raise UsageError(f"{field} must be True or False, not {given!r}.")
    return given


def read_switch(field: str, text: str) -> bool:
    """The True or False that a text stands for.

    >>> read_switch("compiled", "true"), read_switch("compiled", "0")
    (True, False)
    """
    words = {"true": True, "false": False, "1": True, "0": False}
    return require_switch(field, words.get(text.strip().lower(), text))


def require_type(field: str, kind: type, given: Any) -> Any:
    """Refuse what is no switch, number or text, whichever `kind` is; the range is another check.

    Whole numbers of other libraries (numpy's) become Python's own; None stays.
    """
    if given is None:
        return None
    if kind is bool:
        return require_switch(field, given)
    if kind in {int, float}:
        if isinstance(given, bool):
            return given  # the holder refuses it
        if isinstance(given, Integral):
            return int(given)
        if not isinstance(given, Real):
            raise UsageError(f"{field} must be a number, not {given!r}.")
    elif isinstance(given, Number | bytes | list | tuple | Mapping):
        raise UsageError(f"{field} must be a text, not {given!r}.")
    return given


def require_several(field: str, given: Any) -> tuple[Any, ...]:
    """Refuse anything but several values."""
    if not isinstance(given, Iterable):
        raise UsageError(f"{field} must be several values, or a text with commas, not {given!r}.")
    return tuple(cast("Iterable[Any]", given))


def require_positive(field: str, given: object) -> None:
    """Refuse anything but a whole number of at least 1."""
    require_at_least(field, given, 1)


def require_at_least(field: str, given: object, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise UsageError(f"{field} must be a whole number, not {given!r}.")
    if given < least:
        raise UsageError(f"{field} must be at least {least}, not {given}.")


def require_at_most(field: str, given: int, most: int, instead: str = "") -> None:
    """Refuse a size beyond `most`: it is a typing mistake. `instead`: what to do for more."""
    if given > most:
        raise UsageError(f"{field} can be at most {most:,}, not {given:,}. {instead}".rstrip())


def require_amount(field: str, given: object, allowed: str, *, least: float) -> None:
    """Refuse anything but a number of at least `least` (`allowed` in words) and below `MOST`."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise UsageError(f"{field} must be a number, not {given!r}. Write large ones as 300e9.")
    if not least <= float(given) < MOST:
        raise UsageError(f"{field} must be {allowed} and below 1e30, not {given}.")


def read_whole(field: str, text: str, least: int | None, most: int | None) -> int:
    """The whole number that a text stands for, also written 20,000, 1_000_000 or 1e6.

    Anything else is refused with the allowed range. 4k may mean 4,000 or 4,096, so it is refused
    with both.

    >>> read_whole("steps", "20,000", 1, None), read_whole("steps", "1.5e6", 1, None)
    (20000, 1500000)
    """
    plain = re.sub(r"(?<=\d)[,_](?=\d{3}(?!\d))", "", text.strip())
    if re.fullmatch(r"\d+(\.\d*)?e\+?\d{1,2}", plain.lower()) and float(plain).is_integer():
        return int(float(plain))
    try:
        return int(plain)
    except ValueError:
        low = "" if least is None else f" of at least {least:,}"
        allowed = low if most is None else f" from {least or 0:,} to {most:,}"
        raise UsageError(
            f"{field} must be a whole number{allowed}, not {text!r}.{_in_full(plain)}"
        ) from None


def _in_full(text: str) -> str:
    """What to write in the place of a number with a suffix; "" = it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmbg])", text.lower())
    if match is None:
        return ""
    power = {"k": 1, "m": 2, "b": 3, "g": 3}[match[2]]
    meant = [round(float(match[1]) * 1000**power)]
    if power == 1:
        meant.append(round(float(match[1]) * 1024))
    return f" Write it in full: {' or '.join(map(str, meant))}."


def read_number(field: str, text: str, least: float | None = None) -> float:
    """The finite number that a text stands for; anything else, or less, is refused."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and (least is None or number >= least)):
        allowed = "a number" if least is None else f"a number of at least {least:g}"
        raise UsageError(f"{field} must be {allowed}, not {text!r}.")
    return number


def require_above(field: str, given: object, least: float) -> None:
    """Refuse anything but a finite number above `least`."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise UsageError(f"{field} must be a number, not {given!r}.")
    if not (given > least and math.isfinite(given)):
        raise UsageError(f"{field} must be above {least:g}, not {given:g}.")

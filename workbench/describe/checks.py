"""The checks that every described value shares, so that all of them refuse in the same words."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from numbers import Integral, Number, Real
from typing import Any, cast

from workbench.errors import UnknownNameError, UsageError

MOST = 1e30
"""Nothing that is counted reaches it: tokens, bytes, steps."""


def require_choice(field: str, value: Any, allowed: Sequence[Any]) -> None:
    """Refuse a word that is not in the list, naming near ones, or a number that is not."""
    if value in allowed and not isinstance(value, bool):
        return
    if allowed and isinstance(allowed[0], str):
        raise UnknownNameError.near(field.replace("_", " "), str(value), allowed)
    choices = [
        str(choice) for choice in allowed if choice is not None
    ]  # None: the option is left out
    listed = " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
    raise UsageError(f"{field} must be {listed}, not {value!r}.")


def require_switch(field: str, value: Any) -> bool:
    """Refuse anything but True and False; 1, "no" and the like could mean either.

    NumPy's own become Python's.
    """
    numpy = sys.modules.get("numpy")  # who has a value of it has loaded it
    if numpy is not None and isinstance(value, numpy.bool_):
        return bool(value)
    if not isinstance(value, bool):
        raise UsageError(f"{field} must be True or False, not {value!r}.")
    return value


def switch_of(text: str) -> bool | None:
    """The True or False that a word stands for on command lines and in configs; None = neither.

    >>> switch_of("true"), switch_of("Off"), switch_of("0"), switch_of("2")
    (True, False, False, None)
    """
    return _SWITCH_WORDS.get(text.strip().lower())


_SWITCH_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def read_switch(field: str, text: str) -> bool:
    """The True or False that a text stands for; any other text is refused."""
    is_on = switch_of(text)
    return require_switch(field, text if is_on is None else is_on)


def require_type(field: str, kind: type, value: Any) -> Any:
    """Refuse what is no switch, number or text, whichever `kind` is; the range is another check.

    Whole numbers of other libraries (numpy's) become Python's own; None stays.
    """
    if value is None:
        return None
    if kind is bool:
        return require_switch(field, value)
    if kind in {int, float}:
        if not isinstance(value, Real):
            raise UsageError(f"{field} must be a number, not {value!r}.")
    elif isinstance(value, Number | Iterable) and not isinstance(value, str):
        raise UsageError(f"{field} must be a text, not {value!r}.")
    return plain(value)


def require_instance(
    field: str, kind: type | tuple[type, ...], value: object, example: str
) -> None:
    """Refuse an object of another kind than `field` takes; `example` is one that it takes."""
    if not isinstance(value, kind):
        raise UsageError(f"{field} must be {example}, not {short(value)}.")


def short(value: object) -> str:
    """A value as Python writes it, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def plain(value: Any) -> Any:
    """Python's own number or text for one of another library (NumPy's); others as they are."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return str(value) if isinstance(value, str) else value


_PLAIN = frozenset({bool, int, float, str, tuple})


def require_several(field: str, value: Any) -> tuple[Any, ...]:
    """Refuse anything but several values; each is as `plain` makes it."""
    if not isinstance(value, Iterable):
        raise UsageError(f"{field} must be several values, or a text with commas, not {value!r}.")
    return tuple(map(plain, cast("Iterable[Any]", value)))


def require_positive(field: str, value: object) -> None:
    """Refuse anything but a whole number of at least 1."""
    require_at_least(field, value, 1)


def require_at_least(field: str, value: object, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{field} must be a whole number, not {value!r}.")
    if value < least:
        raise UsageError(f"{field} must be at least {least}, not {value}.")


def require_at_most(field: str, value: int, most: int, instead: str = "") -> None:
    """Refuse a size beyond `most`: it is a typing mistake. `instead`: what to do for more."""
    if value > most:
        raise UsageError(f"{field} can be at most {most:,}, not {value:,}. {instead}".rstrip())


def require_number(
    field: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
) -> None:
    """Refuse anything but a number in a range; without `below` up to what can be counted (`MOST`).

    >>> require_number("checkpoint_minutes", 0.0, above=0)
    Traceback (most recent call last):
        ...
    workbench.errors.UsageError: checkpoint_minutes must be above 0, not 0.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"{field} must be a number, not {value!r}. Write large ones as 300e9.")
    number, limit = float(value), MOST if below is None else below
    if above is not None and not number > above:
        raise UsageError(f"{field} must be above {above:g}, not {number:g}.")
    if least is not None and not number >= least:
        raise UsageError(f"{field} must be at least {least:g}, not {number:g}.")
    if not abs(number) < limit:
        raise UsageError(f"{field} must be below {_plain(limit)}, not {number:g}.")


def _plain(limit: float) -> str:
    return f"{limit:,.10g}" if limit < 1e10 else f"{limit:g}".replace("e+", "e")


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
    """What to write instead of a number with a suffix; "" = it is not one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmbg])", text.lower())
    if match is None:
        return ""
    power = {"k": 1, "m": 2, "b": 3, "g": 3}[match[2]]
    numbers = [round(float(match[1]) * 1000**power)]
    if power == 1:
        numbers.append(round(float(match[1]) * 1024))
    return f" Write it in full: {' or '.join(map(str, numbers))}."


def read_number(
    field: str, text: str, above: float | None = None, least: float | None = None
) -> float:
    """The number that a text stands for; the range is another check, and named where it is none.

    >>> read_number("minutes", "1_000"), read_number("minutes", "2.5e3")
    (1000.0, 2500.0)
    """
    try:
        return float(text)
    except ValueError:
        low = "" if least is None else f" of at least {least:g}"
        allowed = low if above is None else f" above {above:g}"
        raise UsageError(f"{field} must be a number{allowed}, not {text!r}.") from None

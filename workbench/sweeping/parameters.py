"""What a sweep varies: an option of the script, and the values that it may have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, cast

from workbench.describe.option import words
from workbench.errors import UsageError
from workbench.store.shapes import fit_as

Value = str | int | float
"""A number where all values of a parameter are numbers, else text."""
_MARKS = {"log", "int"}
_MOST_COMBINATIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One varied option: listed values, or a range."""

    name: str
    """As the user gave it, without dashes."""
    option: str
    """As the script takes it, with dashes."""
    tried: bool
    """Whether each value is tried in every combination (grid), not drawn."""
    values: tuple[str, ...] = ()
    """Listed values, as typed; () = a range."""
    low: float = 0.0
    """Of a range."""
    high: float = 0.0
    """Of a range."""
    log: bool = False
    """Whether its logarithm is drawn uniformly."""
    integer: bool = False
    """Whether only whole numbers are drawn."""

    def value_of(self, text: str) -> Value:
        """A listed value as Optuna keeps it: a number, where all are and no two are equal."""
        numbers = {_number(value) for value in self.values if _is_number(value)}
        return _number(text) if len(numbers) == len(self.values) else text

    def text_of(self, value: Value) -> str:
        """A value as the script's option takes it.

        >>> one = Parameter(name="lr", option="--lr", tried=True, values=("1e-4", "3e-4"))
        >>> one.text_of(0.0003), one.text_of(one.value_of("1e-4"))
        ('3e-4', '1e-4')
        """
        if not self.values:
            return str(round(float(value))) if self.integer else repr(float(value))
        texts = (text for text in self.values if self.value_of(text) == value)
        return next(texts, str(value))  # a journal may name what the plan no longer lists

    def __str__(self) -> str:
        """As it is typed."""
        if self.values:
            return f"{self.name}={','.join(self.values)}"
        ends = (f"{end:.12g}" for end in (self.low, self.high))
        marks = (mark for mark, on in (("log", self.log), ("int", self.integer)) if on)
        return f"{self.name}={':'.join([*ends, *marks])}"

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {**asdict(self), "values": list(self.values)}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Parameter:
        """From its plain form; what a later version added is left out.

        Raises:
            KeyError, TypeError, ValueError: it is not that of a parameter.
        """
        fitted = fit_as(cls, {**document})
        values: dict[str, Any] = {**fitted, "values": tuple(map(str, document["values"]))}
        parameter = cls(**values)
        if not parameter.values and not parameter.low < parameter.high:
            raise ValueError(f"{parameter.name} has neither values nor a range")
        return parameter


def grid_parameter(name: str, spec: object) -> Parameter:
    """A parameter whose values are tried in every combination: ``1e-4,3e-4`` or a sequence.

    Raises:
        UsageError: there is no value, or one comes twice.
    """
    values = _listed("--grid", name, spec)
    _check_listed("--grid", name, values, least=1)
    return Parameter(name=name, option=f"--{name}", tried=True, values=values)


def random_parameter(name: str, spec: object) -> Parameter:
    """A parameter that is drawn: ``0:0.1``, ``1e-5:1e-3:log``, ``2:8:int``, ``a,b`` or a sequence.

    >>> str(random_parameter("lr", "1e-5:1e-3:log")), str(random_parameter("opt", ["adamw", "sgd"]))
    ('lr=1e-05:0.001:log', 'opt=adamw,sgd')

    Raises:
        UsageError: it is neither a range nor a list.
    """
    pair = isinstance(spec, tuple)
    text = ":".join(map(str, cast("Sequence[Any]", spec))) if pair else spec
    if not isinstance(text, str) or ":" not in text:
        values = _listed("--random", name, text)
        _check_listed("--random", name, values, least=2)
        return Parameter(name=name, option=f"--{name}", tried=False, values=values)
    low, high, *marks = text.split(":")
    problem = _range_problem(low, high, marks)
    if problem:
        raise UsageError(
            f"--random {name}={text}: {problem}. Give LOW:HIGH, LOW:HIGH:log for a logarithmic "
            "scale, LOW:HIGH:int for whole numbers, or values separated by commas."
        )
    return Parameter(
        name=name,
        option=f"--{name}",
        tried=False,
        low=float(low),
        high=float(high),
        log="log" in marks,
        integer="int" in marks,
    )


def _range_problem(low: str, high: str, marks: Sequence[str]) -> str:
    if not (_is_number(low) and _is_number(high)):
        return "the ends of a range are numbers"
    first, last = float(low), float(high)
    is_integer = first.is_integer() and last.is_integer()
    problems = {
        f"{set(marks) - _MARKS} is neither log nor int": bool(set(marks) - _MARKS),
        "the low end is not below the high end": first >= last,
        "a logarithmic scale begins above 0": "log" in marks and first <= 0,
        "whole numbers lie between whole numbers": "int" in marks and not is_integer,
    }
    return next((text for text, is_so in problems.items() if is_so), "")


def _listed(flag: str, name: str, spec: object) -> tuple[str, ...]:
    if isinstance(spec, str):
        return words(spec)
    if isinstance(spec, Mapping | bytes):
        raise UsageError(
            f"{flag} {name}={spec!r}: give a list of values, as [1, 2], or a text, as '1,2'"
            f"{' or LOW:HIGH' if flag == '--random' else ''}."
        )
    if isinstance(spec, Iterable):  # an array, a range, a column of pandas
        texts = map(str, cast("Iterable[object]", spec))
        return tuple(sorted(texts) if isinstance(spec, AbstractSet) else texts)
    return (str(spec),)


def _check_listed(flag: str, name: str, values: Sequence[str], *, least: int) -> None:
    if len(set(values)) < len(values):
        raise UsageError(f"{flag} {name}={','.join(values)}: a value comes twice. Give it once.")
    if len(values) < least:
        kind = "LOW:HIGH, or values" if flag == "--random" else "values"
        raise UsageError(f"{flag} {name}: give {kind} separated by commas, as in {name}=1,2.")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def combinations(parameters: Sequence[Parameter]) -> list[dict[str, Value]]:
    """Every combination of the values that are all tried; [] where there is no such parameter.

    Raises:
        UsageError: there are too many.
    """
    tried = [parameter for parameter in parameters if parameter.tried]
    count = math.prod(len(parameter.values) for parameter in tried)
    if count > _MOST_COMBINATIONS:
        raise UsageError(
            f"The grid has {count:,} combinations; at most {_MOST_COMBINATIONS:,} are tried. Draw "
            "some of the parameters instead: --random NAME=A,B,C --trials N"
        )
    if not tried:
        return []
    every = product(
        *([parameter.value_of(text) for text in parameter.values] for parameter in tried)
    )
    return [
        dict(zip((parameter.name for parameter in tried), values, strict=True)) for values in every
    ]


def texts_of(parameters: Sequence[Parameter], values: Mapping[str, Value]) -> dict[str, str]:
    """The values of a trial as the script's options take them."""
    by_name = {parameter.name: parameter for parameter in parameters}
    return {name: by_name[name].text_of(value) for name, value in values.items() if name in by_name}

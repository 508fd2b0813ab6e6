"""Whether a value is one that an option takes, as far as its declaration says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.errors import UsageError
from workbench.script_options.typed_text import Value, is_list, split_values
from workbench.script_options.values import ScriptOption, ScriptOptions


def problem_of(option: ScriptOption, value: Value) -> str:
    """Why a value is none, in one sentence; "" = it is one, as far as that can be seen."""
    if isinstance(value, bool) or not value:
        return ""
    try:
        values = split_values(option, value) if is_list(option) else [value]
    except UsageError as error:
        return str(error)
    most = None if option.repeated else option.most
    if not option.repeated and (len(values) < option.least or (most and len(values) > most)):
        count_text = str(option.least) if most == option.least else f"at least {option.least}"
        return (
            f"{option.name} takes {count_text} values, not {len(values)}: separate them by spaces."
        )
    return next(filter(None, (_problem_of_one(option, value) for value in values)), "")


def _problem_of_one(option: ScriptOption, value: str) -> str:
    if option.choices and value not in option.choices:
        return f"{option.name} is {value!r}; choose {_listed(option.choices)}."
    if option.kind == "integer" and not _reads(int, value):
        return f"{option.name} is {value!r}; give a whole number."
    if option.kind == "number" and not _reads(float, value):
        return f"{option.name} is {value!r}; give a number."
    return ""


def _reads(kind: type[int | float], value: str) -> bool:
    try:
        kind(value)
    except (ValueError, OverflowError):
        return False
    return True


def _listed(choices: Sequence[str]) -> str:
    listed = ", ".join(choices[:12])
    return f"{listed} or {len(choices) - 12} more" if len(choices) > 12 else listed


def problems_in(values: Mapping[str, Value], declared: ScriptOptions) -> dict[str, str]:
    """The sentence for each option whose value is none."""
    problems = {
        option.name: problem_of(option, values[option.name])
        for option in (*declared.options, *declared.words)
        if option.name in values
    }
    return {name: text for name, text in problems.items() if text}

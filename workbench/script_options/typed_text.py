"""One text of arguments and the values in it: read, and changed in place, all else untouched."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from workbench.describe.checks import switch_of
from workbench.errors import UsageError
from workbench.script_options.typed_arguments import TypedArgument, given_in, words_in
from workbench.script_options.values import ScriptOption, ScriptOptions

Value = bool | str
"""On or off for a switch, else the text of its value or values."""
_YES = {"t", "y"}
"""What parsers of scripts take for true beside the usual words (Hugging Face's, Accelerate's)."""


def values_in(text: str, declared: ScriptOptions) -> dict[str, Value]:
    """The value of each option that the text gives, by its name.

    Raises:
        UsageError: a quotation mark is open.
    """
    values: dict[str, Value] = {}
    for argument in given_in(text, declared):
        if argument.option is None:
            continue
        before = values.get(argument.option.name)
        if argument.option.is_switch:
            values[argument.option.name] = _is_on(argument)
        elif argument.option.repeated and isinstance(before, str):
            values[argument.option.name] = f"{before} {shlex.join(argument.values)}"
        else:
            values[argument.option.name] = _as_text(argument.option, argument.values)
    return values


def _as_text(option: ScriptOption, values: Sequence[str]) -> str:
    return shlex.join(values) if is_list(option) else "".join(values)


def is_list(option: ScriptOption) -> bool:
    """Whether its text is several words, quoted as in a shell."""
    return option.repeated or option.most != 1


def _is_on(argument: TypedArgument) -> bool:
    if argument.values:
        word = argument.values[0]
        return switch_of(word) is True or word.lower() in _YES
    option = argument.option
    return option is None or not _is_off(argument.spelling, option)


def _is_off(spelling: str, option: ScriptOption) -> bool:
    return spelling in option.off or any(
        name.startswith(spelling) for name in option.off if spelling not in option.names
    )


def with_value(text: str, declared: ScriptOptions, name: str, value: Value | None) -> str:
    """The text with one option set to a value, or without it; every other character stays.

    Raises:
        UsageError: a quotation mark is open, or the value cannot stand there; it says why.
    """
    option = next(
        argument for argument in (*declared.options, *declared.words) if argument.name == name
    )
    arguments = [argument for argument in given_in(text, declared) if argument.option is option]
    if value is None or value == "" or _is_off_anyway(option, value):
        new = ""
    else:
        new = _written(option, value, arguments[-1] if arguments else None)
    changed = _replaced(text, arguments, new) if arguments else _added(text, declared, option, new)
    if _other_arguments(text, declared, name) != _other_arguments(changed, declared, name) or (
        new and values_in(changed, declared).get(name) != _read_back(option, value)
    ):
        raise UsageError(_unclear(option, value))
    return changed


def _is_off_anyway(option: ScriptOption, value: Value) -> bool:
    """Whether a switch is as it is without being given."""
    return option.is_switch and value is bool(option.default) and option.default is not None


def _read_back(option: ScriptOption, value: Value | None) -> Value | None:
    if isinstance(value, str) and is_list(option):
        return shlex.join(split_values(option, value))
    return value


def _unclear(option: ScriptOption, value: Value | None) -> str:
    if option.is_word:
        return (
            f"{option.name} is told by its place alone, and that is not clear here: change it in "
            "the text of the arguments."
        )
    return f"{option.name} {value} cannot be put there: change it in the text of the arguments."


def _other_arguments(text: str, declared: ScriptOptions, name: str) -> object:
    """All of a text but one option: values of the others, and what is not known."""
    arguments = [
        argument
        for argument in given_in(text, declared)
        if argument.option is None or argument.option.name != name
    ]
    return [
        (argument.spelling, argument.values)
        for argument in arguments
        if not (argument.option and argument.option.is_word)
    ], [argument.values for argument in arguments if argument.option and argument.option.is_word]


def split_values(option: ScriptOption, value: str) -> list[str]:
    """The values of a text of several.

    Raises:
        UsageError: a quotation mark is open.
    """
    try:
        return shlex.split(value)
    except ValueError as error:
        raise UsageError(f"{option.name}: {error} in {value}. Close the quotation mark.") from error


def _written(option: ScriptOption, value: Value, before: TypedArgument | None) -> str:
    """An option with its value, as typed in a shell and in the way it was typed before."""
    spelling = before.spelling if before else option.name
    if option.is_switch:
        return _switched(option, on=bool(value))
    text = str(value)
    if option.repeated:
        return " ".join(_pair(spelling, value) for value in split_values(option, text))
    values = split_values(option, text) if is_list(option) else [text]
    if option.is_word:
        return shlex.join(values)
    if len(values) == 1 and (_needs_joining(values[0]) or (before and before.joined)):
        return _joined(spelling, values[0])
    return shlex.join([spelling, *values])


def _pair(spelling: str, value: str) -> str:
    return _joined(spelling, value) if _needs_joining(value) else shlex.join([spelling, value])


def _needs_joining(value: str) -> bool:
    return value.startswith("-")  # argparse takes -1e-4 for an option


def _joined(spelling: str, value: str) -> str:
    return shlex.quote(f"{spelling}={value}" if spelling.startswith("--") else f"{spelling}{value}")


def _switched(option: ScriptOption, *, on: bool) -> str:
    if option.most:  # it takes a word for yes or no
        return f"{option.name} {on}"
    on_names = [argument for argument in option.names if argument not in option.off]
    names = on_names if on else option.off
    return next(
        (argument for argument in names if argument.startswith("--")), names[0] if names else ""
    )


def _replaced(text: str, arguments: Sequence[TypedArgument], new: str) -> str:
    """The last one gives way to the new text; the others, which it outdid, go."""
    last = arguments[-1]
    text = text[: last.start] + new + text[last.end :] if new else _cut(text, last)
    for argument in reversed(arguments[:-1]):
        text = _cut(text, argument)
    return text


def _cut(text: str, argument: TypedArgument) -> str:
    before, after = text[: argument.start], text[argument.end :]
    if not after.strip():
        return before.rstrip(" ")
    return before + after.lstrip(" ")


def _added(text: str, declared: ScriptOptions, option: ScriptOption, new: str) -> str:
    if not new:
        return text
    at = len(text.rstrip(" "))
    if option.is_word:
        words = [
            argument
            for argument in given_in(text, declared)
            if argument.option and argument.option.is_word
        ]
        at = words[-1].end if words else 0
        if at == 0:
            return f"{new} {text}" if text.strip() else new
    else:
        ends = [start for word, start, _ in words_in(text) if word == "--"]
        if ends:
            return f"{text[: ends[0]]}{new} {text[ends[0] :]}"
    return f"{text[:at]} {new}{text[at:]}" if text[:at].strip() else new

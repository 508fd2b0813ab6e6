"""The options of a recipe or script as controls: groups of fields, and what stands in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.script_options.typed_text import Value, is_list
from workbench.script_options.values import Reading, ScriptOption, ScriptOptions

_YES, _NO = "yes", "no"
_OPEN = 2
_FEW = 14
"""Fields up to which every group is open."""


def all_options(script_options: ScriptOptions) -> tuple[ScriptOption, ...]:
    """What it takes by place, then by name."""
    return (
        *script_options.words,
        *(
            option
            for option in script_options.options
            if option.name not in {"--help", "--version"}
        ),
    )


def groups(reading: Reading) -> list[dict[str, Any]]:
    """Groups of controls under the script's own headings, in its order."""
    by_title: dict[str, list[dict[str, Any]]] = {}
    for option in all_options(reading.known):
        by_title.setdefault(option.group or "Options", []).append(_field(option))
    count = sum(map(len, by_title.values()))
    return [
        {"title": _heading(title), "open": count <= _FEW or at < _OPEN, "fields": fields}
        for at, (title, fields) in enumerate(by_title.items())
    ]


def _heading(title: str) -> str:
    return title[:1].upper() + title[1:]


def _field(option: ScriptOption) -> dict[str, Any]:
    field: dict[str, Any] = {
        "name": option.name,
        "label": option.name,
        "help": option.help,
        "unit": option.unit,
        "required": option.required,
        "kind": "text",
        "hint": _hint(option),
        "path": option.kind == "path" and not is_list(option),
        "number": option.kind in {"integer", "number"} and not is_list(option),
    }
    if option.is_switch and option.default is not None:
        return {**field, "kind": "check"}
    choices = (_YES, _NO) if option.is_switch else option.choices
    if (choices and not is_list(option)) or option.is_switch:
        first = "required" if option.required else f"default: {field['hint']}".rstrip(": ")
        options = [{"value": "", "text": first}, *({"value": c, "text": c} for c in choices)]
        return {**field, "kind": "select", "options": options}
    return field


def _hint(option: ScriptOption) -> str:
    """What an empty control means."""
    if option.required:
        return "required"
    if option.default is None or option.default == "":
        return "several, separated by spaces" if is_list(option) else ""
    return str(option.default)


def shown_values(values: Mapping[str, Value], script_options: ScriptOptions) -> dict[str, Value]:
    """What each control shows: what is given; an empty one shows its default beside it."""
    control_values: dict[str, Value] = {}
    for option in all_options(script_options):
        value = values.get(option.name)
        if not option.is_switch:
            control_values[option.name] = "" if value is None else value
        elif option.default is not None:
            control_values[option.name] = bool(option.default if value is None else value)
        else:
            control_values[option.name] = "" if value is None else _YES if value else _NO
    return control_values


def read_back(option: ScriptOption, value: object) -> Value | None:
    """What a control was moved to, as a value of the option; None = as if it were not given."""
    if option.is_switch and isinstance(value, str):
        return {_YES: True, _NO: False}.get(value)
    if isinstance(value, bool):
        return value
    return str(value).strip() or None

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


def all_options(known: ScriptOptions) -> tuple[ScriptOption, ...]:
    """What it takes by place, then by name."""
    return (
        *known.words,
        *(one for one in known.options if one.name not in {"--help", "--version"}),
    )


def groups(reading: Reading) -> list[dict[str, Any]]:
    """Groups of controls under the script's own headings, in its order."""
    by_title: dict[str, list[dict[str, Any]]] = {}
    for one in all_options(reading.known):
        by_title.setdefault(one.group or "Options", []).append(_field(one))
    count = sum(map(len, by_title.values()))
    return [
        {"title": _heading(title), "open": count <= _FEW or at < _OPEN, "fields": fields}
        for at, (title, fields) in enumerate(by_title.items())
    ]


def _heading(title: str) -> str:
    return title[:1].upper() + title[1:]


def _field(one: ScriptOption) -> dict[str, Any]:
    field: dict[str, Any] = {
        "name": one.name,
        "label": one.name,
        "help": one.help,
        "unit": one.unit,
        "required": one.required,
        "kind": "text",
        "hint": _hint(one),
        "path": one.kind == "path" and not is_list(one),
        "number": one.kind in {"integer", "number"} and not is_list(one),
    }
    if one.is_switch and one.default is not None:
        return {**field, "kind": "check"}
    choices = (_YES, _NO) if one.is_switch else one.choices
    if (choices and not is_list(one)) or one.is_switch:
        first = "required" if one.required else f"default: {field['hint']}".rstrip(": ")
        options = [{"value": "", "text": first}, *({"value": c, "text": c} for c in choices)]
        return {**field, "kind": "select", "options": options}
    return field


def _hint(one: ScriptOption) -> str:
    """What an empty control means."""
    if one.required:
        return "required"
    if one.default is None or one.default == "":
        return "several, separated by spaces" if is_list(one) else ""
    return str(one.default)


def shown_values(values: Mapping[str, Value], known: ScriptOptions) -> dict[str, Value]:
    """What each control shows: what is given; an empty one shows its default beside it."""
    found: dict[str, Value] = {}
    for one in all_options(known):
        value = values.get(one.name)
        if not one.is_switch:
            found[one.name] = "" if value is None else value
        elif one.default is not None:
            found[one.name] = bool(one.default if value is None else value)
        else:
            found[one.name] = "" if value is None else _YES if value else _NO
    return found


def read_back(one: ScriptOption, value: object) -> Value | None:
    """What a control was moved to, as a value of the option; None = as if it were not given."""
    if one.is_switch and isinstance(value, str):
        return {_YES: True, _NO: False}.get(value)
    if isinstance(value, bool):
        return value
    return str(value).strip() or None

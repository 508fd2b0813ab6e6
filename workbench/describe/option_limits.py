"""Declared values held against their declarations: in one place, whichever face they came by."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

from workbench.describe.checks import (
    plain,
    require_at_least,
    require_at_most,
    require_choice,
    require_number,
    require_switch,
)
from workbench.describe.option import DeclaredField, Option, own_fields


def check_declared(value: Any) -> None:
    """Hold every declared field of a dataclass's value against its declaration.

    What stands for the same is kept as the same: NumPy's numbers as Python's, listed words once
    and in the order of their choices, so that equal questions are equal values.

    Raises:
        UsageError: one of them is not allowed; the message names the field and what is.
    """
    for name, field in _limited(value.__class__).items():
        given = getattr(value, name)
        if given is field.default:  # a planner makes thousands, most fields as they come
            continue
        kept = checked_field(field, given)
        if kept is not given:
            object.__setattr__(value, name, kept)


def checked_field(field: DeclaredField, value: Any) -> Any:
    """A value that its field's declaration allows, as the field keeps it.

    Raises:
        UsageError: it is not allowed; the message names the field and what is.
    """
    if value is None and field.may_be_none:
        return None
    if field.is_switch:
        return require_switch(field.name, value)
    if field.plain_type is float:
        _check_number(field.name, value, field.option)
        return plain(value)
    value = field.read(value) if field.option.split == "commas" else plain(value)
    check_value(field.name, value, field.option, field.title)
    if field.option.split and field.option.choices:
        return tuple(choice for choice in field.option.choices if choice in value)
    return value


def check_value(name: str, value: Any, option: Option, title: str = "") -> None:
    """Hold a word or a whole number, or several, against choices and limits.

    Raises:
        UsageError: it is not allowed; the message names the field and what is.
    """
    for part in cast("tuple[Any, ...]", value if option.split else (value,)):
        if option.choices:
            require_choice(title or name, part, option.choices)
        if option.least is not None:
            require_at_least(name, part, option.least)
        if option.most is not None:
            require_at_most(name, part, option.most, option.beyond)


def _check_number(name: str, value: Any, option: Option) -> None:
    require_number(name, value, above=option.above, least=option.least, below=option.below)
    if option.most is not None:
        require_at_most(name, value, option.most, option.beyond)


@functools.cache
def _limited(kind: type) -> Mapping[str, DeclaredField]:
    """The fields whose values can be wrong: switches first, then numbers and words."""
    fields = own_fields(kind)
    switches = {name: field for name, field in fields.items() if field.is_switch}
    numbers_and_words = {
        name: field
        for name, field in fields.items()
        if field.plain_type is float
        or field.option.choices
        or (field.option.least, field.option.most) != (None, None)
    }
    return switches | numbers_and_words

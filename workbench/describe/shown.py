"""How a described value stands in a Python shell: by what differs from the defaults."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any


def changed_fields(self: Any) -> str:
    """The ``repr`` of a frozen value: the fields it is compared by, without those at their default.

    Python reads it back to an equal value. Assigned in a class's body as its ``__repr__``.

    >>> from workbench.describe import Strategy
    >>> Strategy.parse("fsdp", 8).with_options(recompute="full")
    Strategy(name='fsdp', dp_shard=8, recompute='full')
    """
    changed = (
        f"{field.name}={content!r}"
        for field in fields(self)
        if field.compare and (content := getattr(self, field.name)) != _default(field)
    )
    return f"{type(self).__name__}({', '.join(changed)})"


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()

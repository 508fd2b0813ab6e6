"""The controls of a face as one frozen value: what each of them is set to, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from workbench_widgets.options import refuse_unknown

_Own = TypeVar("_Own", bound="Form")  # typing.Self is younger than Python 3.10


@dataclass(frozen=True, slots=True)
class Form:
    """Abstract: a subclass names its face and the first value of each control."""

    FACE: ClassVar[str]
    FIRST: ClassVar[Mapping[str, Any]]
    """Every control and its first value."""
    moved: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The controls that were set."""

    @classmethod
    def from_options(cls: type[_Own], options: Mapping[str, Any]) -> _Own:  # noqa: PYI019
        """Build from the constructor's keyword arguments. Raises TypeError: an unknown option."""
        refuse_unknown(cls.FACE, options, cls.FIRST)
        return cls().changed(options)

    def changed(self: _Own, changes: Mapping[str, Any]) -> _Own:  # noqa: PYI019
        """The form after some controls were moved; unknown names are left out."""
        plain_values = {
            name: self.plain(name, value) for name, value in changes.items() if name in self.FIRST
        }
        return replace(self, moved={**self.moved, **plain_values})

    def plain(self, name: str, value: Any) -> Any:  # noqa: ARG002
        """A control's value as it is kept, from what was typed or given."""
        return value

    def __getitem__(self, name: str) -> Any:
        return self.moved[name] if name in self.moved else self.FIRST[name]

    def document(self) -> dict[str, Any]:
        """Plain values for the front end."""
        return {**self.FIRST, **self.moved}

    def hidden(self) -> list[str]:
        """Controls without effect as the others stand."""
        raise NotImplementedError

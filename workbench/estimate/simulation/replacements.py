"""Attributes of other packages replaced for a while."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Replacements:
    """Attributes replaced for a while; `restore` puts every one back as it was."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace `name`, also where `owner` only inherits it."""
        missing = object()
        before: Any = vars(owner).get(name, missing)
        if before is missing:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Undo all, the latest first."""
        while self._undo:
            self._undo.pop()()

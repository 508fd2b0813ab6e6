"""Single keys of a Hugging Face config, with checks that name key, file and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import UsageError

MOST = 10**9  # no size of a model is larger; beyond it a number is a typing mistake
MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A config with the words for messages about it."""

    values: Mapping[str, Any]
    """The config."""
    label: str
    """What it is called in messages: the file, or "the config"."""
    family: str
    """Its model_type."""
    notes: list[str] = field(default_factory=list[str])
    """What was read by analogy or left out, for the reader."""

    def has(self, name: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.values.get(name) is not None

    def integer(self, first: str, *others: str, default: int | None = None, least: int = 1) -> int:
        """A size: the first of the names that is there.

        Raises:
            UsageError: none of them is there and there is no default, or no possible size.
        """
        name, value = self._first((first, *others))
        if value is MISSING:
            if default is not None:
                return default
            also = f" (or {', '.join(others)})" if others else ""
            present = ", ".join(sorted(str(key) for key in self.values)[:12]) or "nothing"
            raise UsageError(
                f"{self.label} has no {first}{also}, which a {self.family} config needs: a "
                f"whole number of at least {least}. It has: {present}. Add the key, or build "
                "Model(...) with the sizes."
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{name} in {self.label} must be a whole number, not {value!r}.")
        if not least <= value <= MOST:
            raise UsageError(
                f"{name} in {self.label} must be between {least} and {MOST:,}, not {value}."
            )
        return value

    def optional(self, first: str, *others: str) -> int | None:
        """A size that may be absent."""
        _, value = self._first((first, *others))
        return None if value is MISSING else self.integer(first, *others)

    def assumed(self, name: str, *, default: int) -> int:
        """A size whose absence is worth a note: published files rely on the class's default."""
        if not self.has(name):
            self.notes.append(
                f"{self.label} has no {name}: took {default}, the default of {self.family}."
            )
        return self.integer(name, default=default)

    def switch(self, name: str, *, default: bool) -> bool:
        """A yes or no.

        Raises:
            UsageError: neither true nor false.
        """
        _, value = self._first((name,))
        if value is MISSING:
            return default
        if not isinstance(value, bool):
            raise UsageError(f"{name} in {self.label} must be true or false, not {value!r}.")
        return value

    def share(self, *names: str, default: float = 0.0) -> float:
        """A probability.

        Raises:
            UsageError: no number from 0 to below 1.
        """
        name, value = self._first(names)
        if value is MISSING:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise UsageError(f"{name} in {self.label} must be from 0 to below 1, not {value!r}.")
        return float(value)

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            if self.has(name):
                return name, self.values[name]
        return names[0], MISSING

"""Values of the optimizers' groups that somebody changed while the script trains.

Script and scheduler keep their own: a value is replaced just before an optimizer's step and put
back after it. So a schedule goes on under a changed learning rate, which is a multiple of it or,
where it is to be held, constant; and what a checkpoint has of optimizer and scheduler is the
script's own. A resume from it repeats the change (``WORKBENCH_STEERED``).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import Any

STEERED = "WORKBENCH_STEERED"  # the changes that an attempt begins with
_RATE_FACTOR = "WORKBENCH_LR_FACTOR"  # of rollbacks, see supervise/rollback_environment.py
_RATE = "lr"
Replaced = list[tuple[dict[str, Any], str, Any]]


class Override:
    """One changed value, from the optimizer step `first` on."""

    def __init__(self, first: int, name: str, value: float, *, hold: bool) -> None:
        self.first, self.name, self.value, self.hold = first, name, value, hold
        self.factor: float | None = None  # of the script's own value; None until its first step
        self.own: float | None = None  # the script's value in that step
        self.lowered = rate_factor()  # by rollbacks until then
        self._shares: dict[int, float] = {}  # of a held value, by group

    def document(self) -> dict[str, Any]:
        """What an attempt is told that begins with it."""
        names = ("first", "name", "value", "hold", "factor", "own", "lowered")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def read(cls, document: dict[str, Any]) -> Override:
        """What `document` wrote."""
        first, value = int(document["first"]), float(document["value"])
        override = cls(first, str(document["name"]), value, hold=bool(document["hold"]))
        if document.get("factor") is not None:
            override.factor, override.own = float(document["factor"]), document.get("own")
        override.lowered = float(document.get("lowered", 1.0))
        return override

    def begin(self, lead: list[dict[str, Any]]) -> None:
        """Its first step: by how much the script's own values are changed from now on."""
        self.own = own = reference(lead, self.name)
        if not own or not math.isfinite(own):
            self.hold = True  # nothing times zero gives it
        self.factor = self.value / own if own and math.isfinite(own) else 1.0

    def of(self, group: dict[str, Any], lead: list[dict[str, Any]], lowered: float) -> float:
        """The value of a group; `lowered`: by all rollbacks."""
        since = lowered / self.lowered if self.name == _RATE else 1.0
        if not self.hold:
            return group[self.name] * (self.factor or 1.0) * since
        if id(group) not in self._shares:
            own = reference(lead, self.name)
            self._shares[id(group)] = group[self.name] / own if own else 1.0
        return self.value * self._shares[id(group)] * since


class Overrides:
    """All changes of a rank."""

    def __init__(self) -> None:
        self._changes: list[Override] = []
        self._lowered = rate_factor()
        self._at = 0
        self.rate: float | None = None
        """The learning rate of the latest step, as it was used; None: of no optimizer of torch."""

    @classmethod
    def from_environment(cls) -> Overrides | None:
        """What this attempt begins with; None = the script's own values alone."""
        overrides = cls()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            listed = json.loads(os.environ.get(STEERED, "[]"))
            overrides._changes = [Override.read(change) for change in listed]
        return overrides if overrides._changes or overrides._lowered != 1.0 else None

    def add(self, override: Override) -> None:
        """From its step on it replaces an earlier one of the same name."""
        self._changes.append(override)

    def apply(self, optimizer: Any, step: int, lead: Any) -> Replaced:
        """Give the groups of `optimizer` their values for `step`; returns what was replaced."""
        groups, leading = groups_of(optimizer), groups_of(lead) or groups_of(optimizer)
        active = {change.name: change for change in self._changes if change.first <= step}
        for override in active.values():
            if override.factor is None:
                override.begin(leading)
        values = [
            (group, name, self._value(group, name, active, leading))
            for group in groups
            for name in {*active, _RATE}
            if group.get(name) is not None
        ]
        replaced = [(group, name, group[name]) for group, name, _ in values]
        for group, name, value in values:
            group[name] = value
        if groups and self._at != step:
            rate = groups[0].get(_RATE)
            self._at, self.rate = step, None if rate is None else float(rate)
        return replaced

    def _value(
        self,
        group: dict[str, Any],
        name: str,
        active: dict[str, Override],
        lead: list[dict[str, Any]],
    ) -> Any:
        if name in active:
            return active[name].of(group, lead, self._lowered)
        return group[name] * self._lowered


def restore(replaced: Replaced) -> None:
    """Give the groups back what `Overrides.apply` replaced."""
    for group, name, value in replaced:
        group[name] = value


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """The groups of an optimizer, or of the one that an engine has."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        groups = getattr(getattr(optimizer, "optimizer", None), "param_groups", None)
    return list(groups or ())


def reference(groups: list[dict[str, Any]], name: str) -> float | None:
    """The value that a change of `name` speaks of: the first rate, or the largest of the others."""
    values = [float(group[name]) for group in groups if group.get(name) is not None]
    if not values:
        return None
    return values[0] if name == _RATE else max(values, key=abs)


def changeable(optimizer: Any) -> list[str]:
    """The values of its groups that are plain numbers."""
    return sorted(
        {
            name
            for group in groups_of(optimizer)
            for name, value in group.items()
            if name not in {"params", "initial_lr", "step"}
            and not isinstance(value, bool)
            and (isinstance(value, int | float) or (name == _RATE and value is not None))
        }
    )


def rate_factor() -> float:
    """By how much rollbacks have lowered the learning rate; 1 = not at all."""
    with contextlib.suppress(ValueError):
        return float(os.environ.get(_RATE_FACTOR, "1"))
    return 1.0

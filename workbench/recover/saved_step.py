"""The run's step at which its script saved a checkpoint, where the run's own records tell it.

A file's counters are the script's: an optimizer that was rebuilt counts from 0, two optimizers
count twice, and the number in a saved configuration is a plan. The ranks write down at which step a
state was saved, and when.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from workbench.recover.foreign import IdentifiedCheckpoint
from workbench.recover.whose import step_at
from workbench.store.files import LineReader
from workbench.store.layout import RunPaths

_KINDS = frozenset({"torch", "lightning", "dcp", "accelerate"})
"""The others state the steps of the training itself."""
_NEAR = 2
"""Steps by which a script's counter may differ: an index, or a step that was under way."""


class _Saving(NamedTuple):
    """A rank saved a state."""

    step: int
    updates: int | None  # that the optimizer itself counts
    time: float  # Unix seconds


class SavedSteps:
    """Tells at which step a run saved what; its records of savings are read once."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def step_of(self, about: IdentifiedCheckpoint, saved_at: float) -> int | None:
        """Optimizer steps of the run when it saved this; None = neither records nor content say.

        Args:
            about: What the content says.
            saved_at: When the newest file was written, in Unix seconds; the run was at work then.
        """
        if about.kind not in _KINDS:
            return about.step
        done = step_at(self._paths, saved_at)
        if done is None:
            return about.step
        before = [saving for saving in self._savings if saving.time <= saved_at + 1.0]
        if about.updates is not None:
            same = [saving for saving in before if saving.updates == about.updates]
            if same:
                return max(same, key=lambda saving: saving.time).step
        if about.step is not None and abs(about.step - done) <= _NEAR:
            return about.step
        latest = max(before, key=lambda saving: saving.time, default=None)
        return done if latest is None else min(done, latest.step)

    @cached_property
    def _savings(self) -> list[_Saving]:
        return list(_savings(self._paths))


def _savings(paths: RunPaths) -> Iterator[_Saving]:
    """Of every rank: of replicas often rank 0 alone saves."""
    for file in sorted(paths.metrics.glob("rank-*.states.jsonl")):
        reader = LineReader(file)
        while lines := reader.read():
            for line in lines:
                with contextlib.suppress(KeyError, TypeError, ValueError):
                    updates = line.get("updates")
                    counted = updates if type(updates) is int else None
                    yield _Saving(int(line["step"]), counted, float(line["time"]))

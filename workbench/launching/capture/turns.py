"""Which optimizer's steps are the script's steps, where several have a backward pass each.

Two that take turns (a GAN) make one step in a round of all, told with the first one's loss. One
that steps twice in a row while the first rests takes over, as in the next phase of a training, and
its step before counts as well. Where that happens again and again (folds side by side, agents drawn
by chance, clients of a federation), there are no rounds: every step counts.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from .batches import NOTHING
from .device_values import is_capturing
from .step_line import StepRecord

_MIXED, _LONG = 8, 64  # steps without the first one, after which another takes over
_CHANGES = 3  # of the first one; with a third as many as there are rounds, there are no rounds
_MOVED = ("_fsdp_flattened", "_local_tensor", "ds_id")  # marks of FSDP 1, FSDP 2 and ZeRO


class Turn(NamedTuple):
    """A step of another optimizer than the first one; it may turn out to count."""

    optimizer: weakref.ref[Any]
    ended: float
    """By the steady clock."""
    time: float
    """Unix seconds."""
    backward_at: float
    optimizer_at: float | None
    lr: float | None
    losses: list[Any]
    norm: Any

    def record(self, step: int, seconds: float | None) -> StepRecord:
        """The step as number `step`, without what was consumed and waited for."""
        fields = (step, self.time, seconds, None, NOTHING, self.backward_at, self.optimizer_at)
        return StepRecord(*fields, 0.0, 0.0, 0.0, self.lr, None)


COUNTS: tuple[list[Turn], int] = ([], 0)


class Turns:
    """The first optimizer, and the steps of others since its last one."""

    def __init__(self) -> None:
        self._first: weakref.ref[Any] | None = None
        self._since: list[Turn] = []
        self._rounds = self._changes = self._left_out = 0
        self._each = False  # every step counts
        self.watched: weakref.ref[Any] | None = None
        """A parameter of the first optimizer whose gradient a step leaves where the script sees it.

        None where none is left, or where sharding moves it between two backward passes.
        """
        self.by_hand = False
        """The first optimizer steps without a backward pass: the script sets gradients itself."""

    def first(self) -> Any:
        """The optimizer whose steps are counted; None before the first, or when it is gone."""
        return self._first() if self._first is not None else None

    def count(self, optimizer: Any) -> tuple[list[Turn], int] | None:
        """Whether this optimizer's step counts: None = not now, see `wait`.

        Else with those that turn out to count with it, and how many did not count but should have.
        """
        first = self._first() if self._first is not None else None
        if first is optimizer:
            if self._since:
                self._rounds += 1
                self._leave_out(self._since)
            return COUNTS
        if first is None or self._each:
            self._follow(optimizer)
            return COUNTS
        own = [turn for turn in self._since if turn.optimizer() is optimizer]
        in_a_row = bool(own) and own[-1] is self._since[-1]
        if not (in_a_row or (own and len(self._since) > _MIXED) or len(self._since) > _LONG):
            return None
        self._changes += 1
        self._leave_out([turn for turn in self._since if turn.optimizer() is not optimizer])
        self._follow(optimizer)
        self._each = self._changes >= max(_CHANGES, self._rounds / _CHANGES)
        missed, self._left_out = (self._left_out, 0) if self._each else (0, self._left_out)
        return own, missed

    def wait(
        self,
        optimizer: Any,
        backward_at: float,
        optimizer_at: float | None,
        lr: float | None,
        losses: list[Any],
        norm: Any,
    ) -> None:
        """A step that ends now and does not count unless its optimizer takes over."""
        ended, now = time.perf_counter(), time.time()
        of = weakref.ref(optimizer)
        self._since.append(Turn(of, ended, now, backward_at, optimizer_at, lr, losses, norm))

    def without_backward(self, optimizer: Any) -> bool:
        """Whether a step without a backward pass counts: no other optimizer came first.

        Evolution strategies make such steps, and who gets gradients from elsewhere. Before the
        first one the gradients are looked at: with those that are zero an optimizer's state is
        made.
        """
        first = self.first()
        if first is not None and first is not optimizer:
            return False
        known = self.by_hand and first is not None
        self.by_hand = known or (not is_capturing() and _has_gradients(optimizer))
        return self.by_hand

    def forget(self) -> None:
        """The script went back: which optimizer comes first is open again."""
        self._first = None
        self._since.clear()

    def _follow(self, optimizer: Any) -> None:
        self._first = weakref.ref(optimizer)
        self._since = []
        with_gradient = (weight for weight in _parameters(optimizer) if weight.grad is not None)
        parameter = next(with_gradient, None)
        moved = parameter is None or any(hasattr(parameter, name) for name in _MOVED)
        self.watched = None if moved else weakref.ref(parameter)

    def gradient_is_gone(self) -> bool:
        """Whether the parameter that is watched has none."""
        watched = self.watched() if self.watched is not None else None
        return watched is not None and watched.grad is None

    def _leave_out(self, turns: list[Turn]) -> None:
        self._left_out += len(turns)
        self._since = []


def _has_gradients(optimizer: Any) -> bool:
    """Whether one of its gradients is not zero; waits for a device."""
    gradients = (parameter.grad for parameter in _parameters(optimizer))
    return any(bool(gradient.detach().any()) for gradient in gradients if gradient is not None)


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]

"""Gradients that are there before a step's backward pass: of the step before, or set to zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .parameters import Models
from .sketch import digest, local_part

_KEEP_OWN = {"FullyShardedDataParallel", "DeepSpeedEngine"}  # sums outside of .grad


class EarlierGradients:
    """Which gradients the script has not set to zero since they were applied."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._stale, self._with_gradient = set[str](), 0

    @property
    def are_all_there(self) -> bool:
        """Whether each gradient was still that of the step before."""
        return bool(self._stale) and len(self._stale) == self._with_gradient

    def clear(self) -> None:
        """A step begins."""
        self._stale, self._with_gradient = set[str](), 0

    def forget_zeroed(self) -> tuple[set[str], bool]:
        """Gradients that the script has set to zero are no part of those to come (a GAN's).

        Their names, and whether none is left, wherever it may be kept.
        """
        named, roots = self._models.named(), self._models.outermost()
        zeroed = {
            name
            for name, value in named.items()
            if value.grad is None or not local_part(value.grad).any()
        }
        self._stale.difference_update(zeroed)
        if any(type(module).__name__ in _KEEP_OWN for root in roots for module in root.modules()):
            return zeroed, False
        for name in zeroed:
            self._models.local.pop(name, None)
        shards = any(hasattr(value, "placements") for value in named.values())
        return zeroed, len(zeroed) == len(named) and not shards

    def compare(self, step_before: Mapping[str, Any]) -> None:
        """Find the parameters whose gradient is the one that the step before has applied."""
        before, applied = step_before["gradients"], set(step_before["applied"])
        trained = [
            (name, value)
            for name, value in self._models.named().items()
            if value.grad is not None and before.get(name) and name in applied
        ]
        self._stale = {
            name
            for name, parameter in trained
            if before[name]["norm"] > 0
            and digest(local_part(parameter.grad)) == before[name]["hash"]
        }
        self._with_gradient = len(trained)


def moved(left: Mapping[str, Any], trained: Mapping[str, Any]) -> dict[str, int]:
    """Hashes of parameters that are not what the last step has left: averaged, or loaded.

    `left`: their sketches after it; `trained`: what optimizers hold, not what FSDP gathers
    meanwhile.
    """
    now = {name: digest(local_part(value)) for name, value in trained.items() if left.get(name)}
    return {name: value for name, value in now.items() if value != left[name]["hash"]}

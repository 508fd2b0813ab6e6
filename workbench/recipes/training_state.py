"""What a checkpoint holds of a model in training: weights and AdamW's state, by the weight's name.

Two sources: an optimizer of torch, whose state is kept per parameter, and DeepSpeed's, which keeps
its own flat partitions (deepspeed_state.py).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import abc
from collections.abc import Callable, Mapping
from typing import Any

import torch
from fp8 import forget_scales, unwrapped
from torch import Tensor

Read = Callable[[dict[str, Tensor]], None]  # fills tensors, by name, with what was saved; in place


class TrainingState(abc.ABC):
    """Weights and optimizer state of this rank; all ranks call each method together."""

    @property
    @abc.abstractmethod
    def names(self) -> frozenset[str]:
        """The weights that this rank has, or has a part of."""

    @abc.abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What this rank saves: NAME for a weight, NAME.exp_avg, NAME.step … for its states."""

    @abc.abstractmethod
    def load(self, read: Read) -> None:
        """Replace all of it by what `read` finds."""

    @abc.abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The weights alone, to be compared: whole, or as DTensors; each on one rank at least."""


class TorchState(TrainingState):
    """Of an optimizer of torch, also of torch's ZeroRedundancyOptimizer.

    `parameters` are this rank's or its parts of them (DTensor); a rank of a pipeline has those of
    its stage.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> None:
        self._parameters, self._optimizer = parameters, optimizer

    @property
    def names(self) -> frozenset[str]:
        """All parameters."""
        return frozenset(self._parameters)

    def tensors(self) -> dict[str, Tensor]:
        """The training's own tensors, not copies."""
        tensors = self.weights()
        # ZeroRedundancyOptimizer steps an optimizer of the weights that are this rank's to update.
        inner: Any = getattr(self._optimizer, "optim", self._optimizer)
        for name, weight in self._parameters.items():
            for key, value in inner.state.get(weight, {}).items():
                tensors[f"{name}.{key}"] = value
        return tensors

    def load(self, read: Read) -> None:
        """Into the tensors as they are; the optimizer makes its own ones first."""
        for weight in self._parameters.values():
            weight.grad = torch.zeros_like(weight)
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        self._optimizer.step()  # changes nothing, but makes the moments to load into
        self._optimizer.zero_grad()
        read(self.tensors())
        forget_scales(self._parameters.values())

    def weights(self) -> dict[str, Tensor]:
        """All parameters, without what torchao wraps around them."""
        return {name: unwrapped(weight) for name, weight in self._parameters.items()}

"""The optimizers of `OPTIMIZERS` that exist in torch or fit in a few lines."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingParameterType=false, reportUnknownParameterType=false, reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from workbench.estimate.simulation.refusal import CannotSimulateError


class Lion(torch.optim.Optimizer):
    """Lion as in lion-pytorch: one momentum, parameters one after the other."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Apply sign(interpolation of momentum and gradient)."""
        del closure
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
            average = state["exp_avg"]
            update = average.clone().mul_(0.9).add(parameter.grad, alpha=0.1).sign_()
            parameter.add_(update, alpha=-1e-4)
            average.mul_(0.99).add_(parameter.grad, alpha=0.01)


class Blockwise(torch.optim.Optimizer):
    """States in few bits with one fp32 maximum per block, updated by one kernel per parameter.

    bitsandbytes: 8 bits, blocks of 256, parameters of fewer than 4,096 elements keep fp32 states;
    paged ones lie in unified memory unless the parameter has fewer than 100,000 elements.
    torchao: 4 bits, blocks of 128.
    """

    def __init__(
        self, parameters: Any, *, moments: int, bits: int, block: int, paged: bool
    ) -> None:
        super().__init__(parameters, {"lr": 1e-4})
        self.moments, self.bits, self.block, self.paged = moments, bits, block, paged
        self.maps: list[Any] = []  # the quantization's levels, shared by all parameters

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make the states that are missing; the kernel itself works in place."""
        del closure
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None and not self.state[parameter]:
                self._begin(parameter)

    def _begin(self, parameter: Any) -> None:
        count = parameter.numel()
        small = count < _SMALLEST_QUANTIZED or self.bits == _FULL_BITS
        prefix = "paged" if self.paged and count >= _SMALLEST_PAGED else "state"
        if not small and not self.maps:
            self.maps = [torch.empty(1 << self.bits) for _ in range(self.moments)]
        for index in range(self.moments):
            size = (count, torch.float32) if small else (-(-count * self.bits // 8), torch.uint8)
            self.state[parameter][f"{prefix}{index}"] = torch.zeros(size[0], dtype=size[1])
            if not small:
                maxima = torch.zeros(-(-count // self.block))
                self.state[parameter][f"absmax{index}"] = maxima


_SMALLEST_QUANTIZED, _SMALLEST_PAGED, _FULL_BITS = 4096, 100_000, 32
_BLOCKWISE: dict[str, tuple[int, int, int]] = {  # moments, bits, elements of a block
    "adamw-8bit": (2, 8, 256),
    "lion-8bit": (1, 8, 256),
    "adamw-4bit": (2, 4, 128),
    "paged-adamw": (2, 32, 256),
    "paged-adamw-8bit": (2, 8, 256),
}


class MuonWithAdamW:
    """Muon for matrices inside the blocks, AdamW for everything else, as its authors use it."""

    def __init__(self, matrices: list[Any], others: list[Any]) -> None:
        self.parts = (
            torch.optim.Muon(matrices, lr=1e-3),
            torch.optim.AdamW(others, lr=1e-4, foreach=True),
        )

    @property
    def state(self) -> dict[Any, Any]:
        """States of both."""
        return {**self.parts[0].state, **self.parts[1].state}

    def step(self) -> None:
        """One step of both."""
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self.parts:
            part.zero_grad()


def build_optimizer(name: str, shards: list[tuple[str, Any, Any]]) -> Any:
    """The optimizer over (name, parameter, local part), with CUDA's defaults made explicit.

    On CUDA torch picks the foreach variants by itself; on fake CPU tensors it must be told.

    Raises:
        CannotSimulateError: it is not built here, or not over sharded parameters.
    """
    parameters = [shard for _, _, shard in shards]
    if not parameters:
        raise CannotSimulateError("no parameter is trained.")
    simple: dict[str, Any] = {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4, foreach=True),
        "adamw-fused": lambda: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-3, foreach=True),
        "sgd-momentum": lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True),
        "lion": lambda: Lion(parameters),
    }
    if name in simple:
        return simple[name]()
    if name in _BLOCKWISE:
        moments, bits, block = _BLOCKWISE[name]
        paged = name.startswith("paged-")
        return Blockwise(parameters, moments=moments, bits=bits, block=block, paged=paged)
    sharded = any(isinstance(parameter, DTensor) for _, parameter, _ in shards)
    if name in {"adafactor", "muon"} and sharded:
        raise CannotSimulateError(f"{name} over sharded parameters.")
    if name == "adafactor":
        from transformers.optimization import Adafactor  # noqa: PLC0415  (slow, rarely needed)

        return Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)
    if name == "muon":
        matrices = [
            v for key, _, v in shards if v.ndim == 2 and "body" in key and "embed" not in key
        ]
        chosen = {id(value) for value in matrices}
        return MuonWithAdamW(matrices, [v for v in parameters if id(v) not in chosen])
    raise CannotSimulateError(f"the optimizer {name!r} is not built here.")


def states_of(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """(tensors of the states, those of them outside the card's allocator).

    Outside are the step counters of optimizers that are not fused, and paged states.
    """
    groups = getattr(optimizer, "param_groups", [{}])
    fused = any(group.get("fused") for group in groups)
    states: list[Any] = []
    host: list[Any] = []
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                outside = key.startswith("paged") or (key == "step" and not fused)
                (host if outside else states).append(value)
    return states, host

"""Weights and AdamW's state of a DeepSpeed engine (ZeRO 1, 2 and 3), by the weight's name.

DeepSpeed keeps fp32 weights and moments as flat partitions, which end in the middle of a weight.
Its own functions put one tensor together on all ranks at a time. Each rank keeps every n-th one in
host memory to write it: a save needs 1/n of the states there, and one tensor on the device.
"""

# DeepSpeed has no types that a strict checker could use, and no public way to make the moments.
# ruff: noqa: SLF001
# pyright: reportMissingTypeStubs=false, reportMissingImports=false, reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from parameter_names import trained_parameters
from torch import Tensor
from training_state import Read, TrainingState

MOMENTS = ("exp_avg", "exp_avg_sq")
_READ_BYTES = 1 << 28  # weights are read in groups of about this size


class DeepSpeedState(TrainingState):
    """Of the engine that Accelerate prepared, with AdamW and without fp16's loss scale."""

    def __init__(self, engine: Any) -> None:
        # Loaded with the engine; not here where there is none.
        from deepspeed.utils import (  # noqa: PLC0415
            safe_get_full_fp32_param,
            safe_get_full_optimizer_state,
        )

        self._get_weight: Any = safe_get_full_fp32_param
        self._get_moment: Any = safe_get_full_optimizer_state
        self._zero = engine.optimizer
        self._parameters: dict[str, Any] = dict(trained_parameters(engine))

    @property
    def names(self) -> frozenset[str]:
        """All parameters: every rank takes part in each."""
        return frozenset(self._parameters)

    def tensors(self) -> dict[str, Tensor]:
        """Copies in host memory of every n-th weight and its moments."""
        copies, (rank, ranks) = dict[str, Tensor](), (dist.get_rank(), dist.get_world_size())
        step = torch.tensor(float(self._adam_states()[0]["step"]))
        for number, (name, weight) in enumerate(self._parameters.items()):
            tensors = {name: self._get_weight(weight)}
            tensors |= {f"{name}.{key}": self._get_moment(weight, key) for key in MOMENTS}
            if number % ranks == rank:
                copies |= {key: value.detach().cpu().clone() for key, value in tensors.items()}
                copies[f"{name}.step"] = step
        return copies

    def load(self, read: Read) -> None:
        """Every rank reads whole tensors, a few at a time, and takes its part of them."""
        self._make_moments()
        sharded = _is_stage_3(self._zero)
        if sharded:
            self._zero.checkpoint_event_prologue()  # lets go of what is gathered
        step = torch.zeros(())
        for group in self._groups():
            tensors = {f"{name}.step": step for name in group}
            for name in group:
                shape = getattr(self._parameters[name], "ds_shape", self._parameters[name].shape)
                tensors |= {key: torch.empty(shape) for key in _tensors_of(name)}
            read(tensors)
            for name in group:
                _put(self._parameters[name], *(tensors[key] for key in _tensors_of(name)))
        for state in self._adam_states():
            is_tensor = isinstance(state["step"], Tensor)
            state["step"] = torch.full_like(state["step"], step.item()) if is_tensor else int(step)
        if sharded:
            self._zero.checkpoint_event_epilogue()
        else:
            self._zero.update_lp_params()

    def weights(self) -> dict[str, Tensor]:
        """The fp32 weights, each on the rank that would write it."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        weights = ((name, self._get_weight(value)) for name, value in self._parameters.items())
        return {
            name: weight for number, (name, weight) in enumerate(weights) if number % ranks == rank
        }

    def _groups(self) -> Iterator[list[str]]:
        """The weights' names in groups that are read together."""
        group, size = list[str](), 0
        for name, weight in self._parameters.items():
            group.append(name)
            size += 12 * getattr(weight, "ds_numel", weight.numel())
            if size > _READ_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _flat_weights(self) -> list[Tensor]:
        """This rank's partitions, as the inner optimizer knows them."""
        groups = self._zero.optimizer.param_groups
        if _is_stage_3(self._zero):
            return list(self._zero.fp32_partitioned_groups_flat)
        return [weight for group in groups for weight in group["params"]]

    def _adam_states(self) -> list[dict[str, Any]]:
        return [self._zero.optimizer.state[weight] for weight in self._flat_weights()]

    def _make_moments(self) -> None:
        """By a step that changes nothing, as in `TorchState.load`."""
        inner, flat = self._zero.optimizer, self._flat_weights()
        before = [weight.grad for weight in flat]
        for group in inner.param_groups:
            group["lr"] = 0.0
        for weight in flat:
            weight.grad = torch.zeros_like(weight)
        if _is_stage_3(self._zero):  # which shows the inner optimizer one partition at a time
            for number, weight in enumerate(flat):
                group = inner.param_groups[self._zero.sub_group_to_group_id[number]]
                group["params"] = [weight]
                inner.step()
                group["params"] = []
        else:
            inner.step()
            self._zero._lazy_init_hp_params_optimizer_state()
        for weight, gradient in zip(flat, before, strict=True):
            weight.grad = gradient


def _tensors_of(name: str) -> list[str]:
    return [name, *(f"{name}.{key}" for key in MOMENTS)]


def _is_stage_3(zero: Any) -> bool:
    return hasattr(zero, "fp32_partitioned_groups_flat")


def _put(weight: Any, value: Tensor, *moments: Tensor) -> None:
    """This rank's part of one whole weight and its moments."""
    from deepspeed.utils import (  # noqa: PLC0415
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
        safe_set_local_optimizer_state,
    )

    if not hasattr(weight, "ds_tensor"):
        safe_set_full_fp32_param(weight, value)
        for key, moment in zip(MOMENTS, moments, strict=True):
            safe_set_full_optimizer_state(weight, moment, key)
        return
    mine = _partition(weight, value)
    safe_set_local_fp32_param(weight, mine)
    weight.ds_tensor.data.copy_(mine)  # what the forward pass gathers
    for key, moment in zip(MOMENTS, moments, strict=True):
        safe_set_local_optimizer_state(weight, _partition(weight, moment), key)


def _partition(weight: Any, value: Tensor) -> Tensor:
    """This rank's part of ZeRO-3's flat weight; the last one is padded with zeros."""
    size, rank = weight.ds_tensor.numel(), dist.get_rank(weight.ds_process_group)
    flat = value.flatten()[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(flat, (0, size - flat.numel()))

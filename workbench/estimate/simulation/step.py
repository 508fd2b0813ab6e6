"""Training steps under the tracker: forward, loss, backward, optimizer, and their phases."""
# ruff: noqa: SLF001 - local tensors and unsharded gradients are private to DTensor and FSDP2
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from workbench.describe import Strategy, Workload
from workbench.estimate.simulation.buckets import Buckets
from workbench.estimate.simulation.build import Trainee
from workbench.estimate.simulation.emulation import CudaBehaviour
from workbench.estimate.simulation.layouts import LOW
from workbench.estimate.simulation.optimizers import build_optimizer, states_of
from workbench.estimate.simulation.support import uses_autocast
from workbench.estimate.simulation.trace import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    INPUTS,
    LOSS_BACKWARD,
    OPTIMIZER,
    OPTIMIZER_STEP,
    PARAMETERS,
)
from workbench.estimate.simulation.tracker import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where in the pipeline a module stands; the whole model is the only stage of one."""

    index: int = 0
    """Position, 0 = with the embedding."""
    count: int = 1
    """Stages in the pipeline."""

    @property
    def first(self) -> bool:
        """Whether it holds the embedding."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it holds the head."""
        return self.index == self.count - 1


class Training:
    """One rank's training job on fake tensors."""

    def __init__(
        self,
        trainee: Trainee,
        workload: Workload,
        strategy: Strategy,
        tracker: Tracker,
        stage: Stage,
    ) -> None:
        self.trainee, self.workload, self.strategy = trainee, workload, strategy
        self.tracker, self.stage = tracker, stage
        self.parameters = [each for each in trainee.parameters() if each.requires_grad]
        trainee.tracker = tracker
        for tensor in (*trainee.parameters(), *trainee.buffers()):
            tracker.add(_local(tensor), PARAMETERS)
        self.shards = local_parameters(trainee)
        self.optimizer = build_optimizer(workload.optimizer, self.shards)
        replicated = strategy.dp_replicate > 1 and strategy.dp_shard == 1
        self.buckets = (
            Buckets(self.parameters, tracker, views=strategy.ddp.bucket_views)
            if replicated
            else None
        )
        self.batch = self._batch()

    def step(self) -> None:
        """One optimizer step with all its micro-batches."""
        for index, action in enumerate(order(self.strategy, self.workload.accumulate, self.stage)):
            self._synchronise(last=index == 2 * self.workload.accumulate - 1)
            if action == "forward":
                self._flying.append(self._forward())
            else:
                self._backward(*self._flying.pop(0))
        self.tracker.trace.enter(OPTIMIZER_STEP)
        for _, parameter, shard in self.shards:
            shard.grad = _local_gradient(parameter)
        shards = [shard for _, _, shard in self.shards]
        torch.nn.utils.clip_grad_norm_(shards, 1.0, foreach=True)
        self.optimizer.step()
        states, host = states_of(self.optimizer)
        self.tracker.mark(states, OPTIMIZER)
        self.tracker.mark(host, OPTIMIZER, host=True)
        for _, parameter, shard in self.shards:
            parameter.grad = shard.grad = None

    _flying: list[tuple[Any, Any, Any]]

    def _batch(self) -> tuple[dict[str, Any], Any]:
        self._flying = []
        workload, model = self.workload, self.workload.model
        shape = (workload.micro_batch, workload.seq_len)
        if model.kind == "vision":
            pixels = (workload.micro_batch, 3, model.image_size, model.image_size)
            inputs = {"pixel_values": torch.empty(pixels)}
            labels = torch.empty(workload.micro_batch, dtype=torch.long)
        else:
            labels = torch.empty(shape, dtype=torch.long)
            inputs = {"input_ids": torch.empty(shape, dtype=torch.long)} if self.stage.first else {}
            if workload.attention_mask:
                inputs["attention_mask"] = torch.empty(shape, dtype=torch.long)
            if self.strategy.sequence_parallel:
                inputs["position_ids"] = torch.empty((1, shape[1]), dtype=torch.long)
        for tensor in (*inputs.values(), *((labels,) if self.stage.last else ())):
            self.tracker.add(tensor, INPUTS)
        return inputs, labels

    def _forward(self) -> tuple[Any, Any, Any]:
        """(what backward starts from, the input that came from another stage, kept logits)."""
        trace = self.tracker.trace
        trace.enter(FORWARD)
        inputs, labels = self.batch
        received = None
        if not self.stage.first:
            received = self._boundary().requires_grad_()
            inputs = inputs | {"inputs_embeds": received}
        with self._precision(), self._emulation(), self._split_loss():
            if self.stage.last:
                result, logits = self.trainee(inputs, labels)
                result = result / self.workload.accumulate
            else:
                result, logits = self.trainee(inputs), None
        return result, received, logits if self.workload.keep_logits else None

    def _backward(self, result: Any, received: Any, logits: Any) -> None:
        trace = self.tracker.trace
        trace.enter(LOSS_BACKWARD if self.stage.last else BACKWARD)
        with self._split_loss():
            if self.stage.last:
                result.backward()
            else:
                torch.autograd.backward(result, torch.empty_like(result))
        del result, received, logits
        grads = [each.grad for each in self.parameters if each.grad is not None]
        self.tracker.mark(grads, GRADIENTS)
        self.tracker.mark(unsharded_gradients(self.trainee), GRADIENTS)

    def _boundary(self) -> Any:
        """The activation that another stage sends."""
        workload, split = self.workload, 1
        if self.strategy.sequence_parallel:
            split = self.strategy.tp
        shape = (workload.micro_batch, workload.seq_len // split, workload.model.hidden)
        low = LOW.get(workload.precision, torch.float32)
        wide = uses_autocast(workload, self.strategy)
        return torch.empty(shape, dtype=torch.float32 if wide else low)

    def _synchronise(self, *, last: bool) -> None:
        if not self.strategy.reduces_once:
            return
        if isinstance(self.trainee, FSDPModule):
            self.trainee.set_requires_gradient_sync(last)
        if self.buckets is not None:
            self.buckets.sync = last

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if not uses_autocast(self.workload, self.strategy):
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype=LOW[self.workload.precision])

    def _emulation(self) -> contextlib.AbstractContextManager[Any]:
        """CUDA's ways where CPU tensors have others."""
        emulates = uses_autocast(self.workload, self.strategy) or self.workload.model.dropout
        return CudaBehaviour() if emulates else contextlib.nullcontext()

    def _split_loss(self) -> contextlib.AbstractContextManager[Any]:
        return loss_parallel() if self.strategy.tp > 1 else contextlib.nullcontext()


def order(strategy: Strategy, micro_batches: int, stage: Stage) -> list[str]:
    """Forward and backward passes of one rank and step, in the schedule's order.

    Without pipeline each backward follows its forward; 1F1B runs ahead by the stages behind.
    """
    ahead = 1
    if stage.count > 1 and strategy.pipeline.schedule == "gpipe":
        ahead = micro_batches
    elif stage.count > 1 and strategy.pipeline.schedule == "1f1b":
        ahead = min(stage.count - stage.index, micro_batches)
    steady = [word for _ in range(micro_batches - ahead) for word in ("backward", "forward")]
    return ["forward"] * ahead + steady + ["backward"] * ahead


def local_parameters(trainee: Trainee) -> list[tuple[str, Any, Any]]:
    """(name, trained parameter, its local part as a parameter of the same storage).

    Optimizers that work element by element need the same memory on local tensors as on DTensors,
    whose sharding propagation would take half of the simulation's time.
    """
    return [
        (name, each, nn.Parameter(_local(each)) if isinstance(each, DTensor) else each)
        for name, each in trainee.named_parameters()
        if each.requires_grad
    ]


def _local(tensor: Any) -> Any:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _local_gradient(parameter: Any) -> Any:
    """The gradient as the optimizer reads it: laid out like its parameter."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return None if gradient is None else _local(gradient)


def watch_loss_backward(trainee: Trainee, tracker: Tracker) -> None:
    """Begin the backward phase when the gradient reaches the last block's output."""

    def reached(_gradient: Any) -> None:
        tracker.trace.enter(BACKWARD)

    def forward_hook(_module: Any, _arguments: Any, output: Any) -> None:
        hidden = output[0]
        if isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(reached)

    trainee.body.register_forward_hook(forward_hook)


def unsharded_gradients(trainee: Trainee) -> list[Any]:
    """Gradients that FSDP keeps whole between micro-batches without reduction."""
    gradients: list[Any] = []
    for module in trainee.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            for parameter in group.fsdp_params if group else ():
                unsharded = getattr(parameter, "_unsharded_param", None)
                gradient_pair = (
                    parameter.unsharded_accumulated_grad,
                    getattr(unsharded, "grad", None),
                )
                gradients += [each for each in gradient_pair if each is not None]
    return gradients


Report = Callable[[float, str], None]
"""Takes (fraction done, what is being done)."""

"""Data parallelism, plain or sharded: whatever `accelerate launch` was told (DDP, FSDP, DeepSpeed).

Every process has the full model to compute with and its own part of the batch. Who keeps which
part of the states between the steps is decided outside; only what is an argument of a constructor
in the script (the options of DDP, the optimizer) comes as a flag.
"""

# Accelerate has no type stubs, so whatever it returns is unknown to a strict checker.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Iterable
from typing import Any

import fp8
import gradient_hooks
import optimizers
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin
from corpus import Share
from gpt_model import GPT, initialise
from gpt_model import loss as cross_entropy
from library_state import prepare
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Batch = tuple[Tensor, Tensor]  # inputs and targets [micro-batch, length]
DDP_FLAGS = (
    *("comm_hook", "bucket_views", "static_graph", "find_unused", "bucket_elements"),
    *("zero_optimizer", "count_bytes"),
)


class AcceleratedModel:
    """The model under DDP, FSDP or DeepSpeed, or alone."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.accelerator = accelerator = Accelerator(
            mixed_precision="no" if options.precision == "fp32" else options.precision,
            gradient_accumulation_plugin=accumulation(options),
            kwargs_handlers=[
                ddp_arguments(options),
                *(fp8.arguments() if options.precision == "fp8" else ()),
            ],
        )
        check_flags(options, accelerator)
        self.device = accelerator.device
        self.share = Share(
            accelerator.process_index, accelerator.num_processes, options.micro_batch
        )
        model = build_model(options, accelerator)
        if options.zero_optimizer:
            model.to(accelerator.device)  # its exchanges stay on the device of its first weight
            optimizer: torch.optim.Optimizer = zero_adamw(model.parameters())
        else:
            optimizer = optimizers.build(options.optimizer, model, options.lr)
        prepared = prepare(accelerator, model, optimizer, options)
        self.model, self.optimizer, self.store = prepared
        if options.precision == "fp8":
            accelerator.print(fp8.description(self.model))
        counts = options.comm_hook or options.count_bytes
        self.traffic = gradient_hooks.register(self.model, options) if counts else None

    def step(self, batches: Iterable[Batch], lr: float) -> list[Tensor]:
        """One optimizer step; its losses stay on the device: reading one would stall the GPU."""
        losses = list[Tensor]()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        for batch in batches:
            with self.accelerator.accumulate(self.model):
                loss = self.loss(batch)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    def loss(self, batch: Batch) -> Tensor:
        """This process's mean loss on `batch`."""
        inputs, targets = batch
        return cross_entropy(self.model(inputs), targets)

    def mean(self, losses: Iterable[Tensor]) -> float:
        """Over the processes too; this waits for the device."""
        return torch.as_tensor(self.accelerator.gather(torch.stack([*losses]))).mean().item()


def build_model(options: argparse.Namespace, accelerator: Accelerator) -> GPT:
    """The model with its first weights, or without where FSDP will send them from rank 0."""
    from_first = os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING") == "true"
    empty = from_first and not accelerator.is_main_process
    with torch.device("meta") if empty else contextlib.nullcontext():
        model = GPT(options.layers, options.hidden, options.heads)
    if empty:  # addresses only, which Accelerate tells weights apart by: no page is ever touched
        model.to_empty(device="cpu")
    else:
        initialise(model, options.hidden, options.seed)
    for block in model.blocks.values():
        if options.recompute == "full":  # FSDP has its own, set from outside
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        if options.compile:
            block.compile()  # one by one: compiled once for all, and FSDP can still shard them
    return model


def accumulation(options: argparse.Namespace) -> GradientAccumulationPlugin:
    """When gradients travel: once per step is less traffic, but FSDP then keeps them whole."""
    sharded = os.environ.get("ACCELERATE_USE_FSDP") == "true"
    often = options.sync_gradients == "micro-batch" or (not options.sync_gradients and sharded)
    return GradientAccumulationPlugin(num_steps=options.accumulate, sync_each_batch=often)


def ddp_arguments(options: argparse.Namespace) -> DistributedDataParallelKwargs:
    """What DDP's constructor is given; nothing else reads it."""
    bucket_mib: float = 25.0
    if options.bucket_elements:
        bucket_mib = 4 * options.bucket_elements / 2**20
    elif options.comm_hook == "powersgd" and not torch.cuda.is_available():
        bucket_mib = 100.0  # two buckets in flight ended in a read error of gloo
    return DistributedDataParallelKwargs(
        bucket_cap_mb=bucket_mib,  # pyright: ignore[reportArgumentType] - torch takes fractions
        gradient_as_bucket_view=options.bucket_views,
        static_graph=options.static_graph,
        find_unused_parameters=options.find_unused,
    )


def check_flags(options: argparse.Namespace, accelerator: Accelerator) -> None:
    """Leave with a sentence if flags were given that what runs would pass over in silence."""
    flags = [flag for flag in DDP_FLAGS if getattr(options, flag)]
    kind = accelerator.distributed_type.value
    unsharded = kind == "NO" or kind.startswith("MULTI_")
    if options.precision == "fp16" and accelerator.device.type == "cpu" and unsharded:
        sys.exit("--precision fp16: on a CPU Accelerate trains in fp32 instead. Use bf16 or fp32.")
    if options.precision == "fp8" and kind == "DEEPSPEED":
        sys.exit("--precision fp8 works with DDP and FSDP2, not DeepSpeed. Use --precision bf16.")
    if flags and not kind.startswith("MULTI_"):
        name = flags[0].replace("_", "-")
        sys.exit(f"--{name} is an option of DDP; this is {kind}. Remove it, or launch as DDP.")


def zero_adamw(weights: Iterable[Tensor]) -> torch.optim.Optimizer:
    """AdamW of which each rank keeps the states of its own weights (ZeRO-1) under DDP."""
    # Its package scripts functions when it is loaded, which takes time and warns: only when asked.
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415

    class ZeroAdamW(ZeroRedundancyOptimizer):
        def state_dict(self) -> dict[str, Any]:
            """Of this rank, ungathered: Accelerate asks when it prepares; saves do not."""
            return torch.optim.Optimizer.state_dict(self)

    return ZeroAdamW(weights, torch.optim.AdamW, betas=(0.9, 0.95), fused=True)

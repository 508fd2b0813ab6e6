"""Tensor parallelism: the matrices of each block are cut, every rank computes with its part.

    torchrun --nproc-per-node 2 tensor_parallel.py --steps 200

A block's two pairs of matrices are cut so that each pair needs one exchange (arXiv 1909.08053):
the first by its outputs (a rank has whole heads, or some channels of the MLP) and the second by its
inputs; the partial sums are then added over the ranks. With --sequence-parallel what lies between
the pairs is cut too, along the sequence: the sum becomes a reduce-scatter and an all-gather, the
same bytes, and the residual stream takes 1/ranks of the memory (arXiv 2205.05198).

model_parallel.py joins this `split` with pipeline, context and data parallelism.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, as in gpt.py
# pyright: reportUnknownMemberType=false, reportPrivateImportUsage=false

import argparse
import os
import sys
import time
from collections.abc import Sequence

from recipe_options import (
    Parser,
    add_gpt,
    add_steps,
    check_positive,
    complete_gpt,
    learning_rate,
    options_or_exit,
)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Train a small GPT with split matrices.", allow_abbrev=False)
    add = parser.add_argument
    add_gpt(parser)
    add("--seq-len", type=int, default=128, help="bytes per sequence")
    add("--micro-batch", type=int, default=8, help="sequences per step, the same on every rank")
    add_steps(parser)
    add("--precision", choices=("fp32", "bf16"), default="fp32")
    add("--log-every", type=int, default=10, help="steps between printed lines")
    add("--tp", type=int, default=int(os.environ.get("WORLD_SIZE", "1")), help="default: all ranks")
    add("--sequence-parallel", action="store_true", help="also split the residual stream")
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"warmup", "seed"})
    complete_gpt(parser, options)
    length = options.seq_len if options.sequence_parallel else 0
    if problem := why_not(options.heads, options.tp, length):
        parser.error(problem)
    options.accumulate, options.minutes = 1, None
    return options


def why_not(heads: int, tp: int, split_length: int) -> str:
    """What stands against these choices, as a sentence; empty if nothing does."""
    if heads % tp:
        return f"{heads} heads cannot be split over --tp {tp} ranks: use a multiple as --heads"
    if split_length % tp:
        return f"sequence parallelism splits {split_length} positions into {tp}: not divisible"
    return ""


if __name__ == "__main__":
    OPTIONS = options_or_exit(parse_options)

import torch
import torch.distributed as dist
from corpus import Share, micro_batch, read_corpus
from gpt_model import GPT, initialise
from gpt_model import loss as cross_entropy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)


def split(model: GPT, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Cut the weights of `model` (or of a pipeline stage of it) over the one-dimensional `mesh`.

    Between the matrices the tensors stay plain ones: [B, L, hidden], the same on every rank, or
    [B, L / ranks, hidden], its own part of the sequence.
    """
    stream = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "head": ColwiseParallel(input_layouts=stream, output_layouts=Replicate()),
        "blocks.*.qkv": ColwiseParallel(input_layouts=stream),
        "blocks.*.mix": RowwiseParallel(output_layouts=stream),
        "blocks.*.up": ColwiseParallel(input_layouts=stream),
        "blocks.*.down": RowwiseParallel(output_layouts=stream),
    }
    for end in ("embedding", "head"):
        if getattr(model, end) is None:  # another pipeline stage has it
            del plan[end]
    parallelize_module(model, mesh, plan)


def start() -> torch.device:
    """Join the other ranks; a rank alone needs no launcher."""
    on_gpu = torch.cuda.is_available() and os.environ.get("ACCELERATE_USE_CPU", "") != "true"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device if on_gpu else torch.device("cpu")


def clip(parameters: Sequence[nn.Parameter], limit: float = 1.0) -> None:
    """By the norm of the whole gradient: every rank's part of a cut matrix counts."""
    norm = nn.utils.get_total_norm(
        [weight.grad for weight in parameters if weight.grad is not None]
    )
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    nn.utils.clip_grads_with_norm_(parameters, limit, norm)


def main(options: argparse.Namespace) -> None:
    """Train with tensor parallelism alone: all ranks see the same batch."""
    device = start()
    if dist.get_world_size() != options.tp:
        sys.exit(f"tensor_parallel.py: --tp {options.tp}, but {dist.get_world_size()} ranks run")
    mesh = init_device_mesh(device.type, (options.tp,), mesh_dim_names=("tp",))
    model = GPT(options.layers, options.hidden, options.heads).to(device)
    initialise(model, options.hidden, options.seed)
    split(model, mesh, sequence_parallel=options.sequence_parallel)
    weights = list(model.parameters())
    local = sum(weight.to_local().numel() for weight in weights if isinstance(weight, DTensor))
    main_rank = dist.get_rank() == 0
    if main_rank:
        print(f"{options.parameters:,} parameters, {local:,} of them on each of {options.tp} ranks")
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), fused=True)
    data, _ = read_corpus(options.seq_len)
    share = Share(0, 1, options.micro_batch)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16")
    since = time.perf_counter()
    for step in range(options.steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, options)
        key = 1_000_003 * options.seed + step
        batch = micro_batch(data, share, options.seq_len, key=key, index=0, of=1)
        inputs, targets = (part.to(device) for part in batch)
        with autocast:
            loss = cross_entropy(model(inputs), targets)
        loss.backward()
        clip(weights)
        optimizer.step()
        optimizer.zero_grad()
        if main_rank and (step + 1) % options.log_every == 0:
            speed = inputs.numel() * options.log_every / (time.perf_counter() - since)
            print(f"step {step + 1:6d} | loss {loss.item():.4f} | {speed:,.0f} tokens/s")
            since = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

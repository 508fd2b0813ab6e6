"""The same pipeline as pipeline.py, by DeepSpeed's PipelineModule and its 1F1B engine.

    torchrun --nproc-per-node 4 deepspeed_pipeline.py --pp 2 --steps 200

Ranks beyond --pp are data-parallel copies of each stage. DeepSpeed deals out a list of layers,
moves activations and gradients, reduces, clips and steps: `train_batch` is the whole loop, and
returns the mean loss on every rank. Needs torch, deepspeed and the files beside it.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, as in gpt.py
# DeepSpeed has no types that a strict checker could use.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportMissingImports=false, reportUntypedBaseClass=false

import argparse
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recipe_options import Parser, add_gpt, add_steps, check_positive, complete_gpt, learning_rate


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Train a small GPT in DeepSpeed's pipeline.", allow_abbrev=False)
    add = parser.add_argument
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    add_gpt(parser)
    parser.set_defaults(layers=4)
    add("--seq-len", type=int, default=128, help="bytes per sequence")
    add("--micro-batch", type=int, default=2, help="sequences per micro-batch and copy")
    add("--accumulate", type=int, default=8, help="micro-batches per optimizer step")
    add_steps(parser)
    add("--precision", choices=("fp32", "bf16"), default="fp32")
    add("--pp", type=int, default=ranks, help="stages; default: as many as ranks")
    add("--schedule", choices=("1f1b",), default="1f1b", help="DeepSpeed's engine has this one")
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"warmup", "seed"})
    complete_gpt(parser, options)
    if options.layers < options.pp:
        parser.error(f"--layers {options.layers} cannot make --pp {options.pp} stages")
    if "WORLD_SIZE" in os.environ and ranks % options.pp:
        parser.error(f"--pp {options.pp} does not divide the {ranks} ranks that were started")
    options.minutes = None
    return options


if __name__ == "__main__":
    try:
        OPTIONS = parse_options()
        if os.environ.get("ACCELERATE_USE_CPU") == "true":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when deepspeed is imported
        importlib.import_module("deepspeed")
    except ValueError as error:
        print(f"{Path(__file__).name}: error: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError:
        print(
            f"deepspeed is not installed: {sys.executable} -m pip install deepspeed",
            file=sys.stderr,
        )
        sys.exit(2)

import torch
from corpus import Share, micro_batch, read_corpus
from deepspeed import init_distributed, initialize
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import LayerSpec, PipelineModule
from gpt_model import GPT, initialise
from gpt_model import loss as cross_entropy
from torch import Tensor


class Piece(GPT):
    """One block as a layer of DeepSpeed's list; the first has the embedding, the last the head."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        super().__init__(options.layers, options.hidden, options.heads, [number])
        initialise(self, options.hidden, options.seed)
        for weight in self.parameters():
            # Else the norm for clipping counts stage 0 alone (deepspeed 0.19, clip_grad_norm_).
            setattr(weight, "model_parallel", True)  # noqa: B010 - no attribute of Parameter


def start() -> str:
    """Join the other ranks; the device."""
    for name, default in {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}.items():
        os.environ.setdefault(name, str(default))
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "0")
    accelerator: Any = get_accelerator()
    device = accelerator.device_name()
    if device == "cpu":
        # Else its CPU backend compiles a shared-memory all-reduce for a minute, or dies without
        # g++ and ninja; gloo does the same work.
        backend: Any = importlib.import_module("deepspeed.comm.torch")
        backend.build_shm_op = lambda: None
    init_distributed("gloo" if device == "cpu" else "nccl", verbose=False)
    return device


def engine_of(options: argparse.Namespace) -> Any:
    """The model's layers, dealt out evenly, and the engine that trains them."""
    layers = [LayerSpec(Piece, options, number) for number in range(options.layers)]
    model = PipelineModule(
        layers, num_stages=options.pp, loss_fn=cross_entropy, partition_method="uniform"
    )
    settings = {
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "gradient_accumulation_steps": options.accumulate,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": options.precision == "bf16"},
        "steps_per_print": 10**9,  # we print ourselves
    }
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=True)
    engine, *_ = initialize(model=model, optimizer=optimizer, config=settings)
    return engine


def micro_batches(
    data: Tensor, share: Share, step: int, options: argparse.Namespace
) -> Iterator[tuple[Tensor, Tensor]]:
    """This copy's micro-batches of a step; the first stage reads inputs, the last the targets."""
    key, count = 1_000_003 * options.seed + step, options.accumulate
    for index in range(count):
        yield micro_batch(data, share, options.seq_len, key=key, index=index, of=count)


def main(options: argparse.Namespace) -> None:
    """Train; every rank knows the mean loss, rank 0 says it."""
    device = start()
    engine = engine_of(options)
    grid = engine.grid
    copies = grid.get_data_parallel_world_size()
    share = Share(grid.get_data_parallel_rank(), copies, options.micro_batch)
    data = read_corpus(options.seq_len)[0].to(engine.device if device != "cpu" else "cpu")
    tokens = options.micro_batch * options.accumulate * copies * options.seq_len
    since = time.perf_counter()
    for step in range(options.steps):
        engine.optimizer.param_groups[0]["lr"] = learning_rate(step, options)
        loss = engine.train_batch(micro_batches(data, share, step, options))
        if engine.global_rank == 0 and (step + 1) % 10 == 0:
            speed = 10 * tokens / (time.perf_counter() - since)
            print(f"step {step + 1:6d} | loss {loss.item():.4f} | {speed:,.0f} tokens/s")
            since = time.perf_counter()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

"""Pipeline parallelism: each rank holds some blocks of the GPT and passes activations on.

    torchrun --nproc-per-node 2 pipeline.py --schedule 1f1b --steps 200

A step's batch is cut into --accumulate micro-batches that follow each other through the stages; the
schedule says in which order a rank runs their forward and backward passes, and so how long it waits
(the bubble). Needs torch and the files beside it; gpt.py --pp N uses it beside other splits.
"""

# ruff: noqa: E402, SLF001 - the command line is read before torch is loaded, as in gpt.py;
# the order of passes of our own (Naive) is written in terms that torch keeps private so far.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence

from recipe_options import (
    Parser,
    add_gpt,
    add_steps,
    check_positive,
    complete_gpt,
    learning_rate,
    options_or_exit,
)

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble", "zbv", "naive")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Train a small GPT in a pipeline.", allow_abbrev=False)
    add = parser.add_argument
    add_gpt(parser)
    parser.set_defaults(layers=4)
    add("--seq-len", type=int, default=128, help="bytes per sequence")
    add("--micro-batch", type=int, default=2, help="sequences per micro-batch")
    add("--accumulate", type=int, default=8, help="micro-batches per optimizer step")
    add_steps(parser)
    add("--pp", type=int, default=int(os.environ.get("WORLD_SIZE", "1")), help="default: all ranks")
    add("--schedule", choices=SCHEDULES, default="1f1b", help="naive: one stage runs at a time")
    add("--virtual-stages", type=int, help="pieces of the model per rank; zbv: 2, else 1")
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"warmup", "seed"})
    complete_gpt(parser, options)
    options.virtual_stages = options.virtual_stages or (2 if options.schedule == "zbv" else 1)
    if problem := why_not(options):
        parser.error(problem)
    options.precision, options.minutes = "fp32", None
    return options


def why_not(options: argparse.Namespace) -> str:
    """What stands against these choices, as a sentence; empty if nothing does."""
    pp, chunks, count = options.pp, options.virtual_stages, options.accumulate
    name = options.schedule
    rounds = max(1, count // pp)  # with chunks torch deals the micro-batches out in equal rounds
    dealt = name in {"interleaved", "zero-bubble"} or (name == "1f1b" and chunks > 1)
    if options.layers < pp * chunks:
        return f"--layers {options.layers} cannot make {pp} ranks x {chunks} pieces"
    if name == "zbv" and chunks != 2:
        return f"zbv places two pieces on each rank, not --virtual-stages {chunks}"
    if dealt and count % rounds:
        return f"{name} on {pp} ranks needs a multiple of {pp} as --accumulate, not {count}"
    return ""


if __name__ == "__main__":
    OPTIONS = options_or_exit(parse_options)

import torch
import torch.distributed as dist
from corpus import Share, micro_batch, read_corpus
from gpt_model import GPT, initialise
from gpt_model import loss as cross_entropy
from tensor_parallel import start
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules, stage

Loss = Callable[[Tensor, Tensor], Tensor]
Stages = list[stage._PipelineStageBase]
_F, _B = schedules._ComputationType.FORWARD, schedules._ComputationType.FULL_BACKWARD
_STEP = inspect.signature(pipelining.ScheduleGPipe.step).parameters
_QUIET = {"return_outputs": False} if "return_outputs" in _STEP else {}  # torch 2.9 has no such
_WAY_BACK = {"FULL_BACKWARD", "SEND_B", "RECV_B", "WAIT_SEND_B", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"}


def stages_of(pp: int, virtual_stages: int, schedule: str) -> list[list[int]]:
    """For each rank the numbers of its stages: dealt in turn (rank 0: 0, pp, 2 pp …).

    zbv goes down one arm of a V and up the other, so that rank 0 has the first and the last.
    """
    if schedule == "zbv":
        return [[rank, 2 * pp - 1 - rank] for rank in range(pp)]
    return [[chunk * pp + rank for chunk in range(virtual_stages)] for rank in range(pp)]


def blocks_of(layers: int, pp: int, virtual_stages: int, schedule: str) -> list[list[list[int]]]:
    """For each rank the blocks of each of its stages, in the order of `stages_of`.

    As even as can be: the first stages take one block more where the number does not divide.
    """
    share, extra = divmod(layers, pp * virtual_stages)
    starts = [number * share + min(number, extra) for number in range(pp * virtual_stages + 1)]
    blocks = [list(range(*between)) for between in itertools.pairwise(starts)]
    return [[blocks[block] for block in own] for own in stages_of(pp, virtual_stages, schedule)]


class Naive(schedules._PipelineScheduleRuntime):
    """A micro-batch goes through all stages and back before the next: one rank works at a time.

    What model parallelism is without a pipeline (a device map); here to be seen and measured.
    """

    def __init__(self, stages: Stages, count: int, loss: Loss, dealt: list[list[int]]) -> None:
        super().__init__(stages, count, loss)
        self.pipeline_order = {
            rank: [
                schedules._Action(stage, kind, index)
                for index in range(count)
                for kind, order in ((_F, sorted(own)), (_B, sorted(own, reverse=True)))
                for stage in order
            ]
            for rank, own in enumerate(dealt)
        }
        self._prepare_schedule_with_comms(self.pipeline_order)

    def without_backward(self) -> "Naive":
        """The same without the way back: torch's own schedules cannot leave it out in a V."""
        for rank, order in self.pipeline_order_with_comms.items():
            there = [action for action in order if action.computation_type.name not in _WAY_BACK]
            self.pipeline_order_with_comms[rank] = there
        return self


def schedule_of(
    name: str, stages: Stages, count: int, loss: Loss, dealt: list[list[int]]
) -> schedules._PipelineSchedule:
    """The schedule called `name` for `count` micro-batches; the loss is the mean over them.

    With one stage per rank zero-bubble is ZB1P of arXiv 2401.10241: the weights' gradients are
    computed late, where the rank would wait. With more, gpipe is breadth first, 1f1b interleaved.
    """
    if name == "naive":
        return Naive(stages, count, loss, dealt)
    if name == "1f1b" and len(stages) == 1 and count < len(dealt):
        name = "gpipe"  # too few to alternate before the first is back; torch refuses the name
    single = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
    if len(stages) == 1 and name in single:
        return single[name](stages[0], count, loss)
    several = {
        "gpipe": pipelining.ScheduleLoopedBFS,
        "1f1b": pipelining.ScheduleInterleaved1F1B,
        "interleaved": pipelining.ScheduleInterleaved1F1B,
        "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
        "zbv": pipelining.ScheduleZBVZeroBubble,
    }
    return several[name](stages, count, loss)


class Pipeline:
    """This rank's stages of one pipeline.

    `modules` pass one tensor of constant shape on; `numbers` are their places in the model, see
    `stages_of`; `pp_mesh_group` has this pipeline's ranks in order. Data parallelism is the
    caller's: modules under `fully_shard` reduce their gradients once, after the last micro-batch.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        numbers: Sequence[int],
        *,
        pp_mesh_group: dist.ProcessGroup | None,
        num_stages: int,
        schedule: str,
        micro_batches: int,
        loss_function: Loss,
        device: torch.device,
    ) -> None:
        for module in modules:
            if isinstance(module, FSDPModule) and schedule in {"zero-bubble", "zbv"}:
                module.set_reshard_after_forward(False)  # else torch 2.13 loses gradients, silently
        ranks = dist.get_world_size(pp_mesh_group)
        dealt = stages_of(ranks, num_stages // ranks, schedule)

        def stages() -> Stages:
            return [
                pipelining.PipelineStage(module, number, num_stages, device, group=pp_mesh_group)
                for module, number in zip(modules, numbers, strict=True)
            ]

        self.has_first, self.has_last = 0 in numbers, num_stages - 1 in numbers
        self._train = schedule_of(schedule, stages(), micro_batches, loss_function, dealt)
        self._forward = Naive(stages(), 1, loss_function, dealt).without_backward()

    def train_step(self, inputs: Tensor | None, targets: Tensor | None) -> list[Tensor]:
        """Forward and backward of all micro-batches [m x B, L]; gradients of their mean loss.

        Inputs are read where the first stage is, targets where the last is, and the losses of the
        micro-batches are returned there; elsewhere nothing is.
        """
        return self._run(self._train.step, inputs, targets)

    def evaluate(self, inputs: Tensor | None, targets: Tensor | None) -> list[Tensor]:
        """The loss of one micro-batch, as `train_step` gives it, without gradients."""
        with torch.no_grad():
            return self._run(self._forward.eval, inputs, targets)

    def _run(
        self, run: Callable[..., object], inputs: Tensor | None, targets: Tensor | None
    ) -> list[Tensor]:
        losses, target = list[Tensor](), targets if self.has_last else None
        run(*([inputs] * self.has_first), target=target, losses=losses, **_QUIET)
        return [loss.detach() for loss in losses]


def clip(parameters: Sequence[nn.Parameter], limit: float = 1.0) -> None:
    """By the norm of the full model's gradient: each rank has only its stages' part."""
    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    dist.all_reduce(square := nn.utils.get_total_norm(gradients).square())
    nn.utils.clip_grads_with_norm_(parameters, limit, square.sqrt())


def main(options: argparse.Namespace) -> None:
    """Train; the rank with the last stage knows the loss and says it."""
    device = start()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks != options.pp:
        sys.exit(f"pipeline.py: --pp {options.pp}, but {ranks} ranks run: each is one stage")
    layout = (ranks, options.virtual_stages, options.schedule)
    modules = list[nn.Module]()
    for blocks in blocks_of(options.layers, *layout)[rank]:
        modules.append(GPT(options.layers, options.hidden, options.heads, blocks).to(device))
        initialise(modules[-1], options.hidden, options.seed)
    pipeline = Pipeline(
        modules,
        stages_of(*layout)[rank],
        pp_mesh_group=None,
        num_stages=ranks * options.virtual_stages,
        schedule=options.schedule,
        micro_batches=options.accumulate,
        loss_function=cross_entropy,
        device=device,
    )
    weights = [weight for module in modules for weight in module.parameters()]
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), fused=True)
    data, _ = read_corpus(options.seq_len)
    share = Share(0, 1, options.micro_batch * options.accumulate)
    since = time.perf_counter()
    for step in range(options.steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, options)
        key = 1_000_003 * options.seed + step
        inputs, targets = micro_batch(data, share, options.seq_len, key=key, index=0, of=1)
        losses = pipeline.train_step(inputs.to(device), targets.to(device))
        clip(weights)
        optimizer.step()
        optimizer.zero_grad()
        if losses and (step + 1) % 10 == 0:
            loss = torch.stack(losses).mean().item()
            speed = targets.numel() * 10 / (time.perf_counter() - since)
            print(f"step {step + 1:6d} | loss {loss:.4f} | {speed:,.0f} tokens/s")
            since = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

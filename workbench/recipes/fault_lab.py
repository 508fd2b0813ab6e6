"""A training that breaks on request: what FaultLab and the notebook "when it breaks" start.

    accelerate launch --num_processes 2 fault_lab.py --steps 400

Before each step every rank reads ``$WORKBENCH_RUN_DIR/control/fault.json``; the rank that it names
does what it says, for real: ``{"fault": "straggler", "rank": 1, "ms": 100}``. `FAULTS` has all of
them. Without the file, or outside a run, it is an ordinary small training with checkpoints.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, as in the other recipes
# Accelerate has no type stubs, so whatever it returns is unknown to a strict checker.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from recipe_options import Parser, check_positive, local_folder, options_or_exit

LASTING = {
    "straggler": "this rank computes for so many ms longer in every step",
    "slow-loader": "this rank's data arrives so many ms later in every step",
}
ONCE = {
    "nan": "the loss of this rank is NaN for one step",
    "hang": "this rank never enters the next backward pass",
    "exception": "this rank raises an error",
    "out-of-memory": "this rank asks for more memory than any machine has",
    "disk-full": "the disk is full in the next checkpoint",
}
FAULTS = LASTING | ONCE
_HUGE_BYTES = 1 << 50


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ValueError if it cannot be."""
    home = Path(os.environ.get("WORKBENCH_RUN_DIR", ""), "checkpoints")
    parser = Parser(description="Train, and inject faults on request.", allow_abbrev=False)
    add = parser.add_argument
    add("--steps", type=int, default=400, help="optimizer steps")
    add("--step-ms", type=float, default=40.0, help="minimum compute time of a step on each rank")
    add("--batch", type=int, default=32, help="examples per process")
    add("--lr", type=float, default=3e-3)
    add("--seed", type=int, default=0, help="seed of the weights and the data order")
    add("--checkpoint-every", type=int, default=50, help="steps between checkpoints; 0: never")
    add("--checkpoint-dir", type=local_folder, default=home, help=f"their folder; default: {home}")
    add("--resume", type=local_folder, metavar="DIR", help="resume from this checkpoint")
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"seed", "checkpoint_every", "step_ms"})
    return options


if __name__ == "__main__":
    OPTIONS = options_or_exit(parse_options)

import checkpoint_files
import torch
from accelerate import Accelerator
from ending import end
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

Batch = tuple[Tensor, Tensor]  # inputs [batch, 32] and targets [batch, 1]


class Faults:
    """What this rank is asked to do wrong now."""

    def __init__(self, rank: int) -> None:
        home = os.environ.get("WORKBENCH_RUN_DIR")
        self._file = Path(home, "control", "fault.json") if home else None
        self._rank = rank

    def milliseconds(self, name: str) -> float:
        """How long a lasting fault holds this rank up in this step; 0: not at all."""
        fault = self._requested()
        return float(fault.get("ms", 100.0)) if fault.get("fault") == name else 0.0

    def take(self, *names: str) -> str | None:
        """The single fault that is due here, of these; it will not be due again."""
        name = str(self._requested().get("fault"))
        if self._file is None or name not in names:
            return None
        self._file.unlink(missing_ok=True)
        print(f"fault_lab: {name}, {FAULTS[name]}", flush=True)
        return name

    def _requested(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            fault: dict[str, Any] = json.loads(self._file.read_bytes()) if self._file else {}
            return fault if fault.get("rank", 1) == self._rank else {}
        return {}


class Problems(IterableDataset[Batch]):
    """Endless examples: a function of seed, step and rank, so a resumed run sees the same ones."""

    def __init__(self, options: argparse.Namespace, first: int, rank: int, faults: Faults) -> None:
        self._options, self._first, self._rank, self._faults = options, first, rank, faults

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the steps from the first on."""
        step = self._first
        while True:
            time.sleep(self._faults.milliseconds("slow-loader") / 1000)
            seed = (self._options.seed * 1_000_003 + step) * 64 + self._rank
            generator = torch.Generator().manual_seed(seed)
            inputs = torch.randn(self._options.batch, 32, generator=generator)
            yield inputs, inputs.sum(1, keepdim=True).div(4).tanh()
            step += 1


def wait_for_ever() -> NoReturn:
    """What a rank does that has lost the others."""
    while True:
        threading.Event().wait()


def break_down(name: str) -> None:
    """End or freeze this rank as asked."""
    if name == "hang":
        wait_for_ever()
    if name == "exception":
        raise ValueError("label 7 is out of range: the model has 4 classes")
    if name == "out-of-memory":
        torch.empty(_HUGE_BYTES, dtype=torch.uint8)


def forward(model: torch.nn.Module, batch: Batch, faults: Faults, step_ms: float) -> Tensor:
    """The loss, after as much time as a step of this rank takes."""
    time.sleep((step_ms + faults.milliseconds("straggler")) / 1000)
    inputs, targets = batch
    loss = (model(inputs) - targets).square().mean()
    return loss * float("nan") if faults.take("nan") else loss


def save(accelerator: Accelerator, home: Path, step: int, faults: Faults) -> None:
    """All that a resumed run needs, under its name when it is whole; a full disk ends the run."""
    partial = home / f"{checkpoint_files.PARTIAL}{step:08d}"
    if accelerator.is_main_process:
        partial.mkdir(parents=True, exist_ok=True)
        about = partial / "about.json"
        if faults.take("disk-full"):
            about.symlink_to("/dev/full")  # the kernel refuses each write to it: ENOSPC
        about.write_text(json.dumps({"step": step, "ranks": accelerator.num_processes}))
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        world = accelerator.num_processes
        checkpoint_files.seal(partial, step=step, world_size=world, kind="recipe")
        checkpoint_files.publish(partial, home / checkpoint_files.STEP.format(step))
    accelerator.wait_for_everyone()  # it is not looked for before it has its name


def first_step(checkpoint: Path | None) -> int:
    """Optimizer steps done in `checkpoint`; leaves with a sentence where it is not whole."""
    if checkpoint is None:
        return 0
    problem = checkpoint_files.why_broken(checkpoint)
    step = checkpoint_files.step_of(checkpoint)
    if problem or step is None:
        sys.exit(f"--resume {checkpoint}: {problem or 'its name is not step-00000100'}")
    return step


def main(options: argparse.Namespace) -> None:
    """Train to --steps from the checkpoint, if any."""
    accelerator = Accelerator()
    rank, say = accelerator.process_index, accelerator.print
    first = first_step(options.resume)
    faults = Faults(rank)
    torch.manual_seed(options.seed)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    model, optimizer = accelerator.prepare(model, optimizer)
    if options.resume:
        accelerator.load_state(str(options.resume))
    say(f"{accelerator.num_processes} processes, from step {first}")
    loader = iter(DataLoader(Problems(options, first, rank, faults), batch_size=None))
    for step in range(first + 1, options.steps + 1):
        inputs, targets = (part.to(accelerator.device) for part in next(loader))
        break_down(faults.take("hang", "exception", "out-of-memory") or "")
        loss = forward(model, (inputs, targets), faults, options.step_ms)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            say(f"step {step:6d} | loss {loss.item():.4f}")
        if options.checkpoint_every and step % options.checkpoint_every == 0:
            save(accelerator, options.checkpoint_dir, step, faults)
    del model, optimizer
    end(accelerator)


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

"""When a recipe saves, under which name, and which checkpoints it keeps."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
import argparse
import math
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_files
import torch
from accelerate import Accelerator
from dcp_files import CheckpointError
from library_state import Library, check_format
from portable import Portable


class Alarm:
    """Rings on all ranks at the same step, by rank 0's clock.

    Asking rank 0 makes a GPU wait, so the next time to ask is half-way to the expected end.
    """

    def __init__(self, accelerator: Accelerator, seconds: float | None, step: int) -> None:
        self._accelerator = accelerator
        self.wind(seconds, step)

    def wind(self, seconds: float | None, step: int) -> None:
        """Ring `seconds` after now; None: never."""
        self._seconds, self._first, self._ask = seconds, step, step + 1
        self._since = time.perf_counter()

    def rings(self, step: int) -> bool:
        """Whether it is time; every rank asks after each step."""
        if self._seconds is None or step < self._ask:
            return False
        elapsed = max(1e-9, time.perf_counter() - self._since)
        left = (self._seconds - elapsed) * (step - self._first) / elapsed
        mine = torch.tensor([left], device=self._accelerator.device)
        left = torch.as_tensor(self._accelerator.gather(mine))[0].item()
        self._ask = step + int(min(max(1, left / 2), 50))
        return left <= 0


class Checkpoints:
    """Continues the given checkpoint, then saves every so many steps or minutes.

    A save that fails is reported and does not end the run.

    A folder is written as ``partial-…`` and gets its name when it is complete, with its manifest
    (checkpoint_files.py): a process that dies in between leaves nothing that looks whole.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        accelerator: Accelerator,
        store: Portable | Library,
    ) -> None:
        self.options, self.accelerator, self.store = options, accelerator, store
        # Whoever asks Accelerate to save (the workbench's graceful stop) gets the same format.
        accelerator.save_state = self._save_from_outside
        self._written: Callable[..., bool] | None = None  # of the save that is under way
        checkpoint: Path | None = getattr(options, "checkpoint", None)  # see with_checkpoint
        self.first = int(checkpoint.name.removeprefix("step-")) if checkpoint else 0
        """Optimizer steps that lie behind the checkpoint which is continued."""
        self._step = self.first
        self._cost_seconds = 1.0  # what a save holds the training up; measured at each
        self._alarm = Alarm(accelerator, self._interval(), self.first)
        if checkpoint:
            self.load(checkpoint)

    def _interval(self) -> float | None:
        """Seconds from one save to the next."""
        if self.options.checkpoint_auto:  # Young 1974, doi 10.1145/361147.361115: sqrt(2 C M)
            return math.sqrt(2 * self._cost_seconds * 3600 * self.options.checkpoint_auto)
        return 60 * self.options.checkpoint_minutes if self.options.checkpoint_minutes else None

    def due(self, step: int) -> bool:
        """Whether to save after this step; every rank asks after each."""
        if self._written and self._is_written(wait=False):
            self._written = None
        every = self.options.checkpoint_every
        return self._alarm.rings(step) or bool(every and step % every == 0)

    def save(self, step: int, loss: float | None = None) -> None:
        """Save now, or begin to (--checkpoint-async); `loss` is what --keep-best goes by."""
        self.wait()
        since, folder = time.perf_counter(), self._partial(step)
        self._step = step
        commit = self._commit(step, loss)
        if self.options.checkpoint_async and isinstance(self.store, Portable):
            self._written = self._begin(folder, commit)
        else:
            self._saved(lambda: self.store.save(folder, commit))
        self._cost_seconds = time.perf_counter() - since
        self._alarm.wind(self._interval(), step)

    def _begin(self, folder: Path, commit: Callable[[], None]) -> Callable[..., bool] | None:
        assert isinstance(self.store, Portable)
        store, begun = self.store, list[Callable[..., bool]]()
        self._saved(lambda: begun.append(store.save_async(folder, commit)))
        return begun[0] if begun else None

    def wait(self) -> None:
        """Until a save that is under way has ended."""
        if self._written:
            self._is_written(wait=True)
            self._written = None

    def close(self) -> None:
        """Wait, and let go of the model: it must not outlive the process group, see ending.py."""
        self.wait()
        vars(self.accelerator).pop("save_state", None)

    def load(self, folder: Path) -> None:
        """Continue from `folder`; leaves with a sentence where its format does not fit."""
        check_format(self.store, folder)
        self.store.load(folder)

    def _is_written(self, *, wait: bool) -> bool:
        assert self._written
        written, done = self._written, list[bool]()
        return not self._saved(lambda: done.append(written(wait=wait))) or done[0]

    def _saved(self, save: Callable[[], object]) -> bool:
        """Whether it went well; if not, say so loudly and clean up: the training is worth more."""
        try:
            save()
        except CheckpointError as error:
            if self.accelerator.is_main_process:
                shutil.rmtree(self._partial(self._step), ignore_errors=True)
                left = checkpoint_files.complete_in(self.options.checkpoint_dir)
                newest = (
                    (f"the newest complete one is {left[0]}")
                    if left
                    else ("no other checkpoint exists")
                )
                print(
                    f"CHECKPOINT NOT SAVED at step {self._step}: {error}. Training continues; "
                    f"{newest}.",
                    file=sys.stderr,
                    flush=True,
                )
            return False
        return True

    def _partial(self, step: int) -> Path:
        return self.options.checkpoint_dir / f"{checkpoint_files.PARTIAL}{step:08d}"

    def _commit(self, step: int, loss: float | None) -> Callable[[], None]:
        """What one rank does when all have written: seal, name, and drop what is not kept."""
        options, partial = self.options, self._partial(step)
        about = {
            "world_size": self.accelerator.num_processes,
            "kind": "recipe",
            "strategy": self.store.record.get("strategy"),
            "loss": loss if loss is not None and math.isfinite(loss) else None,
        }

        def commit() -> None:
            checkpoint_files.seal(partial, step=step, **about)
            final = partial.with_name(checkpoint_files.STEP.format(step))
            checkpoint_files.publish(partial, final)
            limits = options.keep_last, options.keep_best
            checkpoint_files.prune(partial.parent, *limits, step=step)

        return commit

    def _save_from_outside(self, output_dir: Any = None, *_: Any, **__: Any) -> Path:
        """As Accelerator.save_state: who asks gives the folder its name; a failure raises."""
        self.wait()
        folder = Path(output_dir or self.options.checkpoint_dir / "saved")
        self.store.save(folder)
        return folder

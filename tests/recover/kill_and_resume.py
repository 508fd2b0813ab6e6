"""Kills the embedded recipe at random moments, resumes it each time, and compares the end.

    python -m tests.recover.kill_and_resume --cycles 100 --seed 1

Every cycle starts two ranks with ``--resume latest``, waits for a random moment (every third time
for one inside a save) and sends SIGKILL to the launcher and all ranks. At last the run is let to its
end: its weights must be those of a run that nobody disturbed, to the last bit.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.recipes import checkpoint_files, recipes
from workbench.store import processes

from .launching import argv, environment

EVERY = 3  # steps from one checkpoint to the next
STEPS_PER_CYCLE = 24
SHAPE = (
    *("--layers", "1", "--hidden", "32", "--seq-len", "16", "--micro-batch", "2"),
    *("--warmup", "2", "--eval-every", "0", "--log-every", "1", "--fingerprint"),
)
START_SECONDS = 120.0


@dataclass
class Tally:
    """What happened."""

    fingerprint: str = ""
    undisturbed: str = ""
    kills: int = 0
    in_a_save: int = 0
    lost: list[int] = field(default_factory=list[int])
    """Steps repeated after each kill."""
    wrong_losses: int = 0
    """Steps whose printed loss is not that of the undisturbed run."""
    left: int = 0
    """Processes that outlived their kill."""


class Training:
    """The recipe on two ranks, started from the newest whole checkpoint."""

    def __init__(self, folder: Path, steps: int, *, saving: bool) -> None:
        self.checkpoints = folder / "checkpoints"
        arguments = [*SHAPE, "--steps", str(steps)]
        if saving:
            arguments += ["--checkpoint-every", str(EVERY), "--keep-last", "3"]
            arguments += ["--checkpoint-dir", str(self.checkpoints), "--resume", "latest"]
        self.log = folder / f"log-{uuid.uuid4().hex}"
        self.marker = uuid.uuid4().hex
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                argv(recipes()["gpt"].path, arguments, "ddp2", 2, folder),
                env=environment(WORKBENCH_RUN_ID=self.marker),
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def losses(self) -> dict[int, str]:
        return {
            int(step): loss for step, loss in re.findall(r"step +(\d+) \| loss (\S+)", self.said)
        }

    def wait_for(self, step: int) -> bool:
        """Until it has done `step` more steps than it began with; False if it ended before."""
        deadline = time.monotonic() + START_SECONDS
        while len(self.losses) < step:
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)
        return True

    def wait_for_a_save(self) -> None:
        """Until a partial folder is there, for a second at most."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and not self.saving:
            time.sleep(0.0005)

    @property
    def saving(self) -> bool:
        return any(self.checkpoints.glob("partial-*"))

    def kill(self) -> int:
        """SIGKILL to all its processes, until none is left; returns those that would not die."""
        for _ in range(50):
            left = processes.find_marked(self.marker)
            for process in left:
                processes.send_signal(process, 9)
            if not left:
                self.process.wait(10)
                return 0
            time.sleep(0.05)
        return len(left)

    def finish(self) -> str:
        """To the end; the fingerprint."""
        self.process.wait(600)
        found = re.search(r"fingerprint ([0-9a-f]{64})", self.said)
        assert found, self.said
        return found[1]


def cycles(folder: Path, count: int, seed: int, say: Any = print) -> Tally:
    """`count` kills, then the end."""
    dice, tally, steps = random.Random(seed), Tally(), STEPS_PER_CYCLE * count
    (folder / "straight").mkdir(parents=True)
    (folder / "killed").mkdir()
    straight = Training(folder / "straight", steps, saving=False)
    tally.undisturbed = straight.finish()
    expected = straight.losses
    for number in range(count):
        training = Training(folder / "killed", steps, saving=True)
        alive = training.wait_for(dice.randint(1, STEPS_PER_CYCLE - 4))
        if number % 3 == 0:
            training.wait_for_a_save()
        else:
            time.sleep(dice.uniform(0, 0.1))
        saving = training.saving
        tally.left += training.kill()
        if not alive:
            break
        tally.kills += 1
        done = max(training.losses)
        newest, passed = checkpoint_files.newest_complete(training.checkpoints)
        kept = checkpoint_files.step_of(newest) if newest else 0
        assert kept is not None
        tally.in_a_save += saving
        tally.lost.append(done - kept)
        tally.wrong_losses += sum(loss != expected[step] for step, loss in training.losses.items())
        assert not passed, passed
        say(f"kill {number + 1}: at step {done}, {saving=}, {done - kept} steps lost", flush=True)
    last = Training(folder / "killed", steps, saving=True)
    tally.fingerprint = last.finish()
    tally.wrong_losses += sum(loss != expected[step] for step, loss in last.losses.items())
    return tally


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    since = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = cycles(Path(folder), options.cycles, options.seed)
    same = tally.fingerprint == tally.undisturbed
    print(
        f"{tally.kills} kills, {tally.in_a_save} of them inside a save; steps lost per kill: at most "
        f"{max(tally.lost)}, on average {sum(tally.lost) / len(tally.lost):.1f} (one checkpoint "
        f"every {EVERY}); losses that differ: {tally.wrong_losses}; processes left: {tally.left}; "
        f"final weights {'the same' if same else 'DIFFERENT'} ({tally.fingerprint[:16]}…); "
        f"{time.monotonic() - since:.0f} s"
    )
    sys.exit(0 if same and not tally.wrong_losses and max(tally.lost) <= EVERY else 1)


if __name__ == "__main__":
    main()

"""Kills, damages and resumes real runs at random; at the end each has the weights of a quiet run.

    python -m tests.recover.soak --rounds 200 --seed 1
    python -m tests.recover.soak --seed 1 --round 17      one round again, exactly

A round is one run of the recipe, started warm: a victim (a rank, the launcher, the supervisor, the
watcher, several of them, a viewer) is killed at a random step, or the disk or its inodes run out;
when the run has ended without success its files are damaged (torn last lines, a truncated or
bit-flipped newest checkpoint) and it is resumed. Asked of every round: the final weights are those
of an undisturbed run to the last bit, a run without processes is not called live, and none of its
processes is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.launch.warm import client
from workbench.recipes import checkpoint_files
from workbench.recover import Recovery
from workbench.store import processes
from workbench.store.files import read_json

STRATEGIES = ("ddp", "fsdp", "tp", "pp", "zero2")
STEPS, EVERY = 40, 4
SHAPE = (
    *("--layers", "2", "--hidden", "32", "--heads", "2", "--seq-len", "16", "--warmup", "2"),
    *("--micro-batch", "2", "--eval-every", "0", "--log-every", "1", "--fingerprint"),
    *("--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--keep-last", "4"),
)
VICTIMS = (
    *(("rank",), ("launcher",), ("supervisor",), ("watcher",), ("supervisor", "rank")),
    *(("watcher", "supervisor"), ("rank", "launcher", "watcher", "supervisor"), ("viewer",)),
    *(("full disk",), ("no inodes",)),
)
DAMAGES = ("none", "torn lines", "truncated checkpoint", "flipped bit")
PATIENCE_SECONDS = 120.0
DISK_BYTES, DISK_INODES = 64 << 20, 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens in a round; all of it follows from the seed and the round's number."""

    seed: int
    number: int
    strategy: str
    victims: tuple[str, ...]
    rank: int
    step: int
    delay_seconds: float
    damage: str
    restarts: int
    asynchronous: bool

    @classmethod
    def draw(cls, seed: int, number: int) -> Plan:
        """The plan of round `number`; strategies and victims take turns, the rest is drawn."""
        dice = random.Random(f"{seed}/{number}")
        return cls(
            seed=seed,
            number=number,
            strategy=STRATEGIES[number % len(STRATEGIES)],
            victims=VICTIMS[(number // len(STRATEGIES) + number % len(STRATEGIES)) % len(VICTIMS)],
            rank=dice.randrange(2),
            step=dice.randint(1, STEPS - 5),
            delay_seconds=dice.uniform(0, 0.05),
            damage=dice.choice(DAMAGES),
            restarts=dice.choice((0, 0, 2)),
            asynchronous=dice.random() < 0.3,
        )

    def __str__(self) -> str:
        what = " and ".join(self.victims)
        return (
            f"{self.strategy}: {what} at step {self.step}, then {self.damage}, "
            f"{self.restarts} restarts{', asynchronous saves' if self.asynchronous else ''}"
        )


@dataclass
class Tally:
    """What all rounds showed."""

    rounds: int = 0
    victims: Counter[str] = field(default_factory=Counter[str])
    resumes: int = 0
    skipped: list[str] = field(default_factory=list[str])
    failures: list[tuple[Plan, str]] = field(default_factory=list[tuple[Plan, str]])


class WrongError(AssertionError):
    """A promise that a round did not keep."""


class Round:
    """One run and what is done to it."""

    def __init__(self, plan: Plan, store: Path) -> None:
        self.plan = plan
        words = [*SHAPE, *(["--checkpoint-async"] if plan.asynchronous else [])]
        self.run = wb.launch(
            *("gpt", words),
            strategy=plan.strategy,
            processes=2,
            cpu=True,
            warm=True,
            store=store,
            recovery=Recovery(restarts=plan.restarts, backoff_seconds=0.1),
        )
        self.marker = str(self.run.document["marker"])
        self.resumes = 0

    def play(self, expected: str, fill: Callable[[Path], Any] | None) -> None:
        """Disturb it, resume it until it has succeeded, and look at what is left.

        Raises:
            WrongError: a promise was not kept.
        """
        self._wait_for_step(self.plan.step)
        time.sleep(self.plan.delay_seconds)
        for victim in self.plan.victims:
            if victim in {"full disk", "no inodes"}:
                assert fill is not None
                with fill(self.run.directory):
                    self._wait_for_step(self.plan.step + 2 * EVERY)
            else:
                self._kill(victim)
        self._until_ended()
        while self.run.outcome != "succeeded":
            if self.resumes == 3:
                raise WrongError(f"not succeeded after 3 resumes: {self.run.logs(tail=15)}")
            self._damage()
            self.resumes += 1
            self.run = self.run.resume()
            self._until_ended()
        found = self._fingerprint()
        if found != expected:
            raise WrongError(f"other final weights: {found} instead of {expected}")

    def _wait_for_step(self, step: int) -> None:
        path = self.run.directory / "metrics" / "rank-0.jsonl"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if path.read_bytes().count(b"\n") >= step:
                    return
            if not self.run.status.live:
                return
            time.sleep(0.01)
        raise WrongError(f"step {step} was not reached: {self.run.logs(tail=15)}")

    def _kill(self, victim: str) -> None:
        if victim == "viewer":
            self._kill_viewer()
            return
        state = read_json(self.run.directory / "state.json") or {}
        process = state.get("launcher" if victim == "launcher" else "supervisor")
        if victim == "rank":
            process = (state.get("ranks") or {}).get(str(self.plan.rank))
        elif victim == "watcher" and process:
            process = _watcher_of(process["pid"])
        if process and processes.is_marked(process, self.marker):
            processes.send_signal(process, signal.SIGKILL)

    def _kill_viewer(self) -> None:
        command = [sys.executable, "-m", "workbench", "attach", str(self.run.directory)]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as viewer:
            time.sleep(1.0)
            viewer.terminate()
            try:
                viewer.wait(10)
            except subprocess.TimeoutExpired:
                viewer.kill()
                raise WrongError("a viewer did not end at SIGTERM") from None

    def _until_ended(self) -> None:
        """Until it is not live and has no process; both must come true together."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            status = self.run.status
            left = processes.find_marked(self.marker)
            if not status.live and not left:
                return
            if not status.live and self.run.outcome is None and left:
                self._watch_again(left)
            time.sleep(0.1)
        names = [_command_of(one["pid"]) for one in left]
        raise WrongError(f"state {status.state}, outcome {self.run.outcome}, left: {names}")

    def _watch_again(self, left: list[Any]) -> None:
        """Both watchers are gone: `workbench adopt`, as the status says then."""
        both = {"watcher", "supervisor"} <= set(self.plan.victims)
        if not both:
            raise WrongError(f"{self.run.status}, but {len(left)} processes are left")
        with contextlib.suppress(wb.WorkbenchError):
            self.run.adopt()

    def _damage(self) -> None:
        kind, folder = self.plan.damage, self.run.directory
        if kind == "torn lines":
            for path in folder.rglob("*.jsonl"):
                with path.open("ab") as file:
                    file.write(b'{"step": 7, "time": 17')
            return
        newest = next(iter(checkpoint_files.whole(folder / "checkpoints")), None)
        there = len(checkpoint_files.named(folder / "checkpoints"))
        if kind == "none" or newest is None or there < 2:
            return  # without an older one there would be nothing to resume from
        (largest, *_) = sorted(newest.glob("*.distcp"), key=lambda one: -one.stat().st_size)
        if kind == "truncated checkpoint":
            os.truncate(largest, largest.stat().st_size // 2)
        else:
            data = bytearray(largest.read_bytes())
            data[len(data) // 2] ^= 1
            largest.write_bytes(data)

    def _fingerprint(self) -> str | None:
        found = re.findall(r"fingerprint ([0-9a-f]{64})", self.run.logs(0))
        return found[-1] if found else None

    def end(self) -> None:
        """Nothing of it may disturb the next round."""
        for process in processes.find_marked(self.marker):
            processes.send_signal(process, signal.SIGKILL)


def _watcher_of(supervisor: int) -> Any:
    fields = processes.stat_fields(supervisor)
    parent = int(fields[1]) if fields else 0
    return processes.identify(parent) if "launch.watcher" in _command_of(parent) else None


def _command_of(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


@contextlib.contextmanager
def small_disk(folder: Path) -> Generator[bool]:
    """A small file system at `folder` until the end; False where it cannot be mounted."""
    folder.mkdir()
    options = f"size={DISK_BYTES},nr_inodes={DISK_INODES}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
        mounted = done.returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


@contextlib.contextmanager
def full_disk(folder: Path) -> Generator[None]:
    """No free byte on the file system of `folder`."""
    filler = folder.parent / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * (1 << 16))
            file.flush()
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def no_inodes(folder: Path) -> Generator[None]:
    """No free inode on the file system of `folder`."""
    fillers = folder.parent / "fillers"
    with contextlib.suppress(OSError):
        fillers.mkdir()
        for number in range(DISK_INODES + 1):
            (fillers / str(number)).touch()
    try:
        yield
    finally:
        for path in fillers.glob("*"):
            path.unlink()


FILLS: dict[str, Callable[[Path], Any]] = {"full disk": full_disk, "no inodes": no_inodes}


def play(plan: Plan, folder: Path, expected: dict[str, str], tally: Tally) -> None:
    """One round, told in the tally."""
    place, fill = folder / f"round-{plan.number}", FILLS.get(plan.victims[0])
    with small_disk(place) if fill else contextlib.nullcontext(enter_result=True) as ready:
        if not ready:
            tally.skipped.append(
                f"round {plan.number} ({plan}): no file system can be mounted here"
            )
            return
        rounds = list[Round]()
        try:
            rounds.append(Round(plan, place))
            rounds[0].play(expected[plan.strategy], fill)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next rounds go on
            wrong = str(error) if isinstance(error, WrongError) else traceback.format_exc()
            tally.failures.append((plan, wrong))
        finally:
            for one in rounds:
                tally.resumes += one.resumes
                one.end()
    tally.rounds += 1
    tally.victims.update(plan.victims)


def undisturbed(folder: Path, strategies: set[str]) -> dict[str, str]:
    """The final weights of a run that nobody disturbs, per strategy."""
    found = dict[str, str]()
    for strategy in sorted(strategies):
        plan = replace(
            Plan.draw(0, 0), strategy=strategy, victims=(), restarts=0, asynchronous=False
        )
        one = Round(plan, folder / "undisturbed")
        one._until_ended()
        fingerprint = one._fingerprint()
        assert one.run.outcome == "succeeded", one.run.logs(tail=20)
        assert fingerprint, one.run.logs(tail=20)
        found[strategy] = fingerprint
    return found


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--result", type=Path, help="write what was found to this file, as JSON")
    options = parser.parse_args()
    numbers = range(options.rounds) if options.round is None else [options.round]
    plans = [Plan.draw(options.seed, number) for number in numbers]
    tally, began = Tally(), time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        (folder / "warm").mkdir(mode=0o700)
        os.environ[client.FOLDER] = str(folder / "warm")
        try:
            expected = undisturbed(folder, {plan.strategy for plan in plans})
            for plan in plans:
                since, failed = time.monotonic(), len(tally.failures)
                play(plan, folder, expected, tally)
                result = "FAILED" if len(tally.failures) > failed else "right"
                seconds = time.monotonic() - since
                for _, why in tally.failures[failed:]:
                    print(why, flush=True)
                print(f"round {plan.number}: {plan}: {result}, {seconds:.1f} s", flush=True)
        finally:
            client.stop_servers()
    _report(tally, options.seed, time.monotonic() - began)
    if options.result:
        failures = {str(plan.number): why for plan, why in tally.failures}
        options.result.write_text(json.dumps({"rounds": tally.rounds, "failures": failures}))
    sys.exit(1 if tally.failures else 0)


def _report(tally: Tally, seed: int, seconds: float) -> None:
    for plan, why in tally.failures:
        again = f"python -m tests.recover.soak --seed {seed} --round {plan.number}"
        print(f"\nround {plan.number} ({plan}): {why}\n  again: {again}")
    for sentence in tally.skipped:
        print(f"skipped: {sentence}")
    victims = ", ".join(f"{name} {count}" for name, count in tally.victims.most_common())
    right = tally.rounds - len(tally.failures)
    print(
        f"\n{tally.rounds} rounds, {right} right, {len(tally.skipped)} skipped; "
        f"{tally.resumes} resumes by hand; victims: {victims}; {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()

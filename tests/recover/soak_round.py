"""A round of the soak: one real run, what is done to it, and what must be true of it then."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.recipes import checkpoint_files
from workbench.recover import Recovery
from workbench.store import processes
from workbench.store.files import read_json

from .soak_plan import EVERY, FLIPPED, SHAPE, STEPS, TORN_LINES, TRUNCATED, Plan

_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.03


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
        self.damaged = 0
        """Resumes before which files were damaged."""
        self.damaged_restarts = 0
        """Automatic restarts before which files were damaged."""

    def play(self, expected: str, fill: Callable[[Path], Any] | None) -> None:
        """Disturb it, resume it until it has succeeded, and look at what is left.

        Raises:
            WrongError: a promise was not kept.
        """
        self._wait_for_step(self.plan.step)
        time.sleep(self.plan.delay_seconds)
        if fill is None:
            self._disturb()
        else:
            with fill(self.run.directory):
                self._wait_for_step(self.plan.step + 2 * EVERY)
        self.until_ended()
        while self.run.outcome != "succeeded":
            if self.resumes == 3:
                raise WrongError(f"not succeeded after 3 resumes: {self.run.status.message}")
            lines = self.run.directory.rglob("*.jsonl")
            self.damaged += self._damage([*lines, *self.run.directory.glob("logs/*.log")])
            self.resumes += 1
            self.run = self.run.resume()
            self.until_ended()
        found = self.fingerprint()
        if found != expected:
            raise WrongError(f"other final weights: {found} instead of {expected}")
        if fill is None:  # else lines of metrics had no place
            self._check_history()

    def _wait_for_step(self, step: int) -> None:
        for _ in self._while_it_moves():
            if self._lines() >= step or not self.run.status.live:
                return
        raise WrongError(f"step {step} was not reached; the run is {self.run.status}")

    def _while_it_moves(self) -> Generator[None]:
        """Until nothing has moved for long: no step, attempt or process more or less."""
        before, since = None, time.monotonic()
        while time.monotonic() < since + _PATIENCE_SECONDS:
            yield
            time.sleep(_POLL_SECONDS)
            state = read_json(self.run.directory / "state.json") or {}
            now = (self._lines(), *(state.get(name) for name in ("attempt", "phase", "ranks")))
            if now != before:
                before, since = now, time.monotonic()

    def _lines(self) -> int:
        try:
            data = (self.run.directory / "metrics" / "rank-0.jsonl").read_bytes()
        except OSError:
            return 0
        return data.count(b"\n")

    def _check_history(self) -> None:
        """Every step of the run is in its metrics, whatever was killed or torn."""
        known = {line["step"] for line in self.run.iterate_metrics(0) if "loss" in line}
        if lost := sorted(set(range(1, STEPS + 1)) - known):
            raise WrongError(f"these steps are not recorded: {lost}")

    def _disturb(self) -> None:
        """Kill the victims; damage files in the same moment where the run then starts again by itself."""
        if not self.plan.damages_restart:
            for victim in self.plan.victims:
                self._kill(victim)
            return
        stopped = processes.find_marked(self.marker)
        for process in stopped:
            processes.send_signal(process, signal.SIGSTOP)
        for victim in self.plan.victims:
            self._kill(victim)
        self.damaged_restarts += self._damage(self._files_of_killed_rank())
        for process in stopped:
            processes.send_signal(process, signal.SIGCONT)

    def _files_of_killed_rank(self) -> list[Path]:
        """Only a writer that died leaves half a line: all others continue with theirs."""
        metrics = self.run.directory / "metrics" / f"rank-{self.plan.rank}.jsonl"
        return [metrics] if "rank" in self.plan.victims and metrics.exists() else []

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

    def until_ended(self) -> None:
        """Until it is not live and has no process; both must come true together."""
        for _ in self._while_it_moves():
            live, left = self.run.status.live, processes.find_marked(self.marker)
            if not live and not left:
                self._check_state()
                return
            if not live and self.run.outcome is None and left:
                self._watch_again(left)
        left = processes.find_marked(self.marker)
        names = [_command_of(one["pid"]) for one in left]
        raise WrongError(f"nothing moves: {self.run.status}; processes that are left: {names}")

    def _check_state(self) -> None:
        """What is said of a run without processes: how it ended, and why where it did not succeed."""
        status = self.run.status
        if status.state not in {"ended", "interrupted"}:
            raise WrongError(f"no process is left, and the run is {status}")
        if self.run.outcome == "succeeded":
            if self.fingerprint() is None:
                raise WrongError("it is called succeeded without having come to its end")
        elif not status.message:
            raise WrongError(f"no reason is given: {status}")

    def _watch_again(self, left: list[Any]) -> None:
        """Both watchers are gone: `workbench adopt`, as the status says then."""
        both = {"watcher", "supervisor"} <= set(self.plan.victims)
        if not both:
            raise WrongError(f"{self.run.status}, but {len(left)} processes are left")
        with contextlib.suppress(wb.WorkbenchError):
            self.run.adopt()

    def _damage(self, torn: list[Path]) -> bool:
        """Do what the plan says to the run's files; False where there was nothing to damage.

        `torn`: those that may end with half a line.
        """
        kind, folder = self.plan.damage, self.run.directory
        if kind == TORN_LINES:
            for path in torn:
                with path.open("ab") as file:
                    file.write(b'{"step": 7, "time": 17')
            return bool(torn)
        newest = next(iter(checkpoint_files.complete_in(folder / "checkpoints")), None)
        there = len(checkpoint_files.named(folder / "checkpoints"))
        if kind not in {TRUNCATED, FLIPPED} or newest is None or there < 2:
            return False  # without an older one there would be nothing to resume from
        (largest, *_) = sorted(newest.glob("*.distcp"), key=lambda one: -one.stat().st_size)
        if kind == TRUNCATED:
            os.truncate(largest, largest.stat().st_size // 2)
        else:
            data = bytearray(largest.read_bytes())
            data[len(data) // 2] ^= 1
            largest.write_bytes(data)
        return True

    def fingerprint(self) -> str | None:
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

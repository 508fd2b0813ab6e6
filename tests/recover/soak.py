"""Kills, damages and resumes real runs at random; at the end each has the weights of a quiet run.

    python -m tests.recover.soak --rounds 200 --seed 1
    python -m tests.recover.soak --seed 1 --round 17      one round again, exactly

A round is one run of the recipe, started warm: a victim (a rank, the launcher, the supervisor, the
watcher, several of them, a viewer) is killed at a random step, or the disk or its inodes run out;
when the run has ended without success its files are damaged (torn last lines, a truncated or
bit-flipped newest checkpoint) and it is resumed. Asked of every round: the final weights are those
of an undisturbed run to the last bit, every step is recorded, a run without processes is not called
live, one that did not succeed has a reason, and none of its processes is left.

With ``--streams 2`` two processes play the rounds, each with warm servers of its own, for most of a
round is waiting. With ``--folder`` a soak that was cut off goes on where it ended. The directory of a run that failed
is kept there, under ``failed/``, with the reason beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from workbench.launching.warm import client

from .soak_disk import FILLS, small_disk
from .soak_page import summary
from .soak_plan import Plan
from .soak_round import Round, WrongError

ROUNDS, FAILED = "rounds.jsonl", "failed"
OUT_OF_TIME = 3  # exit status


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a round showed."""

    plan: Plan
    why: str | None
    """What was wrong; None = nothing."""
    skipped: bool = False
    """It could not be played here; `why` says why."""
    resumes: int = 0
    """By hand, after it had ended without success."""
    damaged: int = 0
    """Of them after damage to its files."""
    damaged_restarts: int = 0
    """Automatic restarts after damage to its files."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of this process, what it waited for, and all that warm servers forked."""


def play(plan: Plan, folder: Path, expected: Mapping[str, str]) -> Result:
    """One round; what is left of a wrong one lies in `folder`."""
    began, used = time.monotonic(), _cpu_seconds()
    place, fill = folder / f"round-{plan.number}", FILLS.get(plan.victims[0])
    with small_disk(place) if fill else contextlib.nullcontext(enter_result=True) as ready:
        if not ready:
            why = "no file system can be mounted here"
            return Result(plan=plan, why=why, skipped=True)
        why, played = None, None
        try:
            played = Round(plan, place)
            played.play(expected[plan.strategy], fill)
            check_idle()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next rounds continue
            why = str(error) if isinstance(error, WrongError) else traceback.format_exc()
            _keep(folder / FAILED / f"seed-{plan.seed}-round-{plan.number}", plan, why, played)
        finally:
            if played is not None:
                played.end()
    shutil.rmtree(place, ignore_errors=True)
    return Result(
        plan=plan,
        why=why,
        resumes=played.resumes if played else 0,
        damaged=played.damaged if played else 0,
        damaged_restarts=played.damaged_restarts if played else 0,
        seconds=round(time.monotonic() - began, 2),
        cpu_seconds=round(_cpu_seconds() - used, 2),
    )


def check_idle() -> None:
    """Wait until no warm server has a process left.

    Raises:
        WrongError: one has.
    """
    deadline = time.monotonic() + 20.0
    while running := sum(server["running"] for server in client.servers()):
        if time.monotonic() > deadline:
            raise WrongError(f"{running} processes of the warm server are left")
        time.sleep(0.05)


def _keep(place: Path, plan: Plan, why: str, played: Round | None) -> None:
    """The run directory of a round that went wrong, with the reason and how to play it again."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "reason.txt").write_text(f"{plan}\n{plan.command}\n\n{why}\n", encoding="utf-8")
    if played is not None:
        shutil.copytree(played.run.directory, place / "run", symlinks=True)


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return own + sum(server["cpu_seconds"] for server in client.servers())


def undisturbed(folder: Path, strategies: set[str]) -> dict[str, str]:
    """The final weights of a run that no one disturbs, per strategy."""
    found = dict[str, str]()
    for strategy in sorted(strategies):
        plan = replace(
            Plan.draw(0, 0), strategy=strategy, victims=(), restarts=0, asynchronous=False
        )
        one = Round(plan, folder / "undisturbed")
        one.until_ended()
        fingerprint = one.fingerprint()
        if fingerprint is None or one.run.outcome != "succeeded":
            why = f"a run of {strategy} that nobody disturbs ended as {one.run.status}"
            _keep(folder / FAILED / f"undisturbed-{strategy}", plan, why, one)
            raise WrongError(why)
        found[strategy] = fingerprint
    return found


def known(folder: Path, seed: int) -> dict[int, dict[str, Any]]:
    """The rounds of `seed` that were played already, by number."""
    path = folder / ROUNDS
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {line["plan"]["number"]: line for line in lines if line["plan"]["seed"] == seed}


def soak(plans: list[Plan], folder: Path, minutes: float | None) -> bool:
    """Play them, each result appended to a file in `folder`; False where time ran out before."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        (warm := Path(name) / "warm").mkdir(mode=0o700)
        os.environ[client.FOLDER] = str(warm)
        try:
            try:
                expected = undisturbed(Path(name), {plan.strategy for plan in plans})
            finally:
                _move(Path(name) / FAILED, folder / FAILED)
            for plan in plans:
                if minutes is not None and time.monotonic() - began > minutes * 60:
                    return False
                result = play(plan, Path(name), expected)
                _move(Path(name) / FAILED, folder / FAILED)
                _append(folder / ROUNDS, result)
                _say(result)
        finally:
            client.stop_servers()
    return True


def _append(path: Path, result: Result) -> None:
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other streams append, too
        file.write(json.dumps(asdict(result)) + "\n")


def _move(source: Path, target: Path) -> None:
    for one in source.glob("*"):
        target.mkdir(exist_ok=True)
        shutil.rmtree(target / one.name, ignore_errors=True)
        shutil.move(one, target / one.name)


def _say(result: Result) -> None:
    plan, end = result.plan, "skipped" if result.skipped else "FAILED" if result.why else "right"
    times = f"{result.seconds:.1f} s, {result.cpu_seconds:.1f} CPU s"
    print(f"round {plan.number}: {plan}: {end}, {times}", flush=True)
    if result.why:
        print(f"{result.why}\n  again: {plan.command}", flush=True)


def play_in_streams(count: int, folder: Path) -> bool:
    """Play the rounds of this command line in `count` processes; False where time ran out."""
    command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--folder", str(folder)]
    streams = [subprocess.Popen([*command, "--stream", str(number)]) for number in range(count)]
    try:
        exits = [stream.wait() for stream in streams]
    finally:
        for stream in streams:  # cut off: each ends what it plays
            stream.terminate()
            stream.wait()
    return OUT_OF_TIME not in exits


def play_stream(numbers: Sequence[int], options: argparse.Namespace, folder: Path) -> bool:
    """Play those of the rounds that are this process's, and were not played yet."""
    played = set[int]()  # one that failed is played again
    if options.round is None:
        lines = known(folder, options.seed)
        played = {number for number, line in lines.items() if not _is_failure(line)}
    if played and not options.stream:
        print(f"{len(played)} rounds were played already.", flush=True)
    own = numbers if options.stream is None else numbers[options.stream :: options.streams]
    return soak(
        [Plan.draw(options.seed, one) for one in own if one not in played], folder, options.minutes
    )


def main() -> None:
    """From the command line."""
    options = _parser().parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-results-"))
    folder.mkdir(parents=True, exist_ok=True)
    numbers = range(options.rounds) if options.round is None else [options.round]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(OUT_OF_TIME))  # nothing of a round is left
    if options.streams > 1 and options.stream is None:
        finished = play_in_streams(options.streams, folder)
    else:
        finished = play_stream(numbers, options, folder)
    if options.stream is not None:
        sys.exit(0 if finished else OUT_OF_TIME)
    sys.exit(_report(numbers, options, folder, finished=finished))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--streams", type=int, default=1, help="rounds beside each other")
    parser.add_argument("--stream", type=int, help=argparse.SUPPRESS)  # which of them this one is
    parser.add_argument("--minutes", type=float, help="begin no round after so long")
    parser.add_argument("--folder", type=Path, help="keep results here; go on from those there")
    parser.add_argument("--result", type=Path, help="write what was found to this file, as JSON")
    return parser


def _report(
    numbers: Sequence[int], options: argparse.Namespace, folder: Path, *, finished: bool
) -> int:
    """Print and keep what the rounds showed; the exit status."""
    rounds = [line for number, line in known(folder, options.seed).items() if number in numbers]
    finished = finished and len(rounds) == len(numbers)
    print(summary(rounds))
    failures = {line["plan"]["number"]: line["why"] for line in rounds if _is_failure(line)}
    if failures:
        print(f"Their run directories are in {(folder / FAILED).resolve()}.")
    if options.result:
        done = {"rounds": len(rounds), "failures": failures}
        options.result.write_text(json.dumps(done), encoding="utf-8")
    if not failures and finished and options.folder is None:
        shutil.rmtree(folder)
    return 1 if failures else 0 if finished else OUT_OF_TIME


def _is_failure(line: Mapping[str, Any]) -> bool:
    return bool(line["why"]) and not line["skipped"]


if __name__ == "__main__":
    main()

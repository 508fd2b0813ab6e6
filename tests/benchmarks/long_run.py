"""A million steps, and a flood of log lines: what they cost the watching and the training.

Usage: python -m tests.benchmarks.long_run [--steps 1000000] [--seconds 10] [points|trackers|flood]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import workbench as wb
from workbench.observe import trackers
from workbench.observe.view import ViewBuilder
from workbench.observe.view_json import encode
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

RANKS = 2
FLOOD = Path(__file__).parent / "log_flood.py"
Row = tuple[str, str, str, bool]


def make_run(folder: Path, steps: int) -> RunPaths:
    """A finished run of `steps` metric lines per rank, as the hook writes them."""
    paths = RunPaths(folder / "big")
    paths.directory.mkdir()
    paths.make_folders()
    document = {
        "schema": 1,
        "run": "big",
        "name": "big",
        "marker": "none",
        "created_at": 1.7e9,
        "strategy_name": "ddp",
        "processes": RANKS,
        "device": "cpu",
        "capture": True,
        "cluster": {"name": "h", "gpus": [], "cpu_cores": 2},
        "tokens_per_step": 524_288,
    }
    paths.run.write_text(json.dumps(document))
    for rank in range(RANKS):
        with paths.rank_metrics(rank).open("w") as file:
            for step in range(1, steps + 1):
                at = 1.7e9 + step / 100
                file.write(
                    f'{{"step":{step},"time":{at:.6f},"step_seconds":0.01,"backward_at":{at:.6f},'
                    f'"lr":0.0003,"memory_bytes":71234567890,"data_seconds":0.001,'
                    f'"loss":{2 + 1 / step:.6f},"grad_norm":1.25}}\n'
                )
    paths.exit.write_text('{"outcome": "succeeded", "message": "", "ended_at": 1.8e9}')
    return paths


def follow(directory: str) -> None:
    """In a process of its own: read the whole run and print what the view cost."""
    paths = RunPaths(Path(directory))
    began = time.monotonic()
    builder = ViewBuilder(paths, RunRecord.of(json.loads(paths.run.read_text())))
    builder.read()
    while not builder.stream.at_end:
        builder.read()
    followed = time.monotonic()
    now = {
        "phase": "running",
        "started_at": 1.7e9,
        "ended_at": None,
        "ranks": {},
        "elapsed_seconds": 1.0,
    }
    data = encode(builder.snapshot(now))
    done = {"follow": followed - began, "build": time.monotonic() - followed}
    print(json.dumps({**done, "steps": builder.steps, "bytes": len(data), "rss": peak_rss("self")}))


def points(steps: int) -> Iterator[Row]:
    """Reading and thinning all of it, in the memory and the size that are promised."""
    with tempfile.TemporaryDirectory() as folder:
        paths = make_run(Path(folder), steps)
        words = (sys.executable, "-m", __spec__.name, "--follow", str(paths.directory))
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    cost = json.loads(done.stdout)
    what = f"{steps:,} steps x {RANKS} ranks"
    size, peak, build = cost["bytes"], cost["rss"], cost["build"]
    whole = cost["steps"] == steps
    yield f"{what}: followed from the beginning in", f"{cost['follow']:.1f} s", "", True
    yield f"{what}: view.json", f"{size / 1e3:.1f} kB", "<= 64 kB", whole and size <= 64_000
    yield f"{what}: one update built in", f"{build * 1e3:.1f} ms", "< 200 ms", build < 0.2
    yield f"{what}: peak memory of the watching", f"{peak / 1e6:.0f} MB", "< 500 MB", peak < 500e6


def tracker_backfill(steps: int) -> Iterator[Row]:
    """A tracker that is attached when the run is over."""
    with tempfile.TemporaryDirectory() as folder:
        paths = make_run(Path(folder), steps)
        for name in trackers.names():
            command = trackers.follow_command(paths, name)
            began = time.monotonic()
            process = subprocess.Popen(command)
            peak = 0
            while process.poll() is None:
                peak = max(peak, peak_rss(process.pid))
                time.sleep(0.1)
            seconds = time.monotonic() - began
            what = f"{name}: {steps:,} steps filled in, peak {peak / 1e6:.0f} MB, in"
            fine = process.returncode == 0 and peak < 500e6
            yield what, f"{seconds:.0f} s ({steps / seconds:,.0f} steps/s)", "< 500 MB", fine


def flood(seconds: float) -> Iterator[Row]:
    """10,000 lines a second from each of two ranks, beside the same training without them."""
    medians: dict[int, list[float]] = {0: [], 10_000: []}
    sizes: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(4):  # ABBA, so that a drifting machine favours neither
            rate = (0, 10_000, 10_000, 0)[number]
            result = Path(folder) / f"result-{number}.json"
            arguments = [str(rate), str(seconds), str(result)]
            run = wb.launch(
                FLOOD, arguments, processes=RANKS, cpu=True, store=Path(folder) / "runs"
            )
            assert run.wait(300) == "succeeded", run.status
            medians[rate].append(json.loads(result.read_text())["median"])
            if rate:
                logs = [run.directory / "logs" / f"rank-{rank}.log" for rank in range(RANKS)]
                sizes += [path.stat().st_size for path in logs]
                assert logs[0].read_bytes().endswith(b"the last line\n")
                view = run.view()
                assert view["ranks"][0]["log_tail"][-1] == "the last line"
    ratio = min(medians[10_000]) / min(medians[0])
    slowed = f"{100 * (ratio - 1):+.1f} %  ({min(medians[0]) * 1e3:.2f} ms a step)"
    yield "log flood, 10,000 lines/s x 2 ranks: training slowed", slowed, "< 5 %", ratio < 1.05
    biggest = max(sizes)
    yield "log flood: largest log file", f"{biggest / 1e6:.0f} MB", "", True


def peak_rss(pid: int | str) -> int:
    """Peak resident bytes of a living process; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.split("VmHWM:")[1].split()[0]) * 1024 if "VmHWM:" in text else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["points", "trackers", "flood"])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--follow", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.follow:
        follow(given.follow)
        return
    benchmarks = {
        "points": lambda: points(given.steps),
        "trackers": lambda: tracker_backfill(given.steps),
        "flood": lambda: flood(given.seconds),
    }
    failed = False
    for part in given.parts:
        for what, measured, promised, fine in benchmarks[part]():
            failed |= not fine
            print(f"{'ok  ' if fine else 'MISS'} {what:70} {measured:32} {promised}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

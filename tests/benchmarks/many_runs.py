"""A store of 1,000 runs of 100,000 steps: how quickly it opens, and ten of them are compared.

Usage: python -m tests.benchmarks.many_runs [--runs 1000] [--steps 100000]

Metric files and views are in the real formats, one run's made in full and its files shared by the
others as hard links (run.json and exit.json are each one's own): nothing that is measured here
reads what a link would make cheaper than a copy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import workbench as wb
from tests.compare.made_runs import BEGAN, make_run, run_document
from workbench.compare import export, index
from workbench.compare.runs import compare
from workbench.store.layout import RunPaths

Row = tuple[str, str, str, bool]
RANKS = 2


def make_store(root: Path, runs: int, steps: int) -> None:
    """`runs` finished runs of `steps` steps and two ranks each."""
    first = make_run(root, "run-0000", steps=steps, ranks=RANKS, slow=steps / 4)
    for number in range(1, runs):
        add_run(root, first, number)


def add_run(root: Path, first: RunPaths, number: int) -> None:
    """One more run with the curve of the first."""
    paths = RunPaths(root / f"run-{number:04}")
    paths.directory.mkdir()
    paths.make_folders()
    document = run_document(paths.directory.name, RANKS, BEGAN + number)
    document["arguments"] = ["--lr", f"{number}e-6"]
    paths.run.write_text(json.dumps(document))
    for rank in range(RANKS):
        os.link(first.rank_metrics(rank), paths.rank_metrics(rank))
    paths.view.write_bytes(first.view.read_bytes())
    paths.state.write_bytes(first.state.read_bytes())
    paths.exit.write_bytes(first.exit.read_bytes())


def seconds(action) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def benchmark(runs: int = 1000, steps: int = 100_000) -> Iterator[Row]:
    """Rows (what, measured, bound, met)."""
    what = f"{runs:,} runs x {steps:,} steps"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        made = seconds(lambda: make_store(root, runs, steps))
        print(f"{what} made in {made:.1f} s", file=sys.stderr)
        store = wb.Store(root)
        cold = seconds(lambda: index.table(store, told))
        yield f"{what}: index built (once)", f"{cold:.2f} s", "", True
        size = (root / index.FILE).stat().st_size
        yield f"{what}: index", f"{size / 1e6:.1f} MB", "", True
        yield from _opened(store, what)
        add_run(root, RunPaths(root / "run-0000"), runs)
        more = seconds(lambda: index.table(store))
        yield f"{what}: opened after one more run", f"{more:.2f} s", "<= 1 s", more <= 1
        yield from _compared(store, what, Path(folder))


def _opened(store: wb.Store, what: str) -> Iterator[Row]:
    warm = min(seconds(lambda: index.table(store)) for _ in range(3))
    yield f"{what}: opened", f"{warm:.3f} s", "<= 1 s", warm <= 1
    words = (sys.executable, "-m", "workbench.cli", "runs", "--store")

    def command(root: Path) -> float:
        call = [*words, str(root), "--sort", "loss"]
        return min(
            seconds(lambda: subprocess.run(call, check=True, capture_output=True)) for _ in range(3)
        )

    whole, start = command(store.root), command(store.root / "none")
    label = f"{what}: workbench runs --sort loss, beyond an empty store's {start:.2f} s"
    yield label, f"{whole - start:.2f} s", "<= 1 s", whole - start <= 1


def _compared(store: wb.Store, what: str, folder: Path) -> Iterator[Row]:
    ten = [f"run-{number:04}" for number in range(10)]
    took = min(seconds(lambda: compare(store, ten).document(by="usd")) for _ in range(3))
    yield f"{what}: 10 compared", f"{took:.2f} s", "<= 1 s", took <= 1
    rows = export.steps(store.find("run-0000"))
    began = time.perf_counter()
    done = export.write(folder / "steps.csv", rows, export.STEP_COLUMNS)
    rate = done / (time.perf_counter() - began)
    yield f"every step of one run, {RANKS} ranks, as CSV", f"{rate:,.0f} steps/s", "", True


def told(done: int, of: int) -> None:
    """Where the first reading is."""
    if done % 100 == 0 or done == of - 1:
        print(f"  {done + 1:,} of {of:,} runs read", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100_000)
    given = parser.parse_args()
    failed = False
    for what, measured, bound, fine in benchmark(given.runs, given.steps):
        failed |= not fine
        print(f"{'ok  ' if fine else 'MISS'} {what:85} {measured:16} {bound}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

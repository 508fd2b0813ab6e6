"""Predicted beside measured over several runs of the embedded recipe, as corrections come in.

`python -m tests.benchmarks.corrected_steps [--runs 5] [--processes 2] [--store DIR]` calibrates where
the store has no calibration of this host, launches equal runs one after the other, and prints for
each what was predicted, measured, by what it was corrected, and why they differ. From the fourth on
the median of those before corrects the prediction. On a busy host no run counts, and it says so.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import workbench as wb
from workbench.compare.calibration.calibrate import calibrate
from workbench.describe.detection import detect_host
from workbench.observe.prediction_error.comparison import read_prediction_error
from workbench.observe.prediction_error.terms import PEAK, STEP
from workbench.store import calibrations
from workbench.store.layout import RunPaths
from workbench.units import format_bytes, format_ratio, format_seconds

SHAPE = ["--layers", "3", "--hidden", "256", "--seq-len", "128", "--eval-every", "0"]


def one_run(store: Path, processes: int, steps: int) -> str:
    """Launch, wait, and the line of the table."""
    request = wb.request(
        "gpt", [*SHAPE, "--steps", str(steps)], processes=processes, cpu=True, store=store
    )
    run = wb.start(request)
    run.wait(900)
    gap = read_prediction_error(RunPaths(run.directory))
    step, peak = gap.row(STEP), gap.row(PEAK)
    known = None if request.predicted_basis is None else request.predicted_basis.correction
    cells = [
        *(format_seconds(one) for one in (step.predicted, step.low, step.high, step.measured)),
        format_ratio(step.measured, step.predicted),
        f"{format_bytes(peak.predicted)} / {format_bytes(peak.measured)}",
        "none" if known is None else f"{known.factor:.2f} of {known.runs}",
    ]
    return "".join(f"{cell:>20}" if "/" in cell else f"{cell:>11}" for cell in cells)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--store", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = given.store or Path(folder)
        key = calibrations.host_key(detect_host(), cpu=True)
        if calibrations.read_calibration(store, key) is None:
            print("calibrating …", flush=True)
            calibrate(store, cpu=True)
        heads = ("predicted", "low", "high", "measured", "ratio")
        print("".join(f"{one:>11}" for one in heads) + f"{'memory':>20}{'corrected':>11}")
        for _ in range(given.runs):
            print(one_run(store, given.processes, given.steps), flush=True)
        print(read_prediction_error(RunPaths(wb.Store(store).find("last").directory)).explanation)
        print(f"{len(calibrations.read_corrections(store, key))} lines of corrections kept")


if __name__ == "__main__":
    main()

"""Step times predicted from a calibration, beside those of real runs of the embedded recipe.

Usage: python -m tests.benchmarks.predicted_steps [--seconds 60] [--processes 1 2 4] [--json FILE]
           [--store DIR] [--kept]

Calibrates this host, predicts the steps of sizes that the calibration has not seen, launches each
of them and compares medians. Also predicts the larger numbers of processes from what one and two
processes measured. On a host with GPUs it does the same there. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import workbench as wb
from workbench.compare.calibration.calibrate import calibrate, stored_calibration
from workbench.describe.detection import detect_host
from workbench.estimate.calibration import Calibration
from workbench.estimate.host_step import predict_step
from workbench.units import format_seconds

# Name -> arguments of gpt.py and the steps that are made. No size is one of the calibration's.
CPU_SIZES = {
    "3 x 192": (["--size", "3", "--micro-batch", "8"], 30),
    "4 x 256": (["--size", "4", "--micro-batch", "8"], 24),
    "5 x 320": (["--size", "5", "--micro-batch", "4"], 24),
    "6 x 384": (["--size", "6", "--micro-batch", "4"], 20),
}
GPU_SIZES = {
    "8 x 512": (["--size", "8", "--seq-len", "1024", "--micro-batch", "16"], 60),
    "12 x 768": (["--size", "12", "--seq-len", "1024", "--micro-batch", "16"], 60),
    "16 x 1024": (["--size", "16", "--seq-len", "1024", "--micro-batch", "16"], 50),
    "24 x 1536": (["--size", "24", "--seq-len", "1024", "--micro-batch", "8"], 40),
}
LIMITS = {"cpu": 0.15, "cuda": 0.10}
WARM_UP = 4  # steps that are not counted: allocators and caches fill


def measure(arguments: list[str], steps: int, processes: int, store: Path) -> tuple[wb.Run, float]:
    """A real run, and the median of its steps, each that of the slowest rank."""
    strategy = "single" if processes == 1 else "ddp"
    last = ["--steps", str(steps), "--eval-every", "0"]
    run = wb.launch("gpt", [*arguments, *last], strategy=strategy, processes=processes, store=store)
    outcome = run.wait(600)
    if outcome != "succeeded":
        raise RuntimeError(f"{run.id}: {outcome}; see {run.directory}")
    rows = run.metrics()[WARM_UP:]
    return run, statistics.median(row["step_seconds"] for row in rows if row["step_seconds"])


def rows(calibration: Calibration, counts: list[int], store: Path) -> list[dict]:
    """One row per size and number of processes."""
    host = detect_host()
    sizes = GPU_SIZES if host.gpus else CPU_SIZES
    known = [one for one in counts if one <= 2]
    before = calibration.restricted(known)
    found = []
    for processes in counts:
        for name, (arguments, steps) in sizes.items():
            run, seconds = measure(arguments, steps, processes, store)
            asked = wb.request(
                "gpt",
                arguments,
                strategy="single" if processes == 1 else "ddp",
                processes=processes,
            )
            assert asked.workload is not None
            predicted = predict_step(asked.workload, asked.strategy, host, calibration)
            far = None
            if processes not in known and calibration.device == "cpu":
                far = predict_step(asked.workload, asked.strategy, host, before)
            row = {
                "size": name,
                "processes": processes,
                "run": run.id,
                "measured": seconds,
                "predicted": predicted and predicted.step_seconds,
                "extrapolated": far and far.step_seconds,
                "parts": predicted and dict(predicted.parts),
            }
            found.append(row)
            print_row(row)
    return found


def print_row(row: dict) -> None:
    ratio = row["predicted"] / row["measured"] if row["predicted"] else float("nan")
    far = row["extrapolated"]
    beyond = f"{format_seconds(far):>14}{far / row['measured']:>8.2f}" if far else ""
    print(
        f"{row['size']:12}{row['processes']:>9}{format_seconds(row['predicted']):>13}"
        f"{format_seconds(row['measured']):>13}{ratio:>8.2f}{beyond}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of the calibration")
    parser.add_argument("--processes", type=int, nargs="+")
    parser.add_argument("--store", type=Path, help="default: one that is thrown away")
    parser.add_argument("--kept", action="store_true", help="use the store's calibration")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.pop("OMP_NUM_THREADS", None)  # the launcher decides
    host = detect_host()
    counts = options.processes or (sorted({1, len(host.gpus)}) if host.gpus else [1, 2, 4])
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        store = options.store or Path(folder)
        found = stored_calibration(store) if options.kept else None
        calibration = found or calibrate(store, seconds=options.seconds)
        print(f"{calibration.key}, calibrated in {calibration.seconds:.0f} s")
        print(
            f"{'layers x width':14}{'processes':>7}{'predicted':>13}{'measured':>13}{'ratio':>8}"
            f"{'from 1 and 2':>14}{'ratio':>8}"
        )
        table = rows(calibration, counts, store)
    limit = LIMITS[calibration.device]
    ratios = [row["predicted"] / row["measured"] if row["predicted"] else 0.0 for row in table]
    far = [row["extrapolated"] / row["measured"] for row in table if row["extrapolated"]]
    worst = max(abs(one - 1) for one in ratios)
    print(f"worst {worst:.1%} of {limit:.0%} allowed, {time.monotonic() - began:.0f} s in all")
    if far:
        print(f"extrapolated from 1 and 2 processes: worst {max(abs(one - 1) for one in far):.1%}")
    if options.json:
        document = {"calibration": calibration.document(), "rows": table}
        options.json.write_text(json.dumps(document, indent=1))
    return 1 if worst > limit else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.measure [--time] [SCRIPT...]``: predicted beside measured peaks, or steps.

``--time``: seconds of a step of one process at the check's batch size, as the measurement predicts
it, beside the median of a bare run and the share between its 10th and 90th percentile.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from tests.measure.cases import CASES
from tests.measure.harness import (
    Case,
    bare_seconds,
    ledger_bytes,
    measured,
    predicted_bytes,
    predicted_seconds,
)
from workbench.describe import Workload

MIB = 1 << 20


PEAKS = ("script", "measured at", "checked at", "predicted MiB", "ledger MiB", "ratio")
TIMES = ("script", "measured at", "checked at", "predicted ms", "bare ms", "ratio", "its spread")


def main() -> None:
    timed = "--time" in sys.argv
    names = [one for one in sys.argv[1:] if one != "--time"]
    head = TIMES if timed else PEAKS
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for case in CASES:
        if names and not any(case.script.startswith(name) for name in names):
            continue
        with tempfile.TemporaryDirectory() as text:
            cells = (_times if timed else _peaks)(case, Path(text))
        print("| " + " | ".join((case.script, *cells)) + " |", flush=True)


def _measured_at(workload: Workload) -> str:
    assert workload.model.measured is not None
    batches = " and ".join(map(str, workload.model.measured.batches))
    return f"{batches} x {workload.accumulate}, {workload.precision}, {workload.optimizer}"


def _peaks(case: Case, folder: Path) -> tuple[str, ...]:
    workload = measured(case, folder)
    predicted = predicted_bytes(workload, case)
    found = ledger_bytes(case, folder / "check")
    at = f"{case.samples}, {case.strategy}"
    figures = (f"{predicted / MIB:.2f}", f"{found / MIB:.2f}", f"{predicted / found:.3f}")
    return _measured_at(workload), at, *figures


def _times(case: Case, folder: Path) -> tuple[str, ...]:
    workload = measured(case, folder, seconds=2.0)
    predicted = predicted_seconds(workload, case.samples)
    bare = bare_seconds(case, folder / "check")
    median, tenths = statistics.median(bare), statistics.quantiles(bare, n=10)
    spread = (tenths[-1] - tenths[0]) / median
    figures = (f"{1e3 * predicted:.2f}", f"{1e3 * median:.2f}", f"{predicted / median:.2f}")
    return _measured_at(workload), str(case.samples), *figures, f"{100 * spread:.0f} %"


if __name__ == "__main__":
    main()

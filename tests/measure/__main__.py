"""``python -m tests.measure [SCRIPT...]``: the table of predicted and measured peaks."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.measure.cases import CASES
from tests.measure.harness import ledger_bytes, measured, predicted_bytes

MIB = 1 << 20


def main() -> None:
    names = sys.argv[1:]
    head = ("script", "measured at", "checked at", "predicted MiB", "ledger MiB", "ratio")
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for case in CASES:
        if names and not any(case.script.startswith(name) for name in names):
            continue
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            workload = measured(case, folder)
            predicted = predicted_bytes(workload, case)
            found = ledger_bytes(case, folder / "check")
        batches = " and ".join(map(str, workload.model.measured.batches))
        print(
            f"| {case.script} | {batches} x {workload.accumulate}, {workload.precision}, "
            f"{workload.optimizer} | {case.samples}, {case.strategy} | {predicted / MIB:.2f} | "
            f"{found / MIB:.2f} | {predicted / found:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

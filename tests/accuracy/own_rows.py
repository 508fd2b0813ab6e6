"""Our own measurements on GPUs, beside what the calculators say of them today.

    python -m tests.accuracy.own_rows        # a line per measurement kept in tests/gpu/results

The battery keeps a measurement under the name of its case, so the prediction is made anew each
time: a changed formula meets the old measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workbench as wb
from tests.gpu.memory_probe import CASES
from tests.gpu.results import FOLDER
from workbench.describe import Cluster
from workbench.describe.accelerators import recognise

MEASURES = ("allocated_bytes", "reserved_bytes", "on_card_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRow:
    """One measured value and its prediction."""

    case: str
    what: str
    """The value's name: one of `MEASURES`, or ``step_seconds``."""
    card: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Signed, as a share of the measurement."""
        return self.predicted / self.measured - 1


def own_rows(folder: Path = FOLDER) -> list[OwnRow]:
    """Every comparable measurement of the battery's result files.

    Raises:
        ValueError: a row is of a simulated GPU or of a CPU.
    """
    return [
        row
        for path in sorted(folder.glob("battery-*.jsonl"))
        for line in path.read_text().splitlines()
        for row in _rows_of(_measured(json.loads(line), path))
    ]


def _measured(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """The row, if a GPU was measured."""
    if result.get("simulated") or result.get("requested_device", "cuda") != "cuda":
        kind = "a simulated GPU" if result.get("simulated") else "a CPU"
        raise ValueError(
            f"{path.name}: {result['case']} is of {kind}, no measurement of a GPU. Remove the file; "
            "python -m tests.gpu.battery --keep writes measurements alone."
        )
    return result


def _rows_of(result: dict[str, Any]) -> Iterator[OwnRow]:
    measured = result.get("measured") or {}
    card = str((result.get("card") or {}).get("name"))
    name = str(result["case"]).removeprefix("memory-")
    if result["group"] == "memory" and name in CASES:
        case = CASES[name]
        predicted = wb.training_memory(
            case.workload, case.strategy, _cluster(result.get("card") or {})
        )
        for what in MEASURES:
            if measured.get(what):
                yield OwnRow(
                    case=name,
                    what=what,
                    card=card,
                    predicted=getattr(predicted, what),
                    measured=measured[what],
                )
    if result["group"] == "time":
        for row in measured.get("rows") or ():
            if row.get("predicted"):
                yield OwnRow(
                    case=f"{result['case']} {row['size']}",
                    what="step_seconds",
                    card=card,
                    predicted=row["predicted"],
                    measured=row["measured"],
                )


def _cluster(card: dict[str, Any]) -> Cluster | None:
    """One card of the catalog by what the driver says; None where the catalog lacks it."""
    accelerator = recognise(str(card.get("name")), int(card.get("memory_total_mib") or 0) << 20)
    return None if accelerator is None else Cluster.rented(accelerator.id, 1)


def main() -> None:
    rows = own_rows()
    for row in rows:
        print(f"{row.card:28} {row.case:36} {row.what:16} {row.error:+8.1%}")
    if not rows:
        print("No measurement of a GPU of ours is kept yet: python -m tests.gpu.battery, --keep.")


if __name__ == "__main__":
    main()

"""One row of the table of strategies: a real run on CPU ranks, and what the table needs of it."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.launch.ranks import printed

STEPS = 20
LOGGED = 5  # steps whose mean gpt.py prints
BATCH = 8  # sequences per optimizer step, whatever the number of ranks
SHAPE = (
    *("--layers", "2", "--hidden", "64", "--seq-len", "64", "--warmup", "2"),
    *("--eval-every", "0", "--log-every", str(LOGGED), "--steps", str(STEPS)),
)
EXACT = 1e-4
"""Relative; fp32, one seed, one global batch: only the order of sums differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A strategy, how it is run, and how near it must come to the single process."""

    strategy: str
    processes: int
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    accumulate: int = 1
    precision: str = "fp32"
    tolerance: float = EXACT
    why: str = ""
    """Why the tolerance is wider than EXACT."""
    always: bool = False
    """True = part of `make test`."""
    cold: bool = False
    """True = its launcher is started cold there, as users start it: one row of each family."""
    recipe: str = "gpt"
    """What trains; the page has a table of its own for others than gpt."""
    words: tuple[str, ...] = ()
    """Of another recipe: its arguments, without batch and precision."""

    def __str__(self) -> str:
        said = [f"{key}={value}" for key, value in self.options.items()]
        said += [f"accumulate={self.accumulate}"] if self.accumulate > 1 else []
        said += [self.precision] if self.precision != "fp32" else []
        recipe = [self.recipe] if self.recipe != "gpt" else []
        return " ".join([*recipe, f"{self.strategy} x{self.processes}", *said])

    @property
    def arguments(self) -> list[str]:
        """The reference setting on one global batch."""
        data_ranks = wb.Strategy.parse(self.strategy, self.processes).data_ranks
        micro_batch = BATCH // data_ranks // self.accumulate
        return [
            *(self.words or SHAPE),
            *("--micro-batch", str(micro_batch), "--accumulate", str(self.accumulate)),
            *("--precision", self.precision),
        ]

    def request(self, store: Path, *more: str) -> wb.Request:
        """The launch, not started."""
        return wb.request(self.recipe, [*self.arguments, *more], **self._how(store))

    def run(self, store: Path, *more: str) -> dict[str, Any]:
        """Launch, wait, and return the run's summary with `seconds` and `command`."""
        began = time.perf_counter()
        run = wb.launch(self.recipe, [*self.arguments, *more], **self._how(store))
        outcome = run.wait(480)
        assert outcome == "succeeded", run.logs(tail=30)
        command = shlex.join(self.request(store, *more).command)
        last = [line["loss"] for line in run.metrics()][-LOGGED:]
        return {
            **run.summary(),
            "seconds": time.perf_counter() - began,
            "command": command,
            "logged": sum(last) / len(last),
        }

    def _how(self, store: Path) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "processes": self.processes,
            "cpu": True,
            "store": store,
            "options": self.options or None,
            "warm": not (self.cold or whole_table()),
        }


def row(strategy: str, processes: int, *, always: bool = False, **more: Any) -> Row:
    """A row; whatever is no field of it is an option of the strategy."""
    mine = {key: more.pop(key) for key in set(more) & set(Row.__slots__)}
    return Row(strategy=strategy, processes=processes, options=more, always=always, **mine)


def rows_to_run(rows: Sequence[Row]) -> list[Any]:
    """The parameters of a test: every row, those that not always run marked for `make test-all`."""
    return [
        pytest.param(one, id=str(one), marks=() if one.always else pytest.mark.full) for one in rows
    ]


def whole_table() -> bool:
    """Whether the rows are kept for the page: then all are started cold."""
    return bool(os.environ.get("WORKBENCH_STRATEGY_ROWS"))


def skip_if_kept(one: Row) -> None:
    """A table that was cut off continues where it ended."""
    kept = Path(os.environ.get("WORKBENCH_STRATEGY_ROWS", os.devnull))
    if kept.is_file():
        rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
        if any(_key(row) == _key(_described(one)) for row in rows):
            pytest.skip("in the table already")


def _described(one: Row) -> dict[str, Any]:
    options = str(one).partition(f"x{one.processes}")[2].strip()
    about = {"strategy": one.strategy, "processes": one.processes, "options": options}
    return {"recipe": one.recipe, **about}


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return row["recipe"], row["strategy"], row["processes"], row["options"]


def check(one: Row, alone: dict[str, Any], folder: Path, *more: str) -> None:
    """Run the row, keep it, and hold it against the single process `alone`.

    With the whole table the printed command of every strategy without options is run too, in a
    shell without the workbench.
    """
    skip_if_kept(one)
    found = one.run(folder / "runs", *more)
    note = f"within {one.tolerance:g}: {one.why}" if one.why else ""
    record(one, found, alone["loss_last"], note)
    assert found["world_size"] == one.processes
    assert found["steps"] == STEPS
    assert distance(found["loss_last"], alone["loss_last"]) < one.tolerance
    if one.recipe != "gpt":
        return
    assert found["loss_first"] == pytest.approx(math.log(256), rel=1e-4)
    if whole_table() and not one.options:
        printed = ejected(one.request(folder / "ejected", *more), folder)
        assert distance(logged(printed), found["logged"]) < 2e-4  # printed with four decimals


def distance(loss: float | None, reference: float) -> float:
    """Relative; a loss that is not known is infinitely far."""
    return math.inf if loss is None else abs(loss - reference) / reference


def logged(printed: str) -> float:
    """The loss that gpt.py printed last."""
    found = re.search(rf"step {STEPS:6d} \| loss ([\d.]+)", printed)
    assert found, printed
    return float(found[1])


def ejected(request: wb.Request, home: Path) -> str:
    """What the printed command prints in a shell where importing workbench fails."""
    poison = home / "poison"
    poison.mkdir(exist_ok=True)
    (poison / "workbench.py").write_text("raise ImportError('not here')\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(poison)}
    done = subprocess.run(
        ["bash", "-c", request.shell()],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    text = printed(done)
    assert f"{request.processes} processes" in text
    return text


def record(one: Row, found: dict[str, Any] | None, reference: float | None, note: str) -> None:
    """Append to the file that $WORKBENCH_STRATEGY_ROWS names; nothing where it is not set."""
    path = os.environ.get("WORKBENCH_STRATEGY_ROWS")
    if not path:
        return
    line = _described(one)
    measured = dict.fromkeys(("world_size", "loss", "seconds", "command"))
    if found is not None:
        measured = {key: found[key] for key in ("world_size", "seconds", "command")}
        measured["loss"] = found["loss_last"]
    line |= measured | {"ran": found is not None, "reference": reference, "note": note}
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")

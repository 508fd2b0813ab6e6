"""Runs as CSV or Parquet: the whole curves, a row per step and run, or the table of runs.

Reads and writes on as it goes: memory stays bounded however long the runs.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import HostError, StoreError, UsageError, pip_install
from workbench.observe.curves import TokenCount
from workbench.observe.events import recorded_rows
from workbench.observe.logged import LoggedRow
from workbench.observe.logged_rows import LoggedRows, column_of, joined
from workbench.observe.rank_count import rank_count
from workbench.observe.work_clock import StepClock
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.names import check_local
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

STEP_COLUMNS: dict[str, type] = {
    "run": str,
    "step": int,
    "time": float,
    "seconds": float,
    "tokens": int,
    "usd": float,
    "loss": float,
    "lr": float,
    "grad_norm": float,
    "step_seconds": float,
}
"""Columns of exported steps: their names and types; base units, time as Unix seconds."""
_ROWS_AT_ONCE = 20_000
Row = Mapping[str, Any]
OnRows = Callable[[int], None]
"""Called with how many rows are written so far."""


def step_columns(runs: Iterable[RunPaths]) -> dict[str, type]:
    """`STEP_COLUMNS` and a column for each name that one of the runs logged."""
    names = (name for paths in runs for name in _logged(paths).names)
    return STEP_COLUMNS | {column_of(name, STEP_COLUMNS): float for name in names}


def _logged(paths: RunPaths) -> LoggedRows:
    return LoggedRows(paths, rank_count(paths, (read_run(paths) or RunRecord()).processes))


def steps(paths: RunPaths) -> Generator[dict[str, Any]]:
    """A row of `STEP_COLUMNS` for every optimizer step of a run, values averaged over its ranks.

    With what was logged at it by name, see `step_columns`.
    """
    run = read_run(paths) or RunRecord()
    clock = StepClock.read(paths, read_json(paths.view) or {}, run.created_at)

    def other(row: LoggedRow) -> dict[str, Any]:
        place = _place(paths, row.step, row.time, clock.at_time(row.time), run)
        return dict.fromkeys(STEP_COLUMNS) | place

    yield from joined(_steps(paths, run, clock), _logged(paths), other)


def _place(
    paths: RunPaths, step: int, time: float, seconds: float, run: RunRecord
) -> dict[str, Any]:
    usd, name = run.usd_of(seconds), paths.directory.name
    return {"run": name, "step": step, "time": time, "seconds": seconds, "usd": usd}


def _steps(paths: RunPaths, run: RunRecord, clock: StepClock) -> Generator[dict[str, Any]]:
    count = TokenCount(run)
    for row in recorded_rows(paths, rank_count(paths, run.processes)):
        seconds = clock.at(row.time, row.step_seconds)
        yield {
            **_place(paths, row.step, row.time, seconds, run),
            "tokens": count.up_to(row),
            "loss": row.loss,
            "lr": row.lr,
            "grad_norm": row.grad_norm,
            "step_seconds": row.step_seconds,
        }


TABLE_COLUMNS: dict[str, type] = {
    "run": str,
    "name": str,
    "outcome": str,
    "strategy": str,
    "processes": int,
    "device": str,
    "script": str,
    "steps": int,
    "tokens": int,
    "loss_first": float,
    "loss_last": float,
    "loss_best": float,
    "nonfinite_step": int,
    "tokens_per_second": float,
    "samples_per_second": float,
    "step_seconds_median": float,
    "memory_bytes": int,
    "hours": float,
    "usd": float,
    "restarts": int,
    "step_ratio": float,
    "memory_ratio": float,
    "started_at": float,
    "ended_at": float,
    "tags": str,
    "note": str,
    "archived": bool,
}
"""Columns of an exported table of runs; its tags stand in one cell, a space between them."""


def table_rows(rows: Iterable[Row]) -> Generator[dict[str, Any]]:
    """Rows of `index.table` as `write` takes them."""
    for row in rows:
        yield {**row, "tags": " ".join(row["tags"])}


def write(
    path: Path, rows: Iterable[Row], columns: Mapping[str, type], on_progress: OnRows | None = None
) -> int:
    """Write rows to a ``.parquet`` file, or to a CSV file of any other name; returns how many.

    Unknown values are empty cells (CSV) or nulls (Parquet). An existing file is replaced when the
    new one is whole, and kept when it fails.

    Raises:
        HostError: Parquet without pyarrow.
        StoreError: the file cannot be written.
    """
    writer = _parquet if path.suffix == ".parquet" else _csv
    partial = path.with_name(f".{path.name}.partial")
    try:
        with contextlib.ExitStack() as undo:
            undo.callback(partial.unlink, missing_ok=True)
            done = writer(partial, rows, columns, on_progress or (lambda _: None))
            partial.replace(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
    return done


def files_asked_for(csv: Path | None, parquet: Path | None) -> list[Path]:
    """The files of the two options, whose names say what is written into them.

    Raises:
        UsageError: an address of an object store, or a name that says the other format.
        HostError: Parquet without pyarrow.
        StoreError: the folder does not exist.
    """
    files = [path for path in (csv, parquet) if path is not None]
    for path in files:
        check_local(path, "The file")
    if parquet is not None and parquet.suffix != ".parquet":
        raise UsageError(f"--parquet {parquet}: give a file name that ends in .parquet.")
    if csv is not None and csv.suffix == ".parquet":
        raise UsageError(
            f"--csv {csv}: the name says Parquet. Give --parquet {csv}, or a name that ends in "
            ".csv."
        )
    for path in files:
        check(path)
    return files


def check(path: Path) -> None:
    """Fail before the work rather than after it.

    Raises:
        HostError: Parquet without pyarrow.
        StoreError: the folder does not exist.
    """
    if path.suffix == ".parquet":
        _pyarrow()
    if not path.absolute().parent.is_dir():
        raise StoreError(
            f"{path} cannot be written: folder {path.absolute().parent} does not exist."
        )


def _csv(path: Path, rows: Iterable[Row], columns: Mapping[str, type], on_progress: OnRows) -> int:
    done = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(map(_cell, columns))  # logged names are text of the run
        for done, row in enumerate(rows, start=1):
            writer.writerow([_cell(row.get(name)) for name in columns])
            if done % _ROWS_AT_ONCE == 0:
                on_progress(done)
    return done


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets an apostrophe."""
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return f"'{value}"
    return value


def _pyarrow() -> Any:
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise HostError(
            "Parquet files are written by pyarrow, which is not installed. Install it: "
            f"{pip_install('pyarrow')}. Or export to CSV."
        ) from error


def _parquet(
    path: Path, rows: Iterable[Row], columns: Mapping[str, type], on_progress: OnRows
) -> int:
    arrow = _pyarrow()
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
    done, batch = 0, list[Row]()

    def flush(writer: Any) -> int:
        table = {name: _typed([row.get(name) for row in batch], columns[name]) for name in columns}
        writer.write_table(arrow.table(table, schema=schema))
        written = done + len(batch)
        batch.clear()
        on_progress(written)
        return written

    with arrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for row in rows:
            batch.append(row)
            if len(batch) >= _ROWS_AT_ONCE:
                done = flush(writer)
        return flush(writer)


def _typed(values: Sequence[Any], kind: type) -> list[Any]:
    """Values as their column has them; what is not of its type is unknown."""
    if kind is float:
        return [float(value) if isinstance(value, int | float) else None for value in values]
    return [value if isinstance(value, kind) else None for value in values]

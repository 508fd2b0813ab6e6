"""One run as a row of the table: what lists show, filter and sort by, and comparisons set out.

``row.json`` keeps the row of a run that has ended, so that a list of thousands reads one file of
each. It is never the record: it carries the times and sizes of the files that it was made from, and
counts only while they are the same. Delete it at any time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast, final

from workbench.observe.curves import Curve, view_curve
from workbench.observe.prediction_error.comparison import read_prediction_error
from workbench.observe.prediction_error.terms import STEP
from workbench.observe.summary import peak_memory, predicted_peak, summarise
from workbench.observe.view_json import finite
from workbench.store.files import read_json, reading_once, write_json_atomic
from workbench.store.labels import Labels, read_labels
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.row_schema import ListedRun, Row
from workbench.store.run_record import OriginDoc, RunRecord, SweepDoc
from workbench.store.runs import Store
from workbench.store.schema import SCHEMA_VERSION
from workbench.units import UNKNOWN

ENERGY = ("kwh", "tokens_per_joule", "co2e_grams")
"""What a row has of a view's ``energy``."""
LISTED = tuple(ListedRun.__annotations__)
"""The keys of ``workbench runs --json`` (a contract); `row` adds to them."""
COLUMNS = (
    *LISTED,
    *("device", "recipe", "script", "loss_best", "step_seconds_median"),
    *("memory_bytes", "hours", "usd", *ENERGY, "tokens", "restarts", "memory_ratio", "step_ratio"),
    *("resumed_from", "resumed_step", "rerun_of", "sweep", "trial", "tags", "note", "archived"),
)
"""All keys of a row."""
SOURCES = (
    *("run.json", "state.json", "view.json", "exit.json", "comparison.json"),
    "attempts.jsonl",
)
"""What a row is made from, beside the labels."""


def row(paths: RunPaths, curve: Curve) -> dict[str, Any]:
    """A run's row. Unknown values are None.

    Keys: `COLUMNS`. loss_best is of a row of the curve, memory_bytes of the fullest rank, and the
    ratios are measured ÷ predicted. restarts leaves out what was resumed by hand.
    """
    summary, run = summarise(paths), read_run(paths) or RunRecord()
    losses = [loss for loss in curve.loss if loss is not None]
    tokens = [count for count in curve.tokens if count is not None]
    elapsed: float | None = summary["elapsed_seconds"]
    origin = run.resumed_from or OriginDoc()
    energy: dict[str, Any] = summary["energy"] or {}
    return {
        **{key: summary[key] for key in LISTED},
        "device": summary["device"],
        "recipe": run.recipe,
        "script": summary["script"],
        "loss_best": min(losses, default=None),
        "step_seconds_median": summary["step_seconds_median"],
        "memory_bytes": peak_memory(summary),
        "hours": None if elapsed is None else elapsed / 3600,
        "usd": summary["usd_so_far"],
        **{key: energy.get(key) for key in ENERGY},
        "tokens": tokens[-1] if tokens else None,
        "restarts": summary["restarts"],
        "memory_ratio": _memory_ratio(summary),
        "step_ratio": read_prediction_error(paths).row(STEP).ratio,
        "resumed_from": origin.get("run"),
        "resumed_step": origin.get("step"),
        "rerun_of": run.rerun_of,
        **trial_of(run),
        **labelled(read_labels(paths)),
    }


def trial_of(run: RunRecord) -> dict[str, str | None]:
    """The part of a row about whose trial the run is, and with which values."""
    about = run.sweep or SweepDoc()
    values = (about.get("values") or {}).items()
    return {
        "sweep": about.get("name"),
        "trial": ", ".join(f"{name}={value}" for name, value in values) or None,
    }


def labelled(labels: Labels) -> dict[str, Any]:
    """The part of a row that people write."""
    return {"tags": list(labels.tags), "note": labels.note, "archived": labels.archived}


def _memory_ratio(summary: Mapping[str, Any]) -> float | None:
    measured = None if summary["rehearsal"] else peak_memory(summary)
    predicted = predicted_peak(summary["predicted"], summary["device"])
    return measured / predicted if measured is not None and predicted else None


def stamp(directory: Path, names: Iterable[str] = SOURCES, *, inodes: bool = False) -> str:
    """Changes whenever one of these files is written; with `inodes` also when it is copied."""
    parts: list[str] = []
    prefix = f"{directory}{os.sep}"
    for name in names:
        try:
            about = os.lstat(prefix + name)
        except OSError:
            parts.append("-")
        else:
            inode = f".{about.st_ino:x}" if inodes else ""
            parts.append(f"{about.st_mtime_ns:x}.{about.st_size:x}{inode}")
    return " ".join(parts)


def keep_row(paths: RunPaths) -> None:
    """Write row.json; call it after exit.json, in a run of one's own. Raises OSError."""
    before = stamp(paths.directory)
    with reading_once():
        about = row(paths, view_curve(paths) or Curve())
    if about["state"] == "ended" and stamp(paths.directory) == before:
        values = finite({name: about[name] for name in Row.__annotations__})
        write_json_atomic(paths.row, {"schema": SCHEMA_VERSION, "stamp": before, "row": values})


def kept_row(paths: RunPaths) -> dict[str, Any] | None:
    """The row of an ended run as `rows.row` makes it; None where it must be made again."""
    document = read_json(paths.row) or {}
    about: dict[str, Any] | None = document.get("row")
    if about is None or document.get("stamp") != stamp(paths.directory):
        return None
    if not Row.__annotations__.keys() <= about.keys():  # kept by an earlier version
        return None
    if about["run"] != paths.directory.name or about["state"] != "ended":
        return None
    return {**about, **labelled(read_labels(paths))}


def short_summary(paths: RunPaths) -> ListedRun:
    """The part of a summary that lists have (`rows.LISTED`), from as few files as possible."""
    about = kept_row(paths) or summarise(paths)
    return cast("ListedRun", {key: about[key] for key in LISTED})


@final
class RunList(list[ListedRun]):
    """Runs, printed as a table of the columns that tell them apart."""

    def __repr__(self) -> str:
        """One line a run; ids stay whole."""
        rows = [("run", "state", "strategy", "ranks", "steps", "loss_last", "created")]
        rows += [_cells(run) for run in self]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows)
        return "\n".join(lines) if self else "no runs"

    __str__ = __repr__


def _cells(run: ListedRun) -> tuple[str, ...]:
    created, loss = run["created_at"], run["loss_last"]
    return (
        run["run"],
        run["outcome"] or run["state"],
        run["strategy"] or UNKNOWN,
        str(run["world_size"] or run["processes"] or UNKNOWN),
        UNKNOWN if run["steps"] is None else str(run["steps"]),
        UNKNOWN if loss is None else f"{loss:.4g}",
        time.strftime("%m-%d %H:%M", time.localtime(created)) if created else UNKNOWN,
    )


def runs(store: str | os.PathLike[str] | None = None) -> RunList:
    """All runs in the store in short, newest first: a list of dicts that prints as a table.

    Keys of each: `workbench.store.row_schema.ListedRun`. ``wb.attach(row["run"])`` has the rest.

    Raises:
        StoreError: the store cannot be read.
    """
    place = Store(store)
    return RunList(short_summary(RunPaths(place.root / run_id)) for run_id in place.ids())

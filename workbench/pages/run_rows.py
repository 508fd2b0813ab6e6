"""The table of a store as its page shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from workbench.compare import index
from workbench.compare.lineage import origin_text, trees
from workbench.store.files import read_json
from workbench.store.runs import Store

_ROWS_MAX = 200  # newest first; the command line lists the rest
_LIVE = ("starting", "running", "stopping", "unsupervised")  # shown however old they are
_OF_VIEW = (
    *("run", "name", "started_at", "usd_per_hour", "usd_before", "tokens_per_step"),
    *("attempts", "attempts_before", "ended_at", "elapsed_seconds", "stride"),
)
_CURVES = ("step", "time", "loss", "tokens_per_second", "step_seconds")
_COLUMNS = (
    "run",
    "name",
    "state",
    "outcome",
    "strategy",
    "processes",
    "world_size",
    "steps",
    "loss_last",
    "nonfinite_step",
    "hours",
    "created_at",
    "started_at",
    "ended_at",
    "rehearsal",
)


class RunTable(TypedDict):
    """What a page shows of a store's runs."""

    rows: list[dict[str, Any]]  # the newest and all live ones
    of: int  # runs in the store


def read_table(store: Path) -> RunTable:
    """The newest runs of a store, each below the one that it began from; the table's columns only.

    Raises:
        StoreError: the store cannot be read.
    """
    every = index.table(Store(store))
    older_live = (row for row in every[_ROWS_MAX:] if row["state"] in _LIVE)
    rows = [
        {
            **{name: branch.row.get(name) for name in _COLUMNS},
            "depth": branch.depth,
            "from": origin_text(branch.row),
        }
        for branch in trees([*every[:_ROWS_MAX], *older_live])
    ]
    return RunTable(rows=rows, of=len(every))


def about_run(directory: Path) -> dict[str, Any]:
    """What is known of a run before its first view."""
    about = read_json(directory / "run.json") or {}
    return {
        "name": about.get("name") or directory.name,
        "strategy": about.get("strategy_name"),
        "processes": about.get("processes"),
        "device": about.get("device"),
        "steps_total": about.get("steps_total"),
    }


def series_message(directory: Path) -> dict[str, Any]:
    """The curves by which the table compares a run with others."""
    view = read_json(directory / "view.json") or {}
    columns: dict[str, Any] = view.get("series") or {}
    series = {name: columns.get(name, []) for name in _CURVES}
    return {
        "type": "series",
        "view": {**{name: view.get(name) for name in _OF_VIEW}, "series": series},
    }

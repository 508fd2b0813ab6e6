"""``row.json``: an ended run as lists show it, so that a list reads one small file of it."""

from __future__ import annotations

from typing import TypedDict


class ListedRun(TypedDict):
    """A run in short, as `wb.runs` and ``workbench runs --json`` give it. Unknown is None."""

    run: str  # its id
    name: str
    state: str  # see `Run.state`
    outcome: str | None  # see `Run.outcome`
    strategy: str | None
    processes: int | None  # ranks that were asked for
    world_size: int | None  # ranks of the process group that the script formed
    steps: int | None
    loss_first: float | None
    loss_last: float | None
    nonfinite_step: int | None  # the first whose loss was NaN or infinite
    tokens_per_second: float | None
    samples_per_second: float | None
    created_at: float | None  # when it was launched, by which lists are sorted; Unix seconds
    started_at: float | None  # of a queued run later than that
    ended_at: float | None
    message: str | None
    rehearsal: bool


class Row(ListedRun):
    """All that a list shows, filters and sorts by, except the labels that people write."""

    device: str | None
    recipe: str | None
    script: str
    loss_best: float | None
    step_seconds_median: float | None
    memory_bytes: float | None
    hours: float | None
    usd: float | None
    kwh: float | None
    tokens_per_joule: float | None
    co2e_grams: float | None
    tokens: float | None
    restarts: int
    memory_ratio: float | None
    step_ratio: float | None
    resumed_from: str | None
    resumed_step: int | None
    rerun_of: str | None
    sweep: str | None
    trial: str | None


class RowDoc(TypedDict):
    """The row, and the files that it was made from."""

    schema: int
    stamp: str  # their times and sizes; with others the row counts no more
    row: Row

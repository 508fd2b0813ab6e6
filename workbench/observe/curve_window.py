"""A part of a run's curves at the resolution of its metric files: what people zoom into.

Its beginning is found by bisection, so that a window of a long run costs what the window holds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from workbench.observe.events import MetricStream, metric_bytes
from workbench.observe.logged import LoggedStream
from workbench.observe.rank_count import rank_count
from workbench.observe.rewinds import read_rewinds
from workbench.observe.series_tables import SeriesTables
from workbench.observe.view import ViewBuilder
from workbench.store.files import open_file, parse_line
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

ROWS = 1600
"""Points of a window's curves; of more steps than that, means with the lowest and highest."""
_MOST_STEPS = 60_000  # of a window
_MOST_LINES = 500_000  # of all ranks together: about ten seconds, and a page waits for fifteen
_MOST_BYTES = 100 << 20  # of a run that made steps again: its files are read from their beginning
_BLOCK_BYTES = 1 << 14


def curve_window(paths: RunPaths, first: int, last: int) -> dict[str, Any] | None:
    """``{"series", "stride", "logged"}`` of the steps `first` to `last`, as the view has them.

    None for more steps than can be read while someone waits: the view has their curve.
    """
    run = read_run(paths) or RunRecord()
    ranks = rank_count(paths, run.processes)
    in_order = not read_rewinds(paths)
    too_large = not in_order and metric_bytes(paths, ranks) > _MOST_BYTES
    if too_large or last - first > min(_MOST_STEPS, _MOST_LINES // ranks):
        return None
    builder = ViewBuilder(paths, run, step_rows=ROWS)
    stream = MetricStream(paths, ranks)
    if in_order:
        stream.begin({rank: place(paths.rank_metrics(rank), first) for rank in range(ranks)})
    while True:
        rows = stream.read(recorded=True)
        rows += stream.read(final=True) if stream.at_end else []
        builder.add_rows(row for row in rows if first <= row.step <= last)
        if stream.at_end or (rows and rows[-1].step > last):
            break
    return {**builder.curves(), "logged": _logged(paths, ranks, first, last, in_order=in_order)}


def _logged(
    paths: RunPaths, ranks: int, first: int, last: int, *, in_order: bool
) -> dict[str, Any]:
    tables = SeriesTables(rows=ROWS)
    stream = LoggedStream(paths, range(ranks))
    if in_order:
        stream.begin({rank: place(paths.rank_said(rank), first) for rank in range(ranks)})
    while not stream.at_end:
        rows = stream.read()
        for row in rows:
            if first <= row.step <= last:
                tables.add(row)
        if in_order and rows and min(row.step for row in rows) > last:
            break
    return tables.document(everything=True)


def place(path: Path, step: int) -> int:
    """Where in a file of lines in the order of their steps those from `step` on begin."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            low, high = 0, os.fstat(file.fileno()).st_size
            while high - low > _BLOCK_BYTES:
                middle = (low + high) // 2
                file.seek(middle)
                file.readline()  # the rest of a line
                begin = file.tell()
                number = (parse_line(file.readline().rstrip(b"\n"))[0] or {}).get("step")
                if isinstance(number, int) and number < step and begin < high:
                    low = begin
                else:
                    high = middle
            return low
    except OSError:
        return 0

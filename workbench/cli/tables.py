"""Rich tables of runs. Text of runs is data: markup in it is escaped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from workbench.compare.lineage import Branch, origin, origin_text, trees
from workbench.observe.emissions import energy_text
from workbench.observe.prediction_error.terms import COST, MFU, STEP, TOKENS, PredictionError
from workbench.observe.series import Series
from workbench.observe.summary import (
    nonfinite_text,
    peak_memory,
    predicted_peak,
    throughput,
    throughput_text,
)
from workbench.observe.view_json import finite
from workbench.store.labels import Labels
from workbench.store.printable import printable
from workbench.units import format_bytes, format_ratio, format_seconds, format_usd

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]

STYLES = {
    "succeeded": "green",
    "running": "cyan",
    "queued": "blue",
    "starting": "cyan",
    "stopping": "yellow",
    "stopped": "yellow",
    "unsupervised": "yellow",
    "preempted": "yellow",
    "failed": "red",
    "interrupted": "red",
    "no-steps": "red",
}

_RUN_COLUMNS = ("run", "state", "strategy", "ranks", "steps", "last loss", "tokens/s", "created")


def badge(state: str, outcome: str | None, *, rehearsal: bool = False) -> str:
    """Coloured outcome, or state while there is none."""
    text = outcome or state
    return f"[{STYLES.get(text, 'white')}]{escape(text)}[/]" + ", rehearsal" * rehearsal


def print_json(document: Any) -> None:
    """Print strict JSON on stdout."""
    sys.stdout.write(json.dumps(finite(document), indent=2, allow_nan=False) + "\n")


def print_json_rows(rows: Iterable[dict[str, Any]]) -> None:
    """What `print_json` prints of a list, one element at a time: no list is held."""
    before = "[\n  "
    for row in rows:
        text = json.dumps(finite(row), indent=2, allow_nan=False).replace("\n", "\n  ")
        sys.stdout.write(before + text)
        before = ",\n  "
    sys.stdout.write("[]\n" if before == "[\n  " else "\n]\n")


def number(value: float | None, digits: int = 4) -> str:
    """A plain number or n/a."""
    return "n/a" if value is None else f"{value:.{digits}g}"


def runs_table(rows: list[dict[str, Any]], *, as_trees: bool = False) -> Table:
    """The store as a table; `as_trees`: each run below the one that it began from."""
    branches = trees(rows) if as_trees else [Branch(row=row) for row in rows]
    columns: list[str] = list(_RUN_COLUMNS)
    if any(map(origin_text, rows)):
        columns.append("from")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # The id is what people copy: never cut, never wrapped.
        widths = (len(branch.prefix) + len(branch.row["run"]) for branch in branches)
        width = max(widths) if column == "run" else None
        table.add_column(column, no_wrap=column != "from", min_width=width, overflow="fold")
    for branch in branches:
        run = branch.row
        created = run["created_at"]
        table.add_row(
            f"[dim]{branch.prefix}[/]{escape(run['run'])}",
            badge(run["state"], run["outcome"], rehearsal=bool(run["rehearsal"])),
            escape(run["strategy"] or "n/a"),
            str(run["world_size"] or run["processes"] or "n/a"),
            "n/a" if run["steps"] is None else str(run["steps"]),
            _loss(run),
            _rate(run),
            time.strftime("%m-%d %H:%M", time.localtime(created)) if created else "n/a",
            *[escape(origin_text(run))][: len(columns) - len(_RUN_COLUMNS)],
        )
    return table


def _rate(run: Mapping[str, Any]) -> str:
    """Tokens a second, which the column's head says; another unit is named."""
    return throughput_text(run).removesuffix(" tokens/s")


def _rate_row(summary: dict[str, Any], gap: PredictionError) -> dict[str, str]:
    rate = throughput(summary)
    if rate is None:
        return {}
    unit, _ = rate
    text = throughput_text(summary).removesuffix(f" {unit}")
    return {unit: _comparison(gap, TOKENS, text) if unit == TOKENS else text}


def series_table(series: Iterable[Series]) -> Table:
    """What the script logged: last and best of each name, groups together."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("logged", overflow="fold")
    for name in ("last", "at step", "best", "at step", "values"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for entry in sorted(series, key=lambda series: series.group):
        best = (
            (number(entry.best), _place(entry.best_step))
            if entry.better
            else (f"{number(entry.min)} to {number(entry.max)}", "")
        )
        broken = f"{entry.nonfinite:,} NaN or infinite, first at step {entry.nonfinite_step}"
        cells = (number(entry.last), _place(entry.last_step), *best, f"{entry.count:,}")
        shown = escape(printable(entry.name))
        table.add_row(shown, *cells, f"[red]{broken}[/]" if entry.nonfinite else "")
    return table


def _place(step: int | None) -> str:
    return "n/a" if step is None else str(step)


def _named(summary: Mapping[str, Any]) -> str:
    """The run's id, and its name where that is another."""
    run, name = str(summary["run"]), str(summary["name"])
    return run if name == run else f"{run}  ({name})"


def summary_table(
    summary: dict[str, Any], labels: Labels | None = None, run: Mapping[str, Any] | None = None
) -> Table:
    """One run of that run.json, a line per fact, with the prediction beside the measurement."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    gap = PredictionError.read(summary.get("comparison") or {})
    rows = {
        "run": escape(_named(summary)),
        **_label_cells(labels or Labels()),
        "script": escape(summary["script"]),
        "arguments": escape(_arguments(summary)),
        "code": escape(_code(run or {})),
        "begun from": escape(origin_text(origin(run or {}))),
        "state": badge(summary["state"], summary["outcome"], rehearsal=bool(summary["rehearsal"])),
        "message": escape(summary["message"] or ""),
        "read only": escape(summary.get("read_only") or ""),
        "strategy": escape(
            f"{summary['strategy'] or 'n/a'}, {summary['processes']} processes on "
            f"{summary['device'] or 'n/a'}"
        ),
        "steps": "n/a (unobserved)" if summary["steps"] is None else str(summary["steps"]),
        "loss": f"{number(summary['loss_first'])} → {_loss(summary)}",
        "attempts": escape(_attempts(summary)),
        "step": _comparison(
            gap, STEP, format_seconds(summary["step_seconds_median"]) + " (median)"
        ),
        **{name: escape(_comparison(gap, name)) for name in _causes(gap)},
        **_rate_row(summary, gap),
        MFU: _comparison(gap, MFU),
        "elapsed": format_seconds(summary["elapsed_seconds"]),
        "memory": memory_line(summary),
        "cost": _comparison(gap, COST) or _text_or_empty(format_usd, summary["usd_so_far"]),
        "energy": escape(_energy(summary.get("energy"))),
        "compared": escape(gap.explanation),
        "predicted": escape(gap.source or ""),
        "directory": escape(summary["dir"]),
        "report": escape(_report(summary)),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    return table


def _code(run: Mapping[str, Any]) -> str:
    """The commit of the script's repository, what differed from it, and what is kept of both.

    >>> _code({"provenance": {"commit": "4f2c9e", "changes_sha256": "ab", "copied": ["train.py"]}})
    'commit 4f2c9e with changes (source/changes.diff), 1 file copied to source/'
    """
    provenance: Mapping[str, Any] = run.get("provenance") or {}
    parts: list[str] = []
    if provenance.get("commit"):
        changes = " with changes (source/changes.diff)" if provenance.get("changes_sha256") else ""
        parts.append(f"commit {provenance['commit']}{changes}")
    if provenance.get("copied"):
        count = len(provenance["copied"])
        parts.append(f"{count} file{'' if count == 1 else 's'} copied to source/")
    return ", ".join(parts)


def _loss(summary: Mapping[str, Any]) -> str:
    """The last loss that was a finite number, and the first step that had none."""
    text, broken = number(summary["loss_last"]), nonfinite_text(summary)
    return f"{text} [red]({broken})[/]" if broken else text


def _attempts(summary: dict[str, Any]) -> str:
    """What each attempt but the last ended with, and what had to be made again."""
    starts = [attempt for attempt in summary["attempts"] if attempt["event"] == "start"]
    if len(starts) < 2:
        return ""
    ends = {
        attempt["attempt"]: attempt for attempt in summary["attempts"] if attempt["event"] == "end"
    }
    before: dict[str, Any] = summary.get("attempts_before") or {}
    lines = [str(starts[-1]["attempt"])]
    if before:
        lines.append(f"the first {before.get('count')} are not listed")
    for start in starts if before else starts[1:]:
        end = ends.get(start["attempt"] - 1)
        repeated_text = f" ({_repeated(end['last_step'] - start['first_step'])})" if end else ""
        lines.append(f"from step {start['first_step']}{repeated_text}: {start.get('why') or 'n/a'}")
    return "\n".join(lines)


def _repeated(steps: int) -> str:
    """How many steps an attempt made again.

    >>> _repeated(0), _repeated(1), _repeated(20)
    ('no step repeated', '1 step repeated', '20 steps repeated')
    """
    return f"{steps if steps > 0 else 'no'} step{'s' * (steps > 1)} repeated"


def _arguments(summary: dict[str, Any]) -> str:
    """The script's arguments where a resume gave others, and from which attempt on."""
    words: list[str] | None = None
    since = 0
    before: dict[str, Any] = summary.get("attempts_before") or {}
    earlier = [before["arguments"]] if before.get("arguments") else []
    for attempt in [*earlier, *summary["attempts"]]:
        arguments: list[str] | None = attempt.get("arguments")
        if arguments is not None and arguments != words:
            words, since = arguments, attempt["attempt"]
    return f"from attempt {since} on: {' '.join(words or ()) or 'none'}" if since else ""


def _label_cells(labels: Labels) -> dict[str, str]:
    """What people said of the run."""
    return {"tags": escape(" ".join(labels.tags)), "note": escape(labels.note or "")}


def _report(summary: dict[str, Any]) -> str:
    """Where the report of an ended run lies, once it is written."""
    path = Path(summary["dir"]) / "report.html"
    return str(path) if summary["ended_at"] and path.is_file() else ""


def _causes(gap: PredictionError) -> list[str]:
    """Of a step whose time was predicted; else they would be measured lines without a pair."""
    causes = [term for term in gap.rows if term.group == "cause"]
    return [cause.what for cause in causes if cause.predicted is not None]


def _comparison(gap: PredictionError, term: str, unmatched: str = "") -> str:
    """A term measured and predicted, with the ratio.

    `unmatched`: what is measured so far, where too few steps are to compare, or none was predicted.
    """
    row = gap.row(term)
    if row.predicted is None:
        return unmatched
    if row.measured is None:
        return f"{unmatched or 'not measured'}, {row.text(row.predicted)} predicted"
    ratio = "" if row.ratio is None else f" ({format_ratio(row.measured, row.predicted)})"
    return f"{row.text(row.measured)} measured, {row.text(row.predicted)} predicted{ratio}"


def _text_or_empty(text: Callable[[float | None], str], value: float | None) -> str:
    return "" if value is None else text(value)


def _energy(energy: Mapping[str, Any] | None) -> str:
    """What the run took, and what is not in it."""
    if not energy:
        return ""
    notes: list[str] = energy.get("notes") or []
    return "\n".join([energy_text(energy) or "n/a", *notes])


def memory_line(summary: dict[str, Any]) -> str:
    """Peak memory of the fullest rank beside the prediction."""
    measured = peak_memory(summary)
    predicted = predicted_peak(summary["predicted"], summary["device"])
    text = "not measured" if measured is None else f"{format_bytes(measured)} per rank measured"
    if predicted is None:
        return f"{text}, not predicted"
    ratio = "" if measured is None else f" ({format_ratio(measured, predicted)})"
    return f"{text}, {format_bytes(predicted)} predicted{ratio}"


def clock(seconds: float) -> str:
    """A moment (Unix seconds) in this machine's time, without the year."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(seconds))

"""Rich tables of runs. Text of runs is data: markup in it is escaped."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich.markup import escape
from rich.table import Table

from workbench.observe.summary import peak_memory, predicted_peak
from workbench.observe.view import finite
from workbench.units import format_bytes, format_count, format_ratio, format_seconds, format_usd

STYLES = {
    "succeeded": "green",
    "running": "cyan",
    "starting": "cyan",
    "stopping": "yellow",
    "stopped": "yellow",
    "unsupervised": "yellow",
    "preempted": "yellow",
    "failed": "red",
    "interrupted": "red",
    "no-steps": "red",
}


def badge(state: str, outcome: str | None) -> str:
    """Coloured outcome, or state while there is none."""
    text = outcome or state
    return f"[{STYLES.get(text, 'white')}]{escape(text)}[/]"


def print_json(document: Any) -> None:
    """Print strict JSON on stdout."""
    sys.stdout.write(json.dumps(finite(document), indent=2, allow_nan=False) + "\n")


def number(value: float | None, digits: int = 4) -> str:
    """A plain number or n/a."""
    return "n/a" if value is None else f"{value:.{digits}g}"


def runs_table(found: list[dict[str, Any]]) -> Table:
    """The store as a table."""
    columns = ("run", "state", "strategy", "ranks", "steps", "loss", "tokens/s", "started")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # The id is what people copy: never cut, never wrapped.
        width = max(len(run["run"]) for run in found) if column == "run" else None
        table.add_column(column, no_wrap=True, min_width=width)
    for run in found:
        started = run["started_at"]
        table.add_row(
            escape(run["run"]),
            badge(run["state"], run["outcome"]),
            escape(str(run["strategy"])),
            str(run["world_size"] or run["processes"] or "n/a"),
            "n/a" if run["steps"] is None else str(run["steps"]),
            number(run["loss_last"]),
            format_count(run["tokens_per_second"]),
            time.strftime("%m-%d %H:%M", time.localtime(started)) if started else "n/a",
        )
    return table


def summary_table(summary: dict[str, Any]) -> Table:
    """One run, a line per fact, with the prediction beside the measurement."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    started, ended = summary["started_at"], summary["ended_at"]
    elapsed = (ended or time.time()) - started if started else None
    rows = {
        "run": escape(f"{summary['run']}  ({summary['name']})"),
        "script": escape(summary["script"]),
        "state": badge(summary["state"], summary["outcome"]),
        "message": escape(summary["message"] or ""),
        "strategy": escape(
            f"{summary['strategy']}, {summary['processes']} processes on {summary['device']}"
        ),
        "steps": "n/a (unobserved)" if summary["steps"] is None else str(summary["steps"]),
        "loss": f"{number(summary['loss_first'])} → {number(summary['loss_last'])}",
        "step": format_seconds(summary["step_seconds_median"]) + " (median)",
        "tokens/s": format_count(summary["tokens_per_second"])
        if summary["tokens_per_second"] is not None
        else "",
        "elapsed": format_seconds(elapsed),
        "memory": memory_line(summary),
        "cost": format_usd(summary["usd_so_far"]) if summary["usd_so_far"] is not None else "",
        "directory": escape(summary["dir"]),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    return table


def memory_line(summary: dict[str, Any]) -> str:
    """Peak memory of the fullest rank beside the prediction."""
    measured = peak_memory(summary)
    predicted = predicted_peak(summary)
    return (
        f"{format_bytes(measured)} measured, {format_bytes(predicted)} predicted per rank"
        f" ({format_ratio(measured, predicted)})"
    )

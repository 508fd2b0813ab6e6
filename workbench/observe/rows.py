"""One run as a row of the table: what lists show, filter and sort by, and comparisons set out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.observe.curves import Curve
from workbench.observe.prediction_error.comparison import read_prediction_error
from workbench.observe.prediction_error.terms import STEP
from workbench.observe.summary import peak_memory, predicted_peak, summarise
from workbench.store.files import read_json
from workbench.store.labels import Labels, read_labels
from workbench.store.layout import RunPaths
from workbench.store.schema import BY_HAND

LISTED = (
    *("run", "name", "state", "outcome", "strategy", "processes", "world_size", "steps"),
    *("loss_first", "loss_last", "nonfinite_step", "tokens_per_second"),
    *("samples_per_second", "started_at", "ended_at", "message"),
)
"""The keys of ``workbench runs --json`` (a contract); `row` adds to them."""
COLUMNS = (
    *LISTED,
    *("device", "recipe", "script", "created_at", "loss_best", "step_seconds_median"),
    *("memory_bytes", "hours", "usd", "tokens", "restarts", "memory_ratio", "step_ratio"),
    *("resumed_from", "resumed_step", "rerun_of", "tags", "note", "archived"),
)
"""All keys of a row."""


def row(paths: RunPaths, curve: Curve) -> dict[str, Any]:
    """A run's row. Unknown values are None.

    Keys: `COLUMNS`. loss_best is of a row of the curve, memory_bytes of the fullest rank, and the
    ratios are measured ÷ predicted. restarts leaves out what was resumed by hand.
    """
    summary, run = summarise(paths), read_json(paths.run) or {}
    losses = [loss for loss in curve.loss if loss is not None]
    tokens = [count for count in curve.tokens if count is not None]
    elapsed: float | None = summary["elapsed_seconds"]
    origin: dict[str, Any] = run.get("resumed_from") or {}
    return {
        **{key: summary[key] for key in LISTED},
        "device": summary["device"],
        "recipe": run.get("recipe"),
        "script": summary["script"],
        "created_at": run.get("created_at"),
        "loss_best": min(losses, default=None),
        "step_seconds_median": summary["step_seconds_median"],
        "memory_bytes": peak_memory(summary),
        "hours": None if elapsed is None else elapsed / 3600,
        "usd": summary["usd_so_far"],
        "tokens": tokens[-1] if tokens else None,
        "restarts": _restarts(summary),
        "memory_ratio": _memory_ratio(summary),
        "step_ratio": read_prediction_error(paths).row(STEP).ratio,
        "resumed_from": origin.get("run"),
        "resumed_step": origin.get("step"),
        "rerun_of": run.get("rerun_of"),
        **labelled(read_labels(paths)),
    }


def labelled(labels: Labels) -> dict[str, Any]:
    """The part of a row that people write."""
    return {"tags": list(labels.tags), "note": labels.note, "archived": labels.archived}


def _restarts(summary: Mapping[str, Any]) -> int:
    """Attempts after the first that nobody asked for."""
    asked = [one for one in summary["attempts"] if str(one.get("why")).startswith(BY_HAND)]
    return max(0, summary["restarts"] - len(asked))


def _memory_ratio(summary: Mapping[str, Any]) -> float | None:
    measured, predicted = peak_memory(summary), predicted_peak(summary)
    return measured / predicted if measured is not None and predicted else None

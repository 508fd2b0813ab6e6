"""The summary of a run: what ``workbench show`` and ``workbench runs`` print (a contract)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.observe.current_view import caught_up
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.status import read_status
from workbench.units import UNKNOWN, format_count


def predicted_memory(document: Mapping[str, Any]) -> dict[str, Any]:
    """The memory estimate kept in run.json (or in a summary); empty when there is none."""
    predicted: dict[str, Any] = document.get("predicted") or {}
    memory: dict[str, Any] = predicted.get("memory") or {}
    return memory


def predicted_time(document: Mapping[str, Any]) -> dict[str, Any]:
    """The step time kept in run.json (or in a summary); empty when none was predicted."""
    predicted: dict[str, Any] = document.get("predicted") or {}
    time: dict[str, Any] = predicted.get("time") or {}
    return time


def predicted_peak(document: Mapping[str, Any]) -> int | None:
    """The prediction that `peak_memory` is to be compared with.

    On a GPU a rank measures what PyTorch allocated, so context and NCCL are left out; on CPU it
    measures its whole resident memory.
    """
    key = "allocated_bytes" if document.get("device") == "cuda" else "total_bytes"
    return predicted_memory(document).get(key)


def peak_memory(document: Mapping[str, Any]) -> int | None:
    """Peak memory of the fullest rank, from a view or a summary; None when no rank told."""
    peaks: list[int | None] = document.get("peak_memory_bytes") or []
    return max((peak for peak in peaks if peak is not None), default=None)


def throughput(document: Mapping[str, Any]) -> tuple[str, float] | None:
    """Unit and value of a view's or a summary's rate: tokens where known, else samples."""
    for unit in ("tokens", "samples"):
        value: float | None = document.get(f"{unit}_per_second")
        if value is not None:
            return f"{unit}/s", value
    return None


def throughput_text(document: Mapping[str, Any]) -> str:
    """The rate for people; "at most" where ranks may have been counted that share their data.

    >>> throughput_text({"samples_per_second": 12.25, "throughput_upper_bound": True})
    'at most 12.2 samples/s'
    >>> throughput_text({})
    'n/a tokens/s'
    """
    known = throughput(document)
    if known is None:
        return f"{UNKNOWN} tokens/s"
    unit, value = known
    text = f"{value:.3g}" if value < 100 else format_count(value)
    return f"{'at most ' * bool(document.get('throughput_upper_bound'))}{text} {unit}"


def read_comparison(paths: RunPaths, view: Mapping[str, Any]) -> dict[str, Any] | None:
    """Predicted beside measured: as kept at the end, or, of a run that goes on (again), so far."""
    kept = read_json(paths.comparison) if view.get("phase") in {None, "ended"} else None
    return kept or view.get("comparison")


def summarise(paths: RunPaths) -> dict[str, Any]:
    """Collect from the run's small files; `findings` and `read_only` are the caller's."""
    status = read_status(paths)
    run = read_json(paths.run) or {}
    state = read_json(paths.state) or {}
    view = read_json(paths.view) or {}
    view = caught_up(paths, view, status.state)
    ended = read_json(paths.exit) or {}
    return {
        "run": paths.directory.name,
        "name": run.get("name", paths.directory.name),
        "state": status.state,
        "outcome": status.outcome,
        "message": status.message,
        "exit_code": ended.get("exit_code"),
        "failed_rank": ended.get("failed_rank"),
        "strategy": run.get("strategy_name"),
        "processes": run.get("processes"),
        "world_size": state.get("world_size_seen"),
        "device": run.get("device"),
        "script": " ".join([str(run.get("script")), *run.get("arguments", [])]),
        "steps": view.get("steps", 0) if run.get("capture", True) else None,
        "steps_redone": view.get("steps_redone", 0),
        "loss_first": view.get("loss_first"),
        "loss_last": view.get("loss_last"),
        "nonfinite_step": view.get("nonfinite_step"),
        "step_seconds_median": view.get("step_seconds_median"),
        "tokens_per_second": view.get("tokens_per_second"),
        "samples_per_second": view.get("samples_per_second"),
        "throughput_upper_bound": bool(view.get("throughput_upper_bound")),
        "peak_memory_bytes": view.get("peak_memory_bytes", []),
        "predicted": run.get("predicted") or {},
        "comparison": read_comparison(paths, view),
        "usd_so_far": view.get("usd_so_far"),
        "restarts": state.get("restarts", 0),
        "attempts": view.get("attempts", []),
        "elapsed_seconds": view.get("elapsed_seconds"),
        "started_at": state.get("started_at") or run.get("created_at"),
        "ended_at": ended.get("ended_at"),
        "dir": str(paths.directory),
        "command": run.get("command"),
    }

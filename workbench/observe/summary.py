"""The summary of a run: what ``workbench show`` and ``workbench runs`` print (a contract)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from workbench.estimate.timing import CALIBRATION
from workbench.observe.current_view import caught_up
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import PredictedDoc, PredictedMemoryDoc, PredictedTimeDoc, RunRecord
from workbench.store.starts import is_by_itself, read_starts
from workbench.store.status import read_status
from workbench.units import UNKNOWN, format_count


def predicted_memory(predicted: PredictedDoc | None) -> PredictedMemoryDoc:
    """The memory estimate of a run; empty when there is none."""
    return (predicted or {}).get("memory") or {}


def predicted_time(predicted: PredictedDoc | None) -> PredictedTimeDoc:
    """The step time of a run; empty when none was predicted."""
    return (predicted or {}).get("time") or {}


def calibration_factor(time: PredictedTimeDoc) -> float:
    """By what measured runs of its stack had multiplied a predicted step; 1 = by nothing."""
    total, parts = time.get("step_seconds"), time.get("parts") or {}
    return total / (total - parts.get(CALIBRATION, 0.0)) if total else 1.0


def predicted_peak(predicted: PredictedDoc | None, device: str | None) -> float | None:
    """The prediction that `peak_memory` is to be compared with.

    On a GPU a rank measures what PyTorch allocated, so context and NCCL are left out; on CPU it
    measures its whole resident memory.
    """
    memory = predicted_memory(predicted)
    return memory.get("allocated_bytes") if device == "cuda" else memory.get("total_bytes")


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


def nonfinite_text(summary: Mapping[str, Any]) -> str:
    """When the loss was no finite number for the first time; "" = it always was one.

    >>> nonfinite_text({"nonfinite_step": 31})
    'first NaN or infinite at step 31'
    """
    step = summary.get("nonfinite_step")
    return "" if step is None else f"first NaN or infinite at step {step}"


def throughput_text(document: Mapping[str, Any]) -> str:
    """The rate for people; "at most" where ranks may have been counted that share their data.

    >>> throughput_text({"samples_per_second": 12.25, "throughput_upper_bound": True})
    'at most 12.2 samples/s'
    >>> throughput_text({})
    'n/a tokens/s'
    """
    measured = throughput(document)
    if measured is None:
        return f"{UNKNOWN} tokens/s"
    unit, value = measured
    text = f"{value:.3g}" if value < 100 else format_count(value)
    return f"{'at most ' * bool(document.get('throughput_upper_bound'))}{text} {unit}"


def read_comparison(paths: RunPaths, view: Mapping[str, Any]) -> dict[str, Any] | None:
    """Predicted beside measured: as kept at the end, or, of a run that continues, so far."""
    final = read_json(paths.comparison) if view.get("phase") in {None, "ended"} else None
    return final or view.get("comparison")


def summarise(paths: RunPaths) -> dict[str, Any]:
    """Collect from the run's small files; `findings` and `read_only` are the caller's."""
    status = read_status(paths)
    run = read_run(paths) or RunRecord()
    state = read_json(paths.state) or {}
    view = read_json(paths.view) or {}
    view = caught_up(paths, view, status.state)
    ended = read_json(paths.exit) or {}
    return {
        "run": paths.directory.name,
        "name": run.name or paths.directory.name,
        "state": status.state,
        "outcome": status.outcome,
        "message": status.message,
        "rehearsal": run.rehearsal is not None,
        "exit_code": ended.get("exit_code"),
        "failed_rank": ended.get("failed_rank"),
        "strategy": run.strategy_name or None,
        "processes": run.processes,
        "world_size": state.get("world_size_seen"),
        "device": run.device or None,
        "script": shlex.join([run.script, *run.arguments]),
        "steps": view.get("steps", 0) if run.capture else None,
        "steps_redone": view.get("steps_redone", 0),
        "loss_first": view.get("loss_first"),
        "loss_last": view.get("loss_last"),
        "nonfinite_step": view.get("nonfinite_step"),
        "step_seconds_median": view.get("step_seconds_median"),
        "tokens_per_second": view.get("tokens_per_second"),
        "samples_per_second": view.get("samples_per_second"),
        "throughput_upper_bound": bool(view.get("throughput_upper_bound")),
        "peak_memory_bytes": view.get("peak_memory_bytes", []),
        "predicted": run.predicted or {},
        "comparison": read_comparison(paths, view),
        "usd_so_far": view.get("usd_so_far"),
        "energy": view.get("energy"),
        "restarts": _restarts(paths, state.get("restarts", 0)),
        "attempts": view.get("attempts", []),
        "attempts_before": view.get("attempts_before"),
        "elapsed_seconds": view.get("elapsed_seconds"),
        "created_at": run.created_at or None,
        "started_at": state.get("started_at") or run.created_at or None,
        "ended_at": ended.get("ended_at"),
        "dir": str(paths.directory),
        "command": run.command or None,
    }


def _restarts(paths: RunPaths, attempts_after: int) -> int:
    """Unrequested starts, of the attempts after the first."""
    starts = read_starts(paths) if attempts_after else []
    return sum(map(is_by_itself, starts)) if starts else attempts_after

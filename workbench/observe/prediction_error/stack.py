"""What a finished run says about the software stack that trained it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast

from workbench.describe.stack import StackFacts, StackMeasurement
from workbench.describe.trainers.table import DEFAULT
from workbench.estimate.parts import OUTSIDE_ALLOCATOR, STATES
from workbench.observe.prediction_error.terms import PEAK, STEP, PredictionError
from workbench.observe.summary import (
    CALIBRATION,
    calibration_factor,
    predicted_memory,
    predicted_time,
)
from workbench.store.run_record import RunRecord
from workbench.store.stack_calibrations import is_near
from workbench.units import format_bytes, format_seconds
from workbench.version import __version__

_NO_TENSORS = OUTSIDE_ALLOCATOR | {CALIBRATION}


def stack_measurement(run: RunRecord, gap: PredictionError) -> StackMeasurement | None:
    """The run's step and peak beside what was predicted before anything corrected it.

    None where its workload is not known, or neither of them was both predicted and measured, near
    enough to each other.
    """
    if run.workload is None:
        return None
    figures: list[str] = []
    values: dict[str, float] = {}
    step, peak = gap.row(STEP), gap.row(PEAK)
    plain = _plain_step(run, step.predicted)
    if step.measured is not None and plain and is_near(step.measured / plain):
        values["step_ratio"] = step.measured / plain
        figures.append(f"step {format_seconds(step.measured)}")
    parts = predicted_memory(run.predicted).get("parts") or {}
    expected = (peak.predicted or 0.0) - parts.get(CALIBRATION, 0.0)
    if peak.measured is not None and expected > 0 and is_near(peak.measured / expected):
        tensors = sum(size for name, size in parts.items() if name not in _NO_TENSORS)
        states = sum(parts.get(name, 0.0) for name in STATES)
        values |= {"peak_bytes": peak.measured, "predicted_bytes": expected}
        values |= {"tensors_bytes": tensors, "states_bytes": states}
        figures.append(f"peak {format_bytes(round(peak.measured))}")
    if not values:
        return None
    accelerator = cast("dict[str, Any]", run.cluster.get("accelerator") or {})
    on_gpu = run.device == "cuda"
    return StackMeasurement(
        name=run.run,
        figures=", ".join(figures),
        measured_at=run.created_at,
        is_run=True,
        facts=_facts(run, str(accelerator.get("arch") or "") if on_gpu else ""),
        layout=layout_text(run.workload, run.strategy, run.strategy_name),
        gpu=accelerator.get("id") if on_gpu else None,
        host_key="" if on_gpu else predicted_time(run.predicted).get("host_key") or "",
        version=run.workbench_version or __version__,
        **values,
    )


def _plain_step(run: RunRecord, predicted: float | None) -> float | None:
    """The predicted step as the model made it, before runs of the host or of the stack."""
    if predicted is None:
        return None
    time = predicted_time(run.predicted)
    correction = time.get("correction")
    return predicted / calibration_factor(time) / (correction["factor"] if correction else 1.0)


def _facts(run: RunRecord, arch: str) -> StackFacts:
    workload = run.workload or {}
    model = cast("Mapping[str, Any]", workload.get("model") or {})
    trainer = run.trainer or {}
    quantized = workload.get("quantization") not in {None, "none"}
    named = bool(trainer.get("named") or trainer.get("imported"))
    trained = "full" if not workload.get("lora_rank") else "qlora" if quantized else "lora"
    return StackFacts(
        trainer=str(trainer.get("name") or DEFAULT),
        release=str(trainer.get("release") or ""),
        script="" if named else run.recipe or PurePath(run.script).name,
        device=run.device,
        arch=arch,
        precision=str(workload.get("precision") or ""),
        trained=trained,
        has_experts=bool(model.get("experts")),
    )


def layout_text(workload: Mapping[str, Any], strategy: Mapping[str, Any], name: str) -> str:
    """Model, batch and layout from their documents, alike where the same is measured again."""
    model = cast("Mapping[str, Any]", workload.get("model") or {})
    batch = " x ".join(str(workload.get(name)) for name in ("accumulate", "micro_batch", "seq_len"))
    degrees = "dp_replicate", "dp_shard", "tp", "pp", "cp"
    ranks = math.prod(strategy.get(degree) or 1 for degree in degrees)
    recompute = strategy.get("recompute") or "none"
    return (
        f"{model.get('name')} ({model.get('layers')} x {model.get('hidden')}), {name} on {ranks}, "
        f"{batch} tokens, recompute {recompute}"
    )

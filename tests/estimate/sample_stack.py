"""Measurements of a software stack, made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import workbench as wb
from workbench.describe.stack import StackCalibration, StackFacts, StackMeasurement
from workbench.version import __version__

FACTS = StackFacts("torchtitan", "", "", "cuda", "Hopper", "bf16", "full", False)  # noqa: FBT003
OPTIONS: dict[str, Any] = {"gpu": "h100", "gpus": 8, "strategy": "fsdp", "seq_len": 4096}


def measured(name: str = "run-a", **more: Any) -> StackMeasurement:
    """Of a run that took 1.25 times the predicted step."""
    facts = FACTS._replace(**{one: more.pop(one) for one in FACTS._fields if one in more})
    values: dict[str, Any] = {
        "name": name,
        "figures": "step 1 s",
        "measured_at": 1.795e9,
        "is_run": True,
        "facts": facts,
        "layout": name,
        "gpu": "h100-sxm",
        "version": __version__,
        "step_ratio": 1.25,
    }
    return StackMeasurement(**(values | more))


def stack(*measurements: StackMeasurement, **more: Any) -> StackCalibration:
    """What a job of the sample's trainer is corrected by."""
    return StackCalibration(trainer="torchtitan", measurements=measurements, **more)


def job(calibration: StackCalibration | None = None, **options: Any) -> wb.Job:
    """A job of that trainer."""
    made = wb.Job.of("llama-3-8b", **({**OPTIONS, "trainer": "torchtitan"} | options))
    return replace(made, workload=replace(made.workload, calibration=calibration))

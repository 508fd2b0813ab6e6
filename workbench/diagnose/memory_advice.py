"""Which part fills the memory by the estimate, and which switch saves how many GiB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from workbench.describe.job import Job
from workbench.errors import WorkbenchError
from workbench.units import format_bytes

_SWITCHES = 3


def largest_parts(run: Mapping[str, Any]) -> str:
    """``activations: blocks 3.1 GiB, optimizer states 2.0 GiB``; "" where nothing is predicted."""
    predicted = cast("dict[str, Any]", run.get("predicted") or {})
    memory = cast("dict[str, Any]", predicted.get("memory") or {})
    parts = cast("dict[str, Any]", memory.get("parts") or {})
    known = {name: size for name, size in parts.items() if isinstance(size, int)}
    most = sorted(known, key=lambda name: -known[name])[:2]
    return ", ".join(f"{name} {format_bytes(known[name])}" for name in most)


def advice(run: Mapping[str, Any]) -> str:
    """The switches that save most without changing the result; "" where the model is unknown."""
    from workbench.estimate.sizing.switch import RESULT, switches  # noqa: PLC0415  (only after an OOM)

    try:
        job = Job.recorded(run)
        known = switches(job.workload, job.strategy, job.cluster)
    except WorkbenchError:
        return ""
    found = [one for one in known if one.tier < RESULT]
    saves = [
        f"{one.name} saves {format_bytes(one.saves_bytes)} ({one.option})"
        for one in found[:_SWITCHES]
    ]
    return "Estimated savings: " + ", ".join(saves) + "." if saves else ""

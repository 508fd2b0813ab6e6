"""Which part fills the memory by the estimate, and which switch saves how many GiB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from workbench.describe import Cluster, Model, Strategy, Workload
from workbench.describe.hardware import Gpu
from workbench.describe.workload import Kernels
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
    described = describe(run)
    if described is None:
        return ""
    from workbench.estimate.switching import RESULT, switches  # noqa: PLC0415  (only after an OOM)

    workload, strategy, cluster = described
    try:
        found = [one for one in switches(workload, strategy, cluster) if one.tier < RESULT]
    except WorkbenchError:
        return ""
    saves = [
        f"{one.name} saves {format_bytes(one.saves_bytes)} ({one.option})"
        for one in found[:_SWITCHES]
    ]
    return "By the estimate " + ", ".join(saves) + "." if saves else ""


def describe(run: Mapping[str, Any]) -> tuple[Workload, Strategy, Cluster | str] | None:
    """The three inputs as run.json keeps them; None where one is missing or of another version."""
    document = run.get("workload")
    if not isinstance(document, dict):
        return None
    workload = _tuples(cast("dict[str, Any]", document))
    try:
        workload["model"] = Model(**_tuples(workload["model"]))
        workload["kernels"] = Kernels(**workload.get("kernels", {}))
        strategy = Strategy(**_tuples(run["strategy"]))
        return Workload(**workload), strategy, _cluster(run)
    except (KeyError, TypeError, WorkbenchError):
        return None


def _cluster(run: Mapping[str, Any]) -> Cluster | str:
    if run.get("device") == "cpu":
        return "cpu"
    known = run["cluster"]
    gpus = tuple(Gpu(**gpu) for gpu in known.get("gpus") or ())
    if not gpus:
        return "cuda"
    return Cluster(name=known["name"], gpus=gpus, memory_bytes=known.get("memory_bytes"))


def _tuples(document: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where the values have tuples."""
    return {
        name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        for name, value in document.items()
    }

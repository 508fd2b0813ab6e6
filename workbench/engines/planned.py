"""One plan of ``workbench plan --json``, read back: its machines, its layout, the job it is of.

All of them raise KeyError, TypeError or UsageError where the entry is not one of such a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from workbench.describe import Cluster, Network, Strategy, Workload
from workbench.describe.checks import require_at_least
from workbench.describe.implementation import ImplementationAssumptions
from workbench.describe.job import Job
from workbench.describe.option import declared, flat_names
from workbench.describe.recorded import from_document
from workbench.errors import UsageError
from workbench.planning.plans import OWN


def machines(entry: Mapping[str, Any]) -> tuple[int, int]:
    """How many there are, and the GPUs of each."""
    gpus, nodes = entry["gpus"], entry["nodes"]
    for name, count in (("gpus", gpus), ("nodes", nodes)):
        require_at_least(name, count, 1)
    each, rest = divmod(gpus, nodes)
    if rest:
        raise UsageError(f"{gpus} GPUs are not so many on each of {nodes} machines.")
    return nodes, each


def provider(entry: Mapping[str, Any]) -> str | None:
    """Who rents them out; None = they are one's own."""
    name = str(entry["provider"])
    return None if name == OWN else name


def layout(entry: Mapping[str, Any]) -> Strategy:
    """The strategy, with what its name does not say."""
    nodes, each = machines(entry)
    name = entry["strategy"]
    if not isinstance(name, str):
        raise TypeError(f"its strategy {name!r} is not a name")
    return Strategy.parse(name, nodes * each).with_options(
        recompute=entry["recompute"],
        recompute_parts=tuple(entry["recompute_parts"]),
        offload=tuple(entry["offload"]),
        **_values(entry, "options"),
    )


def planned_job(entry: Mapping[str, Any], document: Mapping[str, Any]) -> Job:
    """The job of an entry, as its document describes what is trained."""
    nodes, each = machines(entry)
    network = entry.get("network")
    workload = from_document(Workload, document["workload"])
    sizes = {name: entry[name] for name in ("micro_batch", "accumulate")}
    own = _values(entry, "trained")
    kernels = {name: own.pop(name) for name in declared(ImplementationAssumptions) if name in own}
    spread = {name: own.pop(name) for name in flat_names(Strategy) if name in own}
    implementation = replace(workload.kernels, **kernels)
    return Job(
        workload=replace(workload, kernels=implementation, **sizes, **own),
        strategy=layout(entry).with_options(**spread),
        cluster=Cluster.rented(
            entry["gpu"],
            gpus=each,
            nodes=nodes,
            network=network and from_document(Network, network),
            link=entry.get("link", "catalog"),
        ),
    )


def _values(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Options by name; a plan of an earlier version has none."""
    values = entry.get(key, {})
    if not isinstance(values, Mapping):
        raise TypeError(f"its {key} are not an object")
    values_by_name = cast("Mapping[str, Any]", values)
    return {
        name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        for name, value in values_by_name.items()
    }

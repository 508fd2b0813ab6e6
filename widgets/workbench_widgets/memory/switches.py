"""What would help, each with the controls that make it: ranked switches and ways to fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import workbench as wb
from workbench.describe import KERNELS, ImplementationAssumptions
from workbench.describe.job import OF_PRESET
from workbench.describe.option import declared
from workbench.estimate import sizing
from workbench_widgets.job_form import (
    COMBINED,
    DEGREES,
    STRATEGIES,
    JobForm,
    options_in_effect,
)


def advice(choice: JobForm) -> dict[str, Any]:
    """Why the peak is where it is, what would lower it, how far the card reaches, ways to fit.

    Raises:
        UsageError: the controls say something that cannot be.
    """
    job = choice.job()
    workload, layout, cluster = job.workload, job.strategy, job.cluster
    assert isinstance(cluster, wb.Cluster), "a GPU was chosen"
    estimate = wb.training_memory(job)
    switches = [
        {
            "name": switch.name,
            "saves": switch.saves_bytes,
            "cost": f"{switch.cost[:1].upper()}{switch.cost[1:]}.",
            "result": switch.changes_result,
            "how": switch.in_practice,
            "changes": moves(choice, switch.workload, switch.strategy),
        }
        for switch in sizing.switches(job)
    ]
    return {
        "why": list(sizing.explain(estimate, job)),
        "switches": switches,
        "ways": _ways(choice, job),
        "reach": [
            {"name": name, "value": answer.value, "unit": answer.unit, "says": answer.reason}
            for name, answer in (
                ("Largest micro-batch", sizing.largest_micro_batch(workload, layout, cluster)),
                ("Longest sequence", sizing.longest_sequence(workload, layout, cluster)),
            )
        ],
    }


def _ways(choice: JobForm, job: wb.Job) -> list[dict[str, Any]]:
    """On how few of the chosen GPUs it would fit: one GPU first."""
    rows: list[dict[str, Any]] = []
    for option in sizing.fewest_gpus(job):
        size = {"gpus": option.gpus // option.nodes, "nodes": option.nodes}
        rows.append(
            {
                "gpus": option.gpus,
                "name": " + ".join(option.switches)
                or ("current setting" if option.strategy.world_size == 1 else option.strategy.name),
                "free": option.free_bytes,
                "result": option.changes_result,
                "changes": moves(choice, option.workload, option.strategy, size),
            }
        )
    return rows


def moves(
    choice: JobForm,
    workload: wb.Workload,
    layout: wb.Strategy,
    size: dict[str, int] | None = None,
) -> dict[str, Any] | None:
    """Controls to set so that they say `workload` and `layout`; None if they cannot.

    ``size`` gives GPUs and nodes where they change with the layout.
    """
    target_options = _options(workload, layout)
    for strategy in _strategies(layout, size or {}):
        after = choice.changed(target_options | strategy)
        if _describes(after, workload, layout):
            now, then = choice.document(), after.document()
            return {
                name: then[name] for name in target_options | strategy if then[name] != now[name]
            }
    return None


def _options(workload: wb.Workload, layout: wb.Strategy) -> dict[str, Any]:
    """The options of a job by name; the kernels as a preset where one has them."""
    options = options_in_effect(workload, layout)
    assumption_names = declared(ImplementationAssumptions).keys() - OF_PRESET
    own = {name: options[name] for name in assumption_names}
    for preset, assumed in KERNELS.items():
        if dataclasses.replace(assumed, **own) == workload.kernels:
            other_options = {
                name: value for name, value in options.items() if name not in OF_PRESET
            }
            return {**other_options, "kernels": preset}
    return options


def _describes(choice: JobForm, workload: wb.Workload, layout: wb.Strategy) -> bool:
    try:
        job = choice.job()
    except wb.UsageError:
        return False
    strategy = dataclasses.replace(job.strategy, name=layout.name)
    return job.workload == workload and strategy == layout


def _strategies(layout: wb.Strategy, size: dict[str, int]) -> list[dict[str, Any]]:
    """Settings of the layout's controls to try, the present one first."""
    degrees = {name: getattr(layout, name) for name in DEGREES}
    if layout.world_size == 1:
        size = {"gpus": 1, "nodes": 1}
    if layout.name in STRATEGIES:
        near = [layout.name]
    else:
        near = [name for name in COMBINED if _base(layout) == name]
    return [size, *({"strategy": name, **degrees, **size} for name in near)]


def _base(layout: wb.Strategy) -> str:
    if layout.zero_stage:
        return f"zero{layout.zero_stage}"
    if layout.dp_shard == 1:
        return "ddp"
    return "fsdp" if layout.fsdp.reshard_after_forward else "fsdp-grad-op"

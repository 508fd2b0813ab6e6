"""From a plan to the launcher: what it takes, the exact settings, what this host lacks for it."""

from __future__ import annotations

from typing import Any

import workbench as wb
from workbench.launch import accelerate_config
from workbench.plan import Plan
from workbench_widgets.launcher import Launcher
from workbench_widgets.memory_choice import gpu_name


def launch_terms(plan: Plan) -> dict[str, Any]:
    """The settings to launch with, and every reason why this host cannot start it as it is."""
    strategy, workload = plan.strategy, plan.workload
    lacks = _lacks(plan)
    settings = [
        f'wb.launch("train.py", strategy="{strategy.name}", processes={plan.gpus})',
        f"micro_batch = {workload.micro_batch}",
        f"accumulate = {workload.accumulate}",
        f"seq_len = {workload.seq_len}",
        f'precision = "{workload.precision}"',
        f'optimizer = "{workload.optimizer}"',
    ]
    if strategy.recompute != "none":
        parts = f" ({', '.join(strategy.recompute_parts)})" * (strategy.recompute == "selective")
        settings.append(f'recompute = "{strategy.recompute}"{parts}')
    if strategy.offload:
        settings.append(f"offload = {list(strategy.offload)}")
    if plan.nodes > 1:
        settings.append(f"nodes = {plan.nodes}, {plan.gpus // plan.nodes} processes on each")
    return {"settings": settings, "lacks": lacks, "here": not lacks}


def hand_over(plan: Plan, launcher: Launcher | None) -> str:
    """Set the launch form to the plan as far as it goes; says what was done and what is missing."""
    lacks = _lacks(plan)
    if launcher is None:
        done = "There is no launch form here: Workbench() has one, or use the settings below."
    elif plan.nodes == 1 and plan.strategy.name in _offered(launcher):
        launcher.fields.strategy.value = plan.strategy.name
        launcher.fields.processes.value = plan.gpus
        many = "1 process" if plan.gpus == 1 else f"{plan.gpus} processes"
        done = f"The launch form now says {plan.strategy.name} with {many}."
    else:
        done = "The launch form stays as it is."
    return " ".join((done, *lacks))


def _offered(launcher: Launcher) -> set[str]:
    """Strategies of the form's list."""
    return {value for _, value in launcher.fields.strategy.options}


def _lacks(plan: Plan) -> list[str]:
    """What the launcher cannot do, then what this host has not."""
    unsupported = accelerate_config.why_not(plan.strategy, plan.nodes)
    return [*([unsupported] if unsupported else []), *_missing_gpus(plan)]


def _missing_gpus(plan: Plan) -> list[str]:
    """What this host lacks of the plan's GPUs, in one sentence."""
    per_node = plan.gpus // plan.nodes
    have = wb.detect_host().gpus
    if not have:
        return [f"This host has no GPU; the plan needs {per_node} x {plan.gpu}: {_rent(plan)}"]
    names = {gpu_name(gpu.name) for gpu in have}
    if len(have) >= per_node and names == {plan.gpu}:
        return []
    found = f"{len(have)} x {', '.join(sorted(names))}"
    return [f"This host has {found}; the plan needs {per_node} x {plan.gpu}: {_rent(plan)}"]


def _rent(plan: Plan) -> str:
    name = plan.offer.name or plan.gpu
    return f"rent {name} at {plan.provider} and open the workbench there."

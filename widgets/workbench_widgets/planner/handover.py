"""From a plan to the launcher: what it takes, the exact settings, what this host lacks for it."""

from __future__ import annotations

from typing import Any

import workbench as wb
from workbench.describe.supported import why_not_in
from workbench.launching.prepare import accelerate_config
from workbench.launching.prepare.described import missing_gpus
from workbench.planning import Plan
from workbench.planning.plans import OWN
from workbench.script_options.reading import read_options
from workbench_widgets.launch.launcher import Launcher


def launch_terms(plan: Plan) -> dict[str, Any]:
    """The settings to launch with; why this host cannot start it as it is, and the plan's notes."""
    strategy, workload = plan.strategy, plan.workload
    lacks = _lacks(plan)
    target = "gpt" if strategy.tp * strategy.cp * strategy.pp > 1 else "train.py"
    options = _options(strategy)
    keywords = f", options={options!r}" if options else ""
    many = f', nodes={plan.nodes}, address="ADDRESS"' if plan.nodes > 1 else ""
    each = plan.gpus // plan.nodes
    call = f'"{target}", strategy="{strategy.name}", processes={each}{many}{keywords}'
    settings = [
        f"wb.launch({call})",
        f"micro_batch = {workload.micro_batch}",
        f"accumulate = {workload.accumulate}",
        f"seq_len = {workload.seq_len}",
        f'precision = "{workload.precision}"',
        f'optimizer = "{workload.optimizer}"',
    ]
    return {"settings": settings, "lacks": [*lacks, *plan.notes], "here": not lacks}


def _options(strategy: wb.Strategy) -> dict[str, Any]:
    """What its name does not say; the recomputed parts count with selective recompute alone."""
    options = strategy.options_beside_name()
    if strategy.recompute != "selective":
        options.pop("recompute_parts", None)
    return options


def hand_over(plan: Plan, launcher: Launcher | None) -> str:
    """Set the launch form to the plan as far as it goes; says what was done and what is missing."""
    lacks = _lacks(plan, launcher)
    if launcher is None:
        done = "This page does not have a launch form: use Workbench(), or the settings below."
    else:
        done = _set(plan, launcher)
    return " ".join((done, *lacks))


def _set(plan: Plan, launcher: Launcher) -> str:
    """Strategy, ranks and options in the picker; the batch in a recipe's arguments."""
    if plan.nodes > 1 or accelerate_config.why_not(plan.strategy, splits=_splits(launcher)):
        return "The launch form is unchanged."
    try:
        launcher.picker.take(plan.strategy)
    except wb.UsageError as error:
        return f"The launch form is unchanged. {error}"
    many = "1 process" if plan.gpus == 1 else f"{plan.gpus} processes"
    options = ", ".join(f"{name} {_text(value)}" for name, value in _options(plan.strategy).items())
    sentence = f"The launch form is set to {plan.strategy.name} with {many}"
    sentence += f" and {options}" if options else ""
    flags = _flags(plan, launcher)
    if not flags:
        return f"{sentence}. Set batch and precision in the script: see the settings."
    try:
        launcher.fields.arguments.set(flags)
    except wb.UsageError as error:  # what is typed there cannot be read
        return f"{sentence}. The recipe's arguments are unchanged. {error}"
    return f"{sentence}, {' '.join(map(' '.join, flags.items()))}; the recipe uses its own model."


def _flags(plan: Plan, launcher: Launcher) -> dict[str, str]:
    """A recipe's options for the plan's batch; nothing for a script."""
    recipe = launcher.fields.recipe
    if recipe is None:
        return {}
    work = plan.workload
    flags = {
        "--micro-batch": str(work.micro_batch),
        "--accumulate": str(work.accumulate),
        "--seq-len": str(work.seq_len),
    }
    precision_option = read_options(wb.recipes.find(recipe).path, recipe=recipe).known.of(
        "--precision"
    )
    computes = precision_option is not None and work.precision in precision_option.choices
    if computes and not why_not_in(plan.strategy, work.precision):
        flags["--precision"] = work.precision
    return flags


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _splits(launcher: Launcher | None) -> frozenset[str] | None:
    """What the form's recipe does itself; of no form, what the recipe gpt does."""
    name = "gpt" if launcher is None else launcher.fields.recipe
    return None if name is None else wb.recipes.find(name).splits


def _lacks(plan: Plan, launcher: Launcher | None = None) -> list[str]:
    """What the launcher cannot do, then what this host has not."""
    unsupported = accelerate_config.why_not(plan.strategy, plan.nodes, _splits(launcher))
    missing = missing_gpus(plan.cluster, wb.detect_host())
    if missing:
        name = plan.offer.name or plan.gpu
        rent = "O" if plan.provider == OWN else f"Rent {name} at {plan.provider} and o"
        missing += f" {rent}pen the workbench there."
    return [sentence for sentence in (unsupported, missing) if sentence]

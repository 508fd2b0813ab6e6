"""The options of a run, read back from its directory, and the same with some of them changed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import Strategy
from workbench.describe.job import Job
from workbench.describe.stack import ALL
from workbench.describe.strategy import DEGREES
from workbench.describe.supported import check_supported
from workbench.errors import UsageError
from workbench.launching.capture import SITE_FOLDER
from workbench.launching.prepare.build_request import default_name
from workbench.launching.prepare.described import with_job
from workbench.launching.prepare.launcher_process import SINGLE_PROCESS_VARIABLES
from workbench.launching.prepare.options import FIXED, IN_PLACE, LaunchOptions, check_names
from workbench.launching.prepare.placement import NAMES as INTERFACES
from workbench.launching.prepare.preflight import USUAL_PORT
from workbench.launching.prepare.recorded_environment import recorded_value
from workbench.recover.policy import Recovery, recovery_of
from workbench.store import stack_calibrations
from workbench.store.layout import RunPaths
from workbench.store.processes import MARKER
from workbench.store.run_record import RunRecord
from workbench.store.runs import Store

_DEGREES = {"name", *DEGREES, "zero_stage"}
_OURS = {
    *("ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED", "WORKBENCH_CAPTURE"),
    *("WORKBENCH_RUN_DIR", MARKER, *INTERFACES, *SINGLE_PROCESS_VARIABLES),
}
"""Variables that a launch sets by itself."""
_MOST_DROPPED = 6  # options looked at together when some of them have to go


def options_of(paths: RunPaths, run: RunRecord) -> LaunchOptions:
    """What the run was launched with; its record may be one of an earlier version.

    Raises:
        UsageError: the environment held what is not taken from a record, nor in this one.
    """
    strategy = Strategy.recorded(run.strategy)
    module = (run.module or "").rpartition(".")[2]
    script = Path(run.recipe or module or run.script)
    return LaunchOptions(
        job=_job(run),
        strategy=strategy,
        processes=strategy.world_size // run.nodes,
        nodes=run.nodes,
        address=run.address if run.nodes > 1 else None,
        devices=tuple(run.devices),
        share=run.share,
        cpu=run.device == "cpu",
        # A name that was made of script and strategy is made again.
        name=None if run.name == default_name(script.stem, strategy) else run.name,
        store=Store(paths.directory.parent),
        wrap=_wrap(paths, run),
        capture=run.capture,
        warm=run.warm,
        port=_port(run) if run.nodes > 1 else 0,
        environment=_environment(run),
        recovery=Recovery.read(run.recovery),
        trackers=tuple(run.trackers),
        notify=tuple(run.notify),
        mirror=run.mirror,
        grid_gco2e_per_kwh=run.grid_gco2e_per_kwh,
        calibration=_calibration(paths, run),
    )


def _job(run: RunRecord) -> Job | None:
    """Of a script: what it was described by. The arguments of a recipe say it."""
    if run.recipe is not None:
        return None
    with contextlib.suppress(UsageError):
        return replace(Job.recorded(run.document()), cluster=run.device)  # on the machine at hand
    return None


def _wrap(paths: RunPaths, run: RunRecord) -> str | None:
    """As given. Records of earlier versions keep it in the launcher's config file alone."""
    if "wrap" in run.as_read or run.recipe is not None:
        return run.wrap
    try:
        text = (paths.config / "accelerate.yaml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    match = re.search(r'"fsdp_transformer_layer_cls_to_wrap": "([^"]+)"', text)
    return match[1] if match else None


def _calibration(paths: RunPaths, run: RunRecord) -> str:
    """As given; all where its store has no such measurement any more: a run starts without, too."""
    try:
        stack_calibrations.of_stack(paths.directory.parent, None, run.calibration)
    except UsageError:
        return ALL
    return run.calibration


def gone_calibration(run: RunRecord, options: LaunchOptions) -> tuple[str, ...]:
    """What to say of a run whose measurement is gone: `options` are those that were read of it."""
    if options.calibration == run.calibration:
        return ()
    gone = (
        f"The measurement {run.calibration!r}, which corrected its prediction, cannot be used here"
    )
    return (f"{gone}: all measurements of the trainer count.",)


def _port(run: RunRecord) -> int:
    """The port at which the machines were to meet; 0 = none was given."""
    flag, words = "--main_process_port", run.command
    # The launcher's comes first; a script may have such an option, too.
    port_text = words[words.index(flag) + 1] if flag in words[:-1] else ""
    port = int(port_text) if port_text.isdecimal() else 0
    return 0 if 0 <= port - USUAL_PORT < 100 else port  # which of these is free now is to be seen


def _environment(run: RunRecord) -> dict[str, str]:
    """The variables that were given for the run."""
    variables = run.extra_environment
    if variables is None:
        variables = {name: value for name, value in run.environment.items() if name not in _OURS}
        search = [part for part in variables.get("PYTHONPATH", "").split(os.pathsep) if part]
        remaining = [part for part in search if Path(part) != SITE_FOLDER]
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if not remaining or remaining == inherited:
            variables.pop("PYTHONPATH", None)
        else:
            variables["PYTHONPATH"] = os.pathsep.join(remaining)
    return {name: recorded_value(run, name, value) for name, value in variables.items()}


def explicit_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that are not None; None leaves an option as it is.

    Raises:
        UsageError: one is unknown, or nothing that a resumed run can change.
    """
    check_names(changes)
    some = {name: value for name, value in changes.items() if value is not None}
    if {"queue", "priority"} & set(some):
        raise UsageError("A resumed run starts at once. Only a launch can wait in the queue.")
    if FIXED & set(some):
        raise UsageError("A resumed run stays in its store. Launch a new run to use another one.")
    return {name: value for name, value in some.items() if value != {}}


def stays_in_place(changes: Mapping[str, Any]) -> bool:
    """Whether a run with these changes is the same run: they concern neither layout nor name."""
    return set(changes) <= IN_PLACE


def changed(
    run: RunRecord, options: LaunchOptions, changes: Mapping[str, Any]
) -> tuple[LaunchOptions, list[str]]:
    """`options` with `changes`, and a sentence per option that the new strategy does not have.

    Raises:
        UsageError: the new strategy cannot be launched, or does not know a changed option.
    """
    job: Job | None = changes.get("job")
    plain: dict[str, Any] = {name: value for name, value in changes.items() if name not in _MERGED}
    if job is not None:
        made = with_job(LaunchOptions(job=job))
        job_values = {"strategy": made.strategy, "nodes": made.nodes, "cpu": made.cpu}
        plain = job_values | plain | {"job": job if run.recipe is None else None}
    if "environment" in changes:
        plain["environment"] = {**options.environment, **changes["environment"]}
    if "recovery" in changes:
        plain["recovery"] = recovery_of(changes["recovery"], options.recovery)
    if "strategy" not in plain and "nodes" not in plain and "processes" not in plain:
        assert isinstance(options.strategy, Strategy)
        base, carried = options.strategy, dict[str, Any]()
    else:
        base, carried = _resized(options, plain)
    explicit = dict(changes.get("options") or {})
    splits = None if run.recipe is None else recipes.find(run.recipe).splits
    carried = {name: value for name, value in carried.items() if name not in explicit}
    device = "cpu" if plain.get("cpu", options.cpu) else "cuda"
    strategy, dropped = _with_carried(base.with_options(**explicit), carried, splits, device)
    nodes = plain.get("nodes", options.nodes)
    plain |= {"strategy": strategy, "processes": max(1, strategy.world_size // nodes)}
    if plain["processes"] != options.processes:  # as many devices as ranks
        plain.setdefault("devices", ())
    if job is None and options.job is not None:  # what it described, on the machine at hand
        plain["job"] = replace(options.job, strategy=strategy, cluster=device)
    return replace(options, **plain), dropped


_MERGED = {"environment", "recovery", "options"}


def _resized(options: LaunchOptions, plain: Mapping[str, Any]) -> tuple[Strategy, dict[str, Any]]:
    """The strategy by its name for the new number of ranks, and the old one's other options."""
    before = options.strategy
    assert isinstance(before, Strategy)
    nodes = int(plain.get("nodes", options.nodes))
    requested = plain.get("strategy", before.name)
    if isinstance(requested, Strategy):
        return requested, {}
    count: int | None = plain.get("processes")
    ranks = Strategy.ranks_of(requested) if count is None else nodes * count
    if ranks is None:
        ranks = max(nodes * (options.processes or 1), 2)
    return Strategy.parse(requested, ranks), _options_beyond_name(before)


def _options_beyond_name(strategy: Strategy) -> dict[str, Any]:
    """The options, except degrees, in which a strategy differs from the one of its name."""
    options = strategy.options_beside_name()
    return {name: value for name, value in options.items() if name not in _DEGREES}


def _with_carried(
    base: Strategy, carried: Mapping[str, Any], splits: frozenset[str] | None, device: str
) -> tuple[Strategy, list[str]]:
    """`base` with as many of the `carried` options as it can have, and why the others are dropped.

    Raises:
        UsageError: not even `base` can be launched.
    """
    check_supported(base, splits, device)
    for names in _largest_first(list(carried)):
        strategy = base.with_options(**{name: carried[name] for name in names})
        if not _problem(strategy, splits, device):
            gone = [name for name in carried if name not in names]
            return strategy, [
                _dropped(strategy, name, carried[name], splits, device) for name in gone
            ]
    return base, []


def _largest_first(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All subsets; of many options only those that lack few, and none."""
    least = max(0, len(names) - _MOST_DROPPED)
    for size in range(len(names), least - 1, -1):
        yield from combinations(names, size)
    yield ()


def _problem(strategy: Strategy, splits: frozenset[str] | None, device: str) -> str:
    try:
        check_supported(strategy, splits, device)
    except UsageError as error:
        return str(error)
    return ""


def _dropped(
    strategy: Strategy, name: str, value: Any, splits: frozenset[str] | None, device: str
) -> str:
    text = ",".join(value) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    problem = _problem(strategy.with_options(**{name: value}), splits, device)
    return f"--{name.replace('_', '-')} {text} is dropped for {strategy.name}: {problem}"

"""The dry run: everything that would be started, exactly, before anything is.

`request` checks the wish against this host and returns a `Request`; nothing is written.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import Cluster, Strategy
from workbench.describe.checks import require_at_least
from workbench.describe.detection import CHOOSE_GPUS, detect_host, host_price
from workbench.describe.job import Job
from workbench.describe.strategy import DEGREES
from workbench.errors import HostError, UsageError, pip_install
from workbench.launching.cell.script import call_words, function_script, tidy
from workbench.launching.prepare import accelerate_config
from workbench.launching.prepare.accelerate_defaults import open_settings
from workbench.launching.prepare.described import (
    on_this_host,
    recipe_arguments,
    recipe_for,
    with_job,
)
from workbench.launching.prepare.devices import on_named, on_unused, waiting_share
from workbench.launching.prepare.launcher_process import spreading
from workbench.launching.prepare.layout_flags import check_arguments, layout_flags
from workbench.launching.prepare.options import Launched, LaunchOptions, with_launch_options
from workbench.launching.prepare.placement import check_nodes, check_shares
from workbench.launching.prepare.prediction import with_prediction
from workbench.launching.prepare.preflight import checked, refuse_silent_driver, usual_port
from workbench.launching.prepare.rank_starters import rank_starter
from workbench.launching.prepare.request import Request
from workbench.launching.prepare.targets import Target, as_script_words, resolve, spreads_itself
from workbench.launching.prepare.variables import check_variable_names
from workbench.notifying import chosen
from workbench.observe.doctor import NAME_CLASH_FIX, name_clash
from workbench.observe.trackers import check as check_tracker
from workbench.recover.policy import Recovery
from workbench.storage.remote import Remote
from workbench.store import names
from workbench.store.runs import Store
from workbench.store.secrets import redact_arguments

MAX_CPU_RANKS = 64


@with_launch_options
def request(  # noqa: D417  (the options' help is derived)
    target: Launched, arguments: Sequence[Any], options: LaunchOptions
) -> Request:
    """Check a launch against this host, start nothing.

    Args:
        target: A recipe's name, the path of a Python script, a module (``-m package.train``), a
            `Job` that one of the recipes trains, or a function.
        arguments: The script's arguments; a function's are numbers, texts, lists and dicts.

    Raises:
        UsageError: it cannot be started so; the message says what would work.
        HostError: torch or accelerate is missing here.
    """
    return build_request(target, arguments, options)


def build_request(
    target: Launched, arguments: Sequence[Any], options: LaunchOptions, folder: Path | None = None
) -> Request:
    """`request` with the options as one value, to start in `folder`; None = here."""
    if isinstance(target, Callable):
        return _of_function(target, call_words(target, arguments), options, folder)
    if isinstance(target, Job):
        target, options = recipe_for(target), replace(options, job=target)
    if not isinstance(target, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            "Give a recipe's name, the path of a script, a Job or a function to start, not "
            f"{target!r}."
        )
    options = with_job(options)
    check_options(options)
    words, resolved = as_script_words(arguments), resolve(os.fspath(target))
    options, notes = _settled(resolved, options)
    built = checked(with_prediction(on_unused(_placed(resolved, words, options, folder))))
    return replace(built, warnings=(*notes, *built.warnings))


def _of_function(
    function: Callable[..., Any], words: list[str], options: LaunchOptions, folder: Path | None
) -> Request:
    """Of the script that is written for it; a refused one leaves none."""
    script = function_script(_store(options).root, function)
    try:
        return build_request(script, words, options, folder)
    except BaseException:
        tidy(script)
        raise


def _settled(target: Target, options: LaunchOptions) -> tuple[LaunchOptions, list[str]]:
    """The options with what a script of the user's leaves to Accelerate, and where that is from."""
    left_out = ", ".join(filter(os.environ.get, spreading(os.environ)))
    notes = [f"The strategy decides how ranks are spread, so not set for them: {left_out}."]
    notes = notes if left_out else []
    if target.recipe is not None:
        return options, notes
    settings, sentences = open_settings(options.environment)
    return replace(options, environment={**settings, **options.environment}), notes + sentences


def _placed(
    target: Target, arguments: Sequence[str], options: LaunchOptions, folder: Path | None
) -> Request:
    """What is started, and how it is spread over this host, or this and its equals."""
    script, recipe = target.path, target.recipe
    host = options.cluster or detect_host()
    if options.cluster is None:
        host_price()  # an invalid price is refused before anything is paid for
    if options.cluster is None and not options.cpu:
        refuse_silent_driver()
    host, options = on_named(host, options)
    host = replace(host, nodes=options.nodes)
    cluster = on_this_host(options, host)
    address = check_nodes(options.nodes, options.address)
    check_no_secret(arguments, cluster.nodes)
    device = "cpu" if options.cpu or not cluster.gpus else "cuda"
    requested, count = _in_one_process(target, options)
    requested = _usual(script, recipe, count) if requested is None else requested
    if count is None and options.devices and (requested is None or _any_ranks(requested)):
        count = len(options.devices)
    chosen = _strategy(requested, count, device, cluster)
    _check_layout_kept(chosen, options.options)
    chosen = chosen.with_options(**options.options)
    cluster = waiting_share(cluster, chosen.world_size // cluster.nodes, script, options)
    _require_libraries()
    layout = tuple(_layout(script, chosen, recipe, device, arguments))
    if options.job is not None and recipe is not None:
        arguments = [*recipe_arguments(recipe, options.job.workload), *arguments]
    name = options.name
    return Request(
        name=names.check_name(default_name(target.name, chosen) if name is None else name),
        script=script,
        module=target.module,
        arguments=(*layout, *arguments),
        layout_arguments=layout,
        recipe=recipe,
        strategy=chosen,
        cluster=cluster,
        device=device,
        working_directory=folder or Path.cwd(),
        store=_store(options),
        wrap=options.wrap,
        options=replace(
            options,
            address=address,
            port=options.port or (usual_port() if cluster.nodes > 1 else 0),
        ),
    )


def _store(options: LaunchOptions) -> Store:
    return options.store if isinstance(options.store, Store) else Store(options.store)


def check_no_secret(arguments: Sequence[str], nodes: int) -> None:
    """Refuse secrets that other machines could learn of only from a file.

    Raises:
        UsageError: one of the arguments is a secret, or holds one.
    """
    hidden = redact_arguments(arguments)
    if nodes > 1 and hidden != list(arguments):
        masked = next(word for word, old in zip(hidden, arguments, strict=True) if word != old)
        raise UsageError(
            f"The arguments hold a secret ({masked}), which the other machines would have to read "
            "from a file of the run. Put it into an environment variable of each machine."
        )


def check_options(options: LaunchOptions) -> None:
    """Refuse variables, trackers and message targets that are not valid.

    Raises:
        UsageError: one of them is wrong.
        StorageError: a package for the mirror's address is missing.
    """
    environment = options.environment
    _check_recovery(options.recovery)
    if options.queue and options.nodes > 1:
        raise UsageError(
            f"The queue starts runs on this machine, not on {options.nodes}. Leave --queue out, or "
            "give the run to a scheduler: workbench submit, workbench export."
        )
    if options.warm and options.nodes > 1:
        raise UsageError(
            f"A warm start is for one machine, not {options.nodes}. Leave --warm out: the start of "
            "ranks on several machines is cold."
        )
    check_variable_names(environment)
    for name in filter(environment.get, CHOOSE_GPUS):
        raise UsageError(
            f"{name} decides which GPUs the workbench counts, so set it before: "
            f"os.environ[{name!r}] = '2,3' in a notebook, or in front of the command."
        )
    if spread := spreading(environment):
        raise UsageError(
            f"{', '.join(spread)}: how ranks are spread, and on what, the strategy and its options "
            "decide (--strategy, --engine, --offload, --cpu …), so that what is estimated is what "
            "starts. Leave the variable out."
        )
    for tracker in options.trackers:
        check_tracker(tracker)
    chosen(options.notify)
    if options.mirror:
        mirror = Remote(options.mirror)
        mirror.check_writable()
        mirror.below("run").check_outside(_store(options).root / "run")


def _check_recovery(recovery: Recovery) -> None:
    """Refuse what would silently never happen while no one looks."""
    for name in ("on_idle", "on_end"):
        command: tuple[str, ...] = getattr(recovery, name)
        if command and shutil.which(command[0]) is None:
            raise UsageError(
                f"{name}: there is no program {command[0]!r} here, so nothing would be started. "
                "Give its whole path, or install it."
            )
    if recovery.preemption is not None:
        from workbench.recover.preemption import question  # noqa: PLC0415  (an HTTP client)

        question(recovery.preemption)


def _usual(script: Path, recipe: str | None, processes: int | None) -> str | None:
    """The strategy of a script that only one can be right for; None = DDP, or one process."""
    if recipe is not None:
        axes = recipes.find(recipe).alone
        return axes[0] if axes and processes != 1 else None
    return "single" if spreads_itself(script) else None


def _in_one_process(
    target: Target, options: LaunchOptions
) -> tuple[str | Strategy | None, int | None]:
    """Strategy and processes as asked for; of a script that starts its ranks itself one process.

    Each launched process would start as many, and they would meet on one port.
    """
    requested = options.strategy, options.processes
    starter = None if target.recipe else rank_starter(target.path)
    if starter is None or options.nodes > 1:
        return requested
    return requested if starter.follows_launcher and requested != (None, None) else ("single", 1)


def _check_single_axis(recipe: str, strategy: Strategy) -> None:
    """Refuse a strategy that a recipe of one idea would not follow."""
    axes = recipes.find(recipe).alone
    if not axes:
        return
    spread = [axis for axis in DEGREES if getattr(strategy, axis) > 1]
    followed = not spread or (set(spread) <= set(axes) and axes[0] in spread)
    if not followed or strategy.zero_stage:
        raise UsageError(
            f"The recipe {recipe} spreads by {axes[0]} and nothing else, so {strategy.name!r} "
            f"would not be what runs. Use --strategy {axes[0]}, or the recipe gpt."
        )


def _layout(
    script: Path, strategy: Strategy, recipe: str | None, device: str, arguments: Sequence[str]
) -> list[str]:
    """The flags by which a recipe learns what it has to split itself; refuses what cannot be."""
    if recipe is None:
        accelerate_config.check_supported(strategy, None, device)
        if strategy.world_size > 1 and spreads_itself(script):
            raise UsageError(
                f"{script.name} is a TensorFlow script: its own strategy spreads over the devices, "
                "in one process. Use --strategy single."
            )
        return []
    splits = recipes.find(recipe).splits
    _check_single_axis(recipe, strategy)
    accelerate_config.check_supported(strategy, splits, device)
    check_arguments(arguments)
    return layout_flags(strategy) if splits else []


def _strategy(
    requested: str | Strategy | None, processes: int | None, device: str, cluster: Cluster
) -> Strategy:
    """The strategy asked for, with as many ranks as asked for and as there can be."""
    nodes = cluster.nodes
    if isinstance(requested, Strategy):
        check_shares(requested.name, requested.world_size, nodes)
        _process_count(processes or requested.world_size // nodes, None, device, cluster)
        if processes is not None and processes * nodes != requested.world_size:
            raise UsageError(
                f"The strategy has {requested.world_size} ranks, but {processes * nodes} processes "
                "were asked for. Leave one of them out."
            )
        return requested
    count = nodes * _process_count(processes, requested, device, cluster)
    if requested is None:
        requested = "ddp" if count > 1 else "single"
    return Strategy.parse(requested, count)


def _check_layout_kept(strategy: Strategy, options: Mapping[str, Any]) -> None:
    """Refuse options that would make another layout of it than its name says."""
    for name in ("name", "zero_stage", *DEGREES):
        if name in options and options[name] != getattr(strategy, name):
            raise UsageError(
                f"{name}={options[name]!r} is not what the strategy {strategy.name!r} means "
                f"({name}={getattr(strategy, name)!r}). Leave it out, and name the strategy that "
                "you mean: zero1, fsdp, dp2-tp2 …"
            )


def _any_ranks(strategy: str | Strategy) -> bool:
    """Whether it leaves the number of ranks open."""
    return isinstance(strategy, str) and Strategy.ranks_of(strategy) is None


def default_name(target: str, strategy: Strategy) -> str:
    """The name of a run that is given none; degrees already say the number of ranks."""
    text = strategy.name
    label = text if text[-1:].isdigit() else f"{text}{strategy.world_size}"
    return f"{names.from_file(target)}-{label}"


def _process_count(count: int | None, strategy: str | None, device: str, cluster: Cluster) -> int:
    gpus = len(cluster.gpus)
    if count is None and strategy is not None:
        count = Strategy.ranks_of(strategy)
        if count is not None:
            count = check_shares(strategy, count, cluster.nodes)
    if count is None:
        return gpus if device == "cuda" else 2
    require_at_least("The number of processes", count, 1)
    if device == "cuda" and count > gpus:
        raise UsageError(
            f"{count} processes were asked for, but {gpus} GPU{'s are' if gpus > 1 else ' is'} "
            f"visible here. Use --nproc {gpus}, or --cpu for CPU ranks."
        )
    if device == "cpu" and count > MAX_CPU_RANKS:
        raise UsageError(
            f"{count} CPU processes were asked for; this host has {cluster.cpu_cores} cores. "
            f"Use at most {MAX_CPU_RANKS}; --nproc 2 to 4 is usual."
        )
    return count


def _require_libraries() -> None:
    clash = name_clash()
    if clash is not None:
        raise HostError(
            f"The workbench does not run beside another one: {clash}. {NAME_CLASH_FIX}."
        )
    missing = [name for name in ("torch", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise HostError(
            f"{' and '.join(missing)} cannot be imported here. Install with: "
            f"{pip_install('training-workbench[train]')} (or run make demo in the repository)."
        )

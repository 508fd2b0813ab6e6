"""The dry run: everything that would be started, exactly, before anything is.

`request` checks the wish against this host and returns a `Request`; nothing is written.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import Cluster, Strategy
from workbench.describe.detection import detect_host
from workbench.errors import HostError, UsageError
from workbench.launch import accelerate_config
from workbench.launch.dry_run import Request
from workbench.launch.layout_flags import check_arguments, layout_flags
from workbench.launch.placement import check_nodes, check_shares
from workbench.launch.prediction import with_prediction
from workbench.launch.preflight import checked, usual_port
from workbench.launch.redact import redact_arguments
from workbench.launch.targets import resolve, spreads_itself
from workbench.observe.doctor import NAME_CLASH_FIX, name_clash
from workbench.observe.trackers import check as check_tracker
from workbench.recover.policy import Recovery
from workbench.store import names
from workbench.store.runs import Store

MAX_CPU_RANKS = 64
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def request(
    target: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    strategy: str | Strategy | None = None,
    processes: int | None = None,
    options: Mapping[str, Any] | None = None,
    cpu: bool = False,
    name: str | None = None,
    store: str | os.PathLike[str] | Store | None = None,
    wrap: str | None = None,
    capture: bool = True,
    port: int = 0,
    environment: Mapping[str, str] | None = None,
    recovery: Recovery | None = None,
    trackers: Sequence[str] = (),
    nodes: int = 1,
    address: str | None = None,
    cluster: Cluster | None = None,
) -> Request:
    """Check a launch against this host, start nothing.

    Args:
        target: A recipe's name or the path of a Python script.
        arguments: The script's arguments.
        strategy: A name, or a `Strategy` with its options; default ``ddp``, or ``single``.
        options: Options of the strategy by name, such as ``recompute`` and ``offload``.
        processes: Ranks on each machine; default all GPUs, or 2 on a host without.
        cpu: Use CPU ranks although there are GPUs.
        name: Display name; default the script's name and the strategy.
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        wrap: Class of the model's repeated block, for FSDP; recipes, Hugging Face know their own.
        capture: False leaves the script unobserved (logs are still kept per rank).
        port: Rendezvous port, 0 for a free one.
        environment: Variables added to the ranks' environment.
        recovery: Restarts, pre-emption, idle machines; default: none of it.
        trackers: Fed from the run's files beside the training: tensorboard, mlflow, trackio, wandb.
        nodes: Equal machines that all see the store; this one is node 0.
        address: Where the other machines reach this one.
        cluster: The machines that an engine will give; default this host and its equals.

    Raises:
        UsageError: the wish cannot be carried out; the message says what would work.
        HostError: torch or accelerate is missing here.
    """
    _check_beside(environment or {}, trackers, recovery)
    there = replace(cluster or detect_host(), nodes=nodes), check_nodes(nodes, address)
    request = _placed(os.fspath(target), arguments, strategy, processes, options, cpu, there)
    request = replace(
        request,
        name=request.name if name is None else names.check_name(name),
        store=store if isinstance(store, Store) else Store(store),
        wrap=wrap,
        capture=capture,
        port=port or (usual_port() if nodes > 1 else 0),
        extra_environment=dict(environment or {}),
        recovery=recovery or Recovery(),
        trackers=tuple(trackers),
    )
    return checked(request if request.recipe is None else with_prediction(request, request.recipe))


def _placed(
    target: str,
    arguments: Sequence[str],
    strategy: str | Strategy | None,
    processes: int | None,
    options: Mapping[str, Any] | None,
    cpu: bool,  # noqa: FBT001
    there: tuple[Cluster, str | None],
) -> Request:
    """What is started, and how it is spread over this host, or this and its equals."""
    script, recipe = resolve(target)
    cluster, address = there
    check_no_secret(arguments, cluster.nodes)
    device = "cpu" if cpu or not cluster.gpus else "cuda"
    strategy = _usual(script, recipe, processes) if strategy is None else strategy
    chosen = _strategy(strategy, processes, device, cluster).with_options(**options or {})
    _require_libraries()
    layout = tuple(_layout(script, chosen, recipe, device, arguments))
    return Request(
        name=names.check_name(f"{script.stem}-{_label(chosen)}"),
        script=script,
        arguments=(*layout, *arguments),
        layout_arguments=layout,
        recipe=recipe,
        strategy=chosen,
        cluster=cluster,
        nodes=cluster.nodes,
        address=address,
        device=device,
        working_directory=Path.cwd(),
        store=Store(None),
    )


def check_no_secret(arguments: Sequence[str], nodes: int) -> None:
    """Refuse secrets that other machines could learn of only from a file.

    Raises:
        UsageError: one of the arguments is a secret, or holds one.
    """
    hidden = redact_arguments(arguments)
    if nodes > 1 and hidden != list(arguments):
        shown = next(word for word, old in zip(hidden, arguments, strict=True) if word != old)
        raise UsageError(
            f"The arguments hold a secret ({shown}), which the other machines would have to read "
            "from a file of the run. Put it into an environment variable of each machine."
        )


def _check_beside(
    environment: Mapping[str, str], trackers: Sequence[str], recovery: Recovery | None
) -> None:
    """Refuse variables that are none, which the printed command could not hold, and trackers."""
    _check_recovery(recovery)
    for name in environment:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name of an environment variable. Use letters, digits and _, not "
                "beginning with a digit."
            )
    if environment.get("CUDA_VISIBLE_DEVICES"):
        raise UsageError(
            "CUDA_VISIBLE_DEVICES decides which GPUs the workbench counts, so set it before: "
            "os.environ['CUDA_VISIBLE_DEVICES'] = '2,3' in a notebook, or in front of the command."
        )
    for tracker in trackers:
        check_tracker(tracker)


def _check_recovery(recovery: Recovery | None) -> None:
    """Refuse what would silently never happen while nobody looks."""
    if recovery is None:
        return
    if not isinstance(recovery, Recovery):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"recovery={recovery!r}: give a Recovery, as Recovery(restarts=3).")
    for name in ("on_idle", "on_end"):
        command: tuple[str, ...] = getattr(recovery, name)
        if command and shutil.which(command[0]) is None:
            raise UsageError(
                f"{name}: there is no program {command[0]!r} here, so nothing would be started. "
                "Give its whole path, or install it."
            )


def _usual(script: Path, recipe: str | None, processes: int | None) -> str | None:
    """The strategy of a script that only one can be right for; None = DDP, or one process."""
    if recipe is not None:
        alone = recipes.find(recipe).alone
        return alone[0] if alone and processes != 1 else None
    return "single" if spreads_itself(script) else None


def _check_alone(recipe: str, strategy: Strategy) -> None:
    """Refuse a strategy that a recipe of one idea would not follow."""
    alone = recipes.find(recipe).alone
    ranks = math.prod(getattr(strategy, axis) for axis in alone)
    if alone and (ranks != strategy.world_size or strategy.zero_stage or strategy.dp_shard > 1):
        raise UsageError(
            f"The recipe {recipe} spreads by {alone[0]} and nothing else, so {strategy.name!r} "
            f"would not be what runs. Use --strategy {alone[0]}, or the recipe gpt."
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
    _check_alone(recipe, strategy)
    accelerate_config.check_supported(strategy, splits, device)
    check_arguments(arguments)
    return layout_flags(strategy) if splits else []


def _strategy(
    given: str | Strategy | None, processes: int | None, device: str, cluster: Cluster
) -> Strategy:
    """The strategy asked for, with as many ranks as asked for and as there can be."""
    nodes = cluster.nodes
    if isinstance(given, Strategy):
        check_shares(given.name, given.world_size, nodes)
        _process_count(processes or given.world_size // nodes, None, device, cluster)
        if processes is not None and processes * nodes != given.world_size:
            raise UsageError(
                f"The strategy has {given.world_size} ranks, but {processes * nodes} processes "
                "were asked for. Leave one of them out."
            )
        return given
    count = nodes * _process_count(processes, given, device, cluster)
    if given is None:
        given = "ddp" if count > 1 else "single"
    return Strategy.parse(given, count)


def _label(strategy: Strategy) -> str:
    """The strategy's part of a run's default name: degrees already say the number of ranks."""
    text = strategy.name
    return text if text[-1:].isdigit() else f"{text}{strategy.world_size}"


def _process_count(asked: int | None, strategy: str | None, device: str, cluster: Cluster) -> int:
    gpus = len(cluster.gpus)
    if asked is None and strategy is not None:
        asked = Strategy.ranks_of(strategy)
        if asked is not None:
            asked = check_shares(strategy, asked, cluster.nodes)
    if asked is None:
        return gpus if device == "cuda" else 2
    if asked < 1:
        raise UsageError(f"The number of processes must be at least 1, not {asked}.")
    if device == "cuda" and asked > gpus:
        raise UsageError(
            f"{asked} processes were asked for, but {gpus} GPU{'s are' if gpus > 1 else ' is'} "
            f"visible here. Use --nproc {gpus}, or --cpu for CPU ranks."
        )
    if device == "cpu" and asked > MAX_CPU_RANKS:
        raise UsageError(
            f"{asked} CPU processes were asked for; this host has {cluster.cpu_cores} cores. "
            f"Use at most {MAX_CPU_RANKS}; --nproc 2 to 4 is usual."
        )
    return asked


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
            "pip install 'training-workbench[train]' (or run make demo in the repository)."
        )

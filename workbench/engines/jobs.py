"""An `EngineJob` from a run, a `Job`, an entry of ``workbench plan --json``, or a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import Cluster, Strategy
from workbench.describe.accelerators import find, lookup
from workbench.describe.detection import CHOOSE_GPUS
from workbench.describe.job import Job
from workbench.engines.job import NODES, PROCESSES, EngineJob
from workbench.engines.launching import option_names
from workbench.engines.planned import layout, machines, provider
from workbench.errors import UsageError
from workbench.estimate.sizing.strategy_switches import layout_name
from workbench.launching.prepare.accelerate_config import check_supported
from workbench.launching.prepare.accelerate_defaults import open_settings
from workbench.launching.prepare.acceptance import check_accepted
from workbench.launching.prepare.described import check_trained, flags_of, recipe_arguments
from workbench.launching.prepare.layout_flags import check_arguments
from workbench.launching.prepare.recorded_environment import recorded_value
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.record import TO_EXPORT, read_record
from workbench.store.run_record import RunRecord
from workbench.store.secrets import HIDDEN, hide, redact_environment

PYTHON = "python3"
_OURS = (
    *("PYTHONPATH", "PYTHONUNBUFFERED", "ACCELERATE_USE_CPU", *CHOOSE_GPUS),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "WORKBENCH_"),
)
"""Variables that the launcher of this host sets for this host."""
_FOLDERS = ("--checkpoint-dir", "--resume")
"""Arguments of a recipe that name a folder of this host."""


def job_from_request(
    script: str,
    arguments: Sequence[str] = (),
    *,
    strategy: str | Strategy | None = None,
    nodes: int = NODES,
    processes_per_node: int = PROCESSES,
    gpu: str | None = None,
    name: str | None = None,
    **more: Any,
) -> EngineJob:
    """A job from a script or recipe, as `workbench launch` would take it.

    Args:
        script: A recipe's name or a path of this machine.
        arguments: Of the script.
        strategy: A name for all ranks, or a `Strategy`; None = ddp, or single for one rank.
        nodes: Equal machines.
        processes_per_node: Ranks on each.
        gpu: Any usual name of the accelerator; None = CPU.
        name: Display name; None = the script's and the strategy's.
        more: Other fields of `EngineJob`.

    Raises:
        UsageError: nothing starts that strategy, or a value is impossible.
    """
    ranks = nodes * processes_per_node
    if not isinstance(strategy, Strategy):
        strategy = Strategy.parse(strategy or ("single" if ranks == 1 else "ddp"), ranks)
    all_recipes = recipes.recipes()
    splits = all_recipes[script].splits if script in all_recipes else None
    check_supported(strategy, splits, "cpu" if gpu is None else "cuda")
    if script in all_recipes:
        check_arguments(arguments)
    if script not in all_recipes and "environment" not in more:
        more["environment"] = open_settings({})[0]
    more = {"python": PYTHON} | more
    return EngineJob(
        name=name or f"{Path(script).stem}-{strategy.name}",
        script=script,
        arguments=tuple(arguments),
        strategy=strategy,
        nodes=nodes,
        processes_per_node=processes_per_node,
        gpu=None if gpu is None else find(gpu).id,
        **more,
    )


def job_from_run(
    paths: RunPaths,
    *,
    nodes: int | None = None,
    processes_per_node: int | None = None,
    gpu: str | None = None,
    strategy: str | None = None,
    **more: Any,
) -> EngineJob:
    """The job that a run was, on other machines; without sizes it keeps its own.

    Raises:
        ForeignRunError: the record names a script of its own and is not this user's.
        StoreError: run.json cannot be read, or lacks what a job needs.
        UsageError: the strategy does not go with the new size; the message says which would. Or the
            record sets a variable that this user's workbench did not write.
    """
    run = read_record(paths, TO_EXPORT)
    if run.rehearsal is not None:
        raise UsageError(
            f"{run.run} is a rehearsal and started nothing. Export the plan: "
            "workbench export SCRIPT --to ENGINE --plan plans.json"
        )
    if run.recipe not in recipes.recipes():  # an export copies the file it names
        check_own(paths, "exported")
        check_accepted(paths, run)
    if run.module:
        raise UsageError(
            f"The run starts the module {run.module}; a job starts a file. Give a script "
            "that runs it."
        )
    before = Strategy.recorded(run.strategy)
    count, each = _size(before.world_size, nodes, processes_per_node)
    words = run.arguments[len(run.layout_arguments) :]
    visible, secrets = environment_of(run.environment)
    environment = {name: recorded_value(run, name, value) for name, value in visible.items()}
    settings = {"environment": environment, "secrets": secrets} | more
    return job_from_request(
        run.recipe or run.script,
        _own_arguments(words, is_recipe=run.recipe is not None),
        strategy=_resized(before, strategy, count * each),
        nodes=count,
        processes_per_node=each,
        gpu=gpu or _gpu_of(run),
        name=run.name,
        **settings,
    )


def job_from_plan(
    entry: Mapping[str, Any], script: str, arguments: Sequence[str] = (), **more: Any
) -> EngineJob:
    """The job of one entry of ``workbench plan --json``: its machines, layout and micro-batch.

    A recipe gets micro-batch, accumulation, sequence length and precision as arguments, those that
    it has; another script must take them itself.

    Raises:
        UsageError: it is no plan, or nothing starts its layout.
    """
    try:
        (nodes, each), strategy = machines(entry), layout(entry)
        sizes = {"--micro-batch": entry["micro_batch"], "--accumulate": entry["accumulate"]}
        sizes |= {"--seq-len": entry["seq_len"], "--precision": entry["precision"]}
        where: dict[str, Any] = {"gpu": str(entry["gpu"]), "provider": provider(entry)}
        where |= {"region": entry["region"] or None, "spot": bool(entry["spot"])}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"This is not a plan of `workbench plan --json` ({error}). Give its file and the "
            "number."
        ) from error
    where |= {"usd_per_hour": entry.get("usd_per_hour")}
    words = _planned(script, arguments, sizes) if script in recipes.recipes() else list(arguments)
    return job_from_request(
        script,
        words,
        strategy=strategy,
        nodes=nodes,
        processes_per_node=each,
        **(where | _some(more)),
    )


def job_from_job(job: Job, script: str, arguments: Sequence[str] = (), **more: Any) -> EngineJob:
    """A described job on its machines, at their price, as a recipe or a script trains it.

    A recipe gets the workload as arguments; another script must take it itself, and does what its
    named trainer does by itself: no library is told that (`Job.launched`).

    Raises:
        UsageError: nothing starts its layout, the recipe would train something else, or its GPU is
            not known or not of the catalog.
    """
    nodes = job.cluster.nodes if isinstance(job.cluster, Cluster) else 1
    machines_options = _machines_of(job.cluster)
    words = list(arguments)
    if script in recipes.recipes():
        words = [*recipe_arguments(script, job.workload), *arguments]
        check_trained(script, words, job.workload)
    return job_from_request(
        script,
        words,
        strategy=job.launched,
        nodes=nodes,
        processes_per_node=job.strategy.world_size // nodes,
        **(machines_options | _some(more)),
    )


def _some(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _machines_of(where: Cluster | str) -> dict[str, Any]:
    """Which GPU a job's machines have, None = CPU, and what all of them cost."""
    if isinstance(where, str) and where != "cpu":
        raise UsageError(
            "The job does not say on which GPU it runs. Describe it with one, for example "
            "gpu='h100' (workbench gpus lists them), or with cpu=True for CPU ranks."
        )
    if isinstance(where, str) or not where.gpus:
        return {"gpu": None}
    gpu = where.accelerator.id if where.accelerator else where.gpus[0].name
    price = where.usd_per_hour and where.usd_per_hour * where.nodes
    return {"gpu": gpu, "usd_per_hour": price or None}


def _planned(recipe: str, arguments: Sequence[str], sizes: Mapping[str, Any]) -> list[str]:
    """The arguments with the plan's; what is given already counts more."""
    words, present = list(arguments), option_names(arguments)
    batch = {"--micro-batch", "--accumulate"}
    present |= batch if present & batch else set()  # one without the other is another batch
    for flag, value in sizes.items():
        if flag not in present and flag in flags_of(recipe):
            words += [flag, str(value)]
    try:
        recipes.shape(words, recipe=recipe)
    except UsageError as error:
        raise UsageError(
            f"The recipe {recipe} cannot train as the plan says: {error}. Give the argument that "
            "it should have instead."
        ) from error
    return words


def environment_of(variables: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that go along, and the names of those whose values must not.

    >>> environment_of({"HF_TOKEN": "[redacted]", "NCCL_DEBUG": "INFO", "WORKBENCH_RUN_ID": "x"})
    ({'NCCL_DEBUG': 'INFO'}, ('HF_TOKEN',))
    """
    visible: dict[str, str] = {}
    secrets: list[str] = []
    for name, value in variables.items():
        if name.startswith(_OURS):
            continue
        if HIDDEN in redact_environment({name: value})[name] or hide(value) != value:
            secrets.append(name)
        else:
            visible[name] = value
    return visible, tuple(secrets)


def _size(ranks: int, nodes: int | None, each: int | None) -> tuple[int, int]:
    """Machines and ranks on each; what is not given keeps the run's number of ranks."""
    if nodes is None:
        return (1 if each is None else max(1, ranks // each)), each or ranks
    return nodes, each or (ranks // nodes if ranks % nodes == 0 else ranks)


def _resized(before: Strategy, requested: str | None, ranks: int) -> Strategy:
    """The strategy for another number of ranks: degrees stay, data parallelism takes the rest."""
    if requested is not None:
        return Strategy.parse(requested, ranks)
    if before.world_size == ranks:
        return before
    inner = before.tp * before.cp * before.pp
    is_hybrid = before.dp_replicate > 1 and before.dp_shard > 1
    together = inner * before.dp_shard if is_hybrid else inner  # ranks that keep their degrees
    if ranks % together:
        raise UsageError(
            f"{before.name} of {before.world_size} ranks does not divide over {ranks}. Give "
            f"--strategy, or a multiple of {together} ranks."
        )
    grown = "dp_replicate" if is_hybrid or before.dp_shard == 1 else "dp_shard"
    after = replace(before, **{grown: ranks // together})
    return replace(after, name=layout_name(after))


def _own_arguments(arguments: Sequence[str], *, is_recipe: bool) -> list[str]:
    """Without the folders of this host: the export gives its own."""
    if not is_recipe:
        return list(arguments)
    own_words: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word in _FOLDERS:
            skip = True
        elif word.partition("=")[0] not in _FOLDERS:
            own_words.append(word)
    return own_words


def _gpu_of(run: RunRecord) -> str | None:
    """The accelerator that the run had; None = CPU.

    Raises:
        UsageError: it is none of the catalog: its name for an engine is not known.
    """
    if run.device != "cuda":
        return None
    accelerator: Mapping[str, Any] = run.cluster.get("accelerator") or {}
    gpus: Sequence[Mapping[str, Any]] = run.cluster.get("gpus") or ()
    name = accelerator.get("id") or (gpus[0].get("name") if gpus else None)
    gpu = lookup(str(name)) if name else None
    if gpu is None:
        raise UsageError(f"The run's GPU ({name or 'no name'}) is not in the catalog. Give --gpu.")
    return gpu.id

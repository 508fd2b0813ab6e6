"""`Wish`: what people ask to be exported, as options or a form give it, and the `Job` it means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import prices
from workbench.engines.job import Job
from workbench.engines.jobs import job_from_plan, job_from_request, job_from_run
from workbench.engines.refusals import places
from workbench.errors import UsageError
from workbench.store.runs import Store

_MOST_BYTES = 64_000_000
_SAME = (
    *("provider", "region", "checkpoint_uri", "checkpoint_every", "restarts", "max_hours"),
    *("max_usd_per_hour", "idle_minutes", "disk_gb", "image"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One request; fields as in `Job` where they have the same name."""

    what: str
    """A run, a recipe or a script."""
    arguments: tuple[str, ...] = ()
    """Of a script or recipe."""
    plan: Mapping[str, Any] | None = None
    """An entry of ``workbench plan --json`` that gives machines and layout."""
    strategy: str | None = None
    """A name; None = the run's, the plan's, or ddp."""
    nodes: int | None = None
    """Machines; None = the run's ranks on one, the plan's."""
    processes_per_node: int | None = None
    """Ranks on each; None = all of the run's, else 1."""
    gpu: str | None = None
    """Any usual name; None = the run's, the plan's, else CPU."""
    provider: str | None = None
    """Any usual name; None = wherever."""
    region: str | None = None
    """None = any."""
    spot: bool = False
    """Machines that may be taken back."""
    checkpoint_uri: str | None = None
    """What outlives the machines."""
    checkpoint_every: int | None = None
    """Recipes: steps between checkpoints."""
    restarts: int = 0
    """Starts after a failure."""
    max_hours: float | None = None
    """Time limit."""
    max_usd_per_hour: float | None = None
    """Of all machines."""
    idle_minutes: int | None = None
    """Idle machines are given back then."""
    disk_gb: int | None = None
    """Of each machine; None = the usual, where they are rented."""
    image: str | None = None
    """Container image."""
    name: str | None = None
    """Display name."""


def wished_job(wish: Wish, store: str | Store | None = None) -> Job:
    """What is meant: a recipe or script where there is one of that name, else a run.

    Raises:
        UsageError: no such thing, or it cannot be started so.
    """
    more: dict[str, Any] = {name: getattr(wish, name) for name in _SAME}
    more["spot"] = wish.spot
    if wish.provider is not None:
        more["provider"] = known_provider(wish.provider)
    size = {
        "nodes": wish.nodes,
        "processes_per_node": wish.processes_per_node,
        "gpu": wish.gpu,
        "strategy": wish.strategy,
    }
    if wish.name is not None:
        more["name"] = wish.name
    is_script = wish.what in recipes.recipes() or Path(wish.what).expanduser().is_file()
    if wish.plan is not None:
        return _planned(wish, more, size, is_script=is_script)
    if is_script:
        given = {name: value for name, value in size.items() if value is not None}
        return job_from_request(wish.what, wish.arguments, **given, **more)
    if wish.arguments:
        raise UsageError(f"{wish.what} would be a run, which has its arguments: leave them out.")
    where = store if isinstance(store, Store) else Store(store)
    return job_from_run(where.find(wish.what), **size, **more)


def known_provider(name: str) -> str:
    """Our name of a provider that sells machines or that an engine rents at.

    Raises:
        UnknownNameError: nobody knows it.
    """
    return prices.provider_name(name, {*prices.providers(), *(one.provider for one in places())})


def _planned(wish: Wish, more: dict[str, Any], size: dict[str, Any], *, is_script: bool) -> Job:
    assert wish.plan is not None
    if not is_script:
        raise UsageError(f"A plan needs what it trains: a recipe or a script, not {wish.what!r}.")
    taken = [name for name, value in size.items() if value is not None]
    if taken:
        raise UsageError(f"A plan says {', '.join(taken)} itself. Leave them out.")
    more["spot"] = wish.spot or None
    return job_from_plan(wish.plan, wish.what, wish.arguments, **more)


def plan_entry(path: Path, rank: int) -> dict[str, Any]:
    """Number `rank` (from 1) of the plans in a file that ``workbench plan --json`` wrote.

    Raises:
        UsageError: no such file or plan.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is no output of workbench plan --json: it is too large.")
        plans = json.loads(path.read_text(encoding="utf-8"))["plans"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no output of workbench plan --json ({error}). Write one: "
            "workbench plan … --json > plans.json"
        ) from error
    if not 1 <= rank <= len(plans):
        raise UsageError(f"--rank {rank}: {path} has {len(plans)} plans, counted from 1.")
    return plans[rank - 1]

"""`ExportRequest`: what is exported, as options or a form give it, and the `EngineJob` it means."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, cast

from workbench import recipes
from workbench.describe import prices
from workbench.describe.job import Job, options
from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.describe.other_names import unknown_option
from workbench.engines.exporting import Export
from workbench.engines.exporting import export as export_job
from workbench.engines.job import EngineJob, EngineSettings
from workbench.engines.jobs import job_from_job, job_from_plan, job_from_request, job_from_run
from workbench.engines.refusals import places
from workbench.errors import RunNotFoundError, UsageError
from workbench.launching.prepare.described import recipe_for
from workbench.launching.prepare.targets import as_script_words
from workbench.launching.run import Run
from workbench.store.runs import Store

_MOST_BYTES = 64_000_000
_OF_A_JOB = options()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest(EngineSettings):
    """What to start, on how many machines of which kind, and what its engine is asked for."""

    what: str
    """A run, a recipe or a script."""
    arguments: tuple[str, ...] = ()
    """Of a script or recipe."""
    job: Job | None = None
    """A described job that gives machines, layout and a recipe's arguments."""
    plan: Mapping[str, Any] | None = None
    """An entry of ``workbench plan --json`` that gives them."""
    strategy: Annotated[str | None, Option(help="As for launch [default: the run's, or ddp].")] = (
        None
    )
    """A name; None = the run's, the plan's, or ddp."""
    nodes: Annotated[
        int | None,
        Option(help="Machines [default: 1].", least=1, most=_OF_A_JOB["nodes"].option.most),
    ] = None
    """Machines; None = the run's ranks on one, the plan's."""
    processes_per_node: Annotated[
        int | None,
        Option(
            help="Ranks on each [default: all of the run on one].",
            flag="nproc",
            least=1,
            most=_OF_A_JOB["gpus"].option.most,
        ),
    ] = None
    """Ranks on each; None = all of the run's, else 1."""
    gpu: Annotated[
        str | None, Option(help="h100, a100-sxm-80 … [default: the run's; else CPU].")
    ] = None
    """Any usual name; None = the run's, the plan's, else CPU."""
    name: Annotated[str | None, Option(help="Display name.")] = None
    """None = the run's, or the script's and the strategy's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", tuple(as_script_words(self.arguments)))
        check_declared(self)

    @classmethod
    def of(
        cls, what: str | os.PathLike[str] | Run | Job, values: Mapping[str, Any]
    ) -> ExportRequest:
        """From what Python, the command line and a form give, each by its name.

        Raises:
            UsageError: a value that is not allowed, or a job that no recipe trains.
        """
        field_values = dict(values)
        for name in values:
            if name not in cls.__dataclass_fields__:
                raise unknown_option("option of an export", name, cls.__dataclass_fields__)
        if isinstance(what, Job):
            what, field_values["job"] = recipe_for(what), what
        if isinstance(what, Run):
            what = what.id
        if not isinstance(what, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                "What is exported is a run, a recipe, the path of a script or a Job, not of type "
                f"{type(what).__name__}."
            )
        return cls(what=os.fspath(what), **field_values)

    def engine_job(self, store: str | os.PathLike[str] | None = None) -> EngineJob:
        """What is meant: a recipe or script where there is one of that name, else a run.

        Raises:
            UsageError: no such thing, or it cannot be started so.
        """
        is_script = self.what in recipes.recipes() or Path(self.what).expanduser().is_file()
        if self.plan is not None or self.job is not None:
            return self._described(is_script=is_script)
        size = self._set_fields(_SIZE)
        if is_script:
            return job_from_request(self.what, self.arguments, **size, **self._settings())
        if self.arguments:
            raise UsageError(
                f"{self.what} would be a run, which has its arguments: leave them out."
            )
        try:
            run = Store(store).locate(self.what)
        except RunNotFoundError as error:
            raise RunNotFoundError(
                f"No recipe or script {self.what!r}, and no run: {error}"
            ) from None
        return job_from_run(run, **size, **self._settings())

    def _described(self, *, is_script: bool) -> EngineJob:
        if not is_script:
            raise UsageError(
                f"A plan needs what it trains: a recipe or a script, not {self.what!r}."
            )
        if sizes := self._set_fields(_SIZE):
            raise UsageError(f"A plan says {', '.join(sizes)} itself. Leave them out.")
        more = self._settings() | {"spot": self.spot or None}
        if self.job is not None:
            return job_from_job(self.job, self.what, self.arguments, **more)
        assert self.plan is not None
        return job_from_plan(self.plan, self.what, self.arguments, **more)

    def _settings(self) -> dict[str, Any]:
        """What every engine job has beside script, size and layout; a name only where given."""
        more = {field.name: getattr(self, field.name) for field in fields(EngineSettings)}
        if self.provider is not None:
            more["provider"] = known_provider(self.provider)
        return more | self._set_fields(("name",))

    def _set_fields(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


_SIZE = ("nodes", "processes_per_node", "gpu", "strategy")


def export(
    what: str | os.PathLike[str] | Run | Job,
    engine: str,
    *,
    store: str | os.PathLike[str] | None = None,
    address: str | None = None,
    **values: Any,
) -> Export:
    """The files with which an engine starts a run, a recipe, a script or a described job.

    Args:
        what: A `Run` or its id, a recipe's name, the path of a script, or a `Job` that one of the
            recipes trains. ``export("train.py", "slurm", job=job)`` exports a script with a job.
        engine: torchrun, accelerate, slurm, skypilot, dstack, kubeflow or runpod.
        store: Store of the runs.
        address: torchrun, accelerate: where the other machines reach the first.
        values: Fields of `ExportRequest`: arguments, nodes, gpu, spot, checkpoint_uri …

    Raises:
        RefusedError: (a UsageError) the engine does not do that; each reason with what would work.
        UsageError: there is no such thing or option, or a value is not allowed.
    """
    if isinstance(what, Run) and store is None:
        store = str(what.directory.parent)
    return export_job(ExportRequest.of(what, values).engine_job(store), engine, address=address)


def known_provider(name: str) -> str:
    """Our name of a provider that sells machines or that an engine rents at.

    Raises:
        UnknownNameError: no one knows it.
    """
    return prices.provider_name(
        name, {*prices.providers(), *(place.provider for place in places())}
    )


def plan_entry(path: Path, rank: int) -> dict[str, Any]:
    """Number `rank` (from 1) of the plans in a file that ``workbench plan --json`` wrote.

    Raises:
        UsageError: no such file or plan.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is not output of workbench plan --json: it is too large.")
        plans = _plans(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}. Write it: workbench plan … --json > {path}"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not output of workbench plan --json ({error}). Write one: "
            "workbench plan … --json > plans.json"
        ) from error
    if not plans:
        raise UsageError(f"{path} has no plans. Look at what workbench plan said, and plan again.")
    if not 1 <= rank <= len(plans):
        raise UsageError(f"--rank {rank}: {path} has {len(plans)} plans, counted from 1.")
    return plans[rank - 1]


def _plans(document: Any) -> list[dict[str, Any]]:
    plans = document["plans"]
    if not isinstance(plans, list):
        raise TypeError("its plans are not a list")
    if not all(isinstance(plan, dict) for plan in cast("list[Any]", plans)):
        raise TypeError("one of its plans is not an object")
    return cast("list[dict[str, Any]]", plans)

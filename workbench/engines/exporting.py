"""`Export`: a job as the files of one engine, with what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.engines.commands import launch_script
from workbench.engines.export_files import FOLDER, files_of, write_all
from workbench.engines.job import EngineJob, checkpoint_folder, slug
from workbench.engines.launching import LAUNCH, launch_text, option_names, saves
from workbench.engines.refusals import ENGINES, Refusal, refusals
from workbench.errors import UsageError
from workbench.launching.prepare.accelerate_defaults import PRECISION
from workbench.launching.prepare.placement import check_address
from workbench.launching.prepare.targets import check_kind
from workbench.provenance.files import named_paths
from workbench.store.secrets import HIDDEN, hide_known, redact_arguments, redact_environment
from workbench.store.secrets_in_code import hide_in_code, lines_with_secrets
from workbench.units import format_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The files of a job for one engine. Nothing is written before `write`."""

    engine: str
    """One of `ENGINES`."""
    job: EngineJob
    """As the machines see it."""
    files: Mapping[str, str]
    """Name -> text; the engine's own file first."""
    copies: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Name -> file of this machine that goes beside them."""
    next: tuple[str, ...]
    """What to type, in the folder."""
    notes: tuple[str, ...] = ()
    """What to know before."""

    def write(self, folder: Path) -> list[Path]:
        """Write everything into `folder`, which is made; returns what was written.

        Raises:
            StoreError: it cannot be written, or holds a file of that name that no export wrote.
        """
        return write_all(folder, self.files, self.copies)

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "engine": self.engine,
            "name": self.job.name,
            "nodes": self.job.nodes,
            "processes_per_node": self.job.processes_per_node,
            "gpu": self.job.gpu,
            "spot": self.job.spot,
            "files": dict(self.files),
            "copies": {name: str(path) for name, path in self.copies.items()},
            "next": list(self.next),
            "notes": list(self.notes),
        }


class RefusedError(UsageError):
    """The engine does not do what the job asks; `refusals` has each reason."""

    def __init__(self, engine: str, reasons: tuple[Refusal, ...]) -> None:
        self.engine, self.refusals = engine, reasons
        super().__init__(" ".join(reason.sentence for reason in reasons))


def export(job: EngineJob, engine: str, *, address: str | None = None) -> Export:
    """Write `job` in the words of `engine`.

    Args:
        job: What to start, where the script is one of this machine or a recipe's name.
        engine: One of `ENGINES`.
        address: torchrun, accelerate: where the other machines reach the first.

    Raises:
        RefusedError: (a UsageError) the engine does not do that; each reason with what would work.
        UsageError: the strategy, the storage or an argument cannot be.
        HostError: PyYAML is missing.
    """
    reasons = refusals(job, engine)
    if reasons:
        raise RefusedError(engine, reasons)
    shipped, copies = ship(job)
    notes = (*_notes(job, shipped), *_secret_notes(copies, engine))
    if engine in {"torchrun", "accelerate"}:
        exported = _plain(shipped, engine, address)
    elif engine == "slurm":
        exported = _slurm(shipped)
    else:
        exported = _rented(shipped, engine, copies)
    if engine == "kubeflow":  # the files are in its config map
        copies = {}
    return replace(exported, copies=copies, notes=(*exported.notes, *notes))


def ship(job: EngineJob) -> tuple[EngineJob, dict[str, Path]]:
    """The job as the machines see it, and the files that go with it.

    Raises:
        UsageError: there is no such script, it is a notebook, or the job holds a secret.
    """
    _check_secrets(job)
    all_recipes = recipes.recipes()
    recipe = all_recipes.get(job.script)
    script = Path(job.script).expanduser() if recipe is None else recipe.path
    if recipe is None and not script.is_file():
        raise UsageError(f"No script {job.script!r} here. Give its path, or a recipe's name.")
    if recipe is None:
        check_kind(script)
    copies = {f"{FOLDER}/{name}": path for name, path in files_of(script).items()}
    arguments = _with_storage(job, is_recipe=recipe is not None)
    if recipe is not None:
        return replace(job, recipe_folder=FOLDER, arguments=arguments), copies
    return replace(job, script=f"{FOLDER}/{script.name}", arguments=arguments), copies


def _check_secrets(job: EngineJob) -> None:
    """Refuse values that must not stand in files; the message does not repeat them."""
    words = job.arguments
    if redact_arguments(words) != list(words) or any(HIDDEN in word for word in words):
        raise UsageError(
            "An argument is a secret, and the files would hold it. Let the script read it from a "
            "variable, launch it once with --env NAME=…, and export that run: such variables go as "
            "secrets."
        )
    hidden = redact_environment(job.environment)
    secret_names = [name for name, value in job.environment.items() if hidden[name] != value]
    if secret_names:
        raise UsageError(
            f"{', '.join(secret_names)}: the value is a secret. Give the name alone, among the "
            "secrets."
        )
    for job_field in fields(job):  # the files that are made of these texts are written as they are
        text = str(getattr(job, job_field.name))
        if hide_known(text) != text:
            raise UsageError(
                f"The job's {job_field.name.replace('_', ' ')} holds a secret. Read it from a "
                "variable there, launch it once with --env NAME=…, and export that run."
            )


def _with_storage(job: EngineJob, *, is_recipe: bool) -> tuple[str, ...]:
    """Arguments with the folder of the checkpoints: ``{checkpoints}``, or a recipe's own flag."""
    where = checkpoint_folder(job)
    arguments = tuple(
        argument.replace("{checkpoints}", where or "checkpoints") for argument in job.arguments
    )
    if not is_recipe or where is None or "--checkpoint-dir" in option_names(arguments):
        return arguments
    return (*arguments, "--checkpoint-dir", where)


def _notes(job: EngineJob, shipped: EngineJob) -> list[str]:
    notes: list[str] = []
    if job.script not in recipes.recipes():
        notes.append("Only the script and the modules that it imports by name go with it.")
        if job.checkpoint_uri is not None and "{checkpoints}" not in " ".join(job.arguments):
            notes.append(
                f"The script itself must save to {checkpoint_folder(shipped)} and resume from it; "
                "write {checkpoints} in an argument to hand it over."
            )
    here = Path.cwd()
    local_paths = [
        str(path.relative_to(here) if path.is_relative_to(here) else path)
        for _, path in named_paths(job.arguments, here)
    ]
    if local_paths:
        notes.append(
            f"Files that arguments name do not go with it: {shlex.join(local_paths)}. What the "
            "script reads of them has to be on the machines; relative paths start in the "
            "exported folder there."
        )
    precision = job.environment.get(PRECISION)
    if precision and job.script not in recipes.recipes():
        notes.append(f"Accelerate is told mixed_precision {precision}, as on this machine.")
    notes += _spending_notes(job)
    if job.nodes > 1 and job.checkpoint_uri is None:
        notes.append(
            "Each machine saves to its own disk, so no checkpoint is complete on any of them: give "
            "shared storage with --checkpoints."
        )
    return notes


def _spending_notes(job: EngineJob) -> Iterator[str]:
    """How the dollars and kWh of a limit are counted."""
    if job.max_usd is not None:
        yield (
            f"--max-usd counts {format_usd(job.price)} an hour of all machines while the training "
            "runs, not the machines before and after."
        )
    if job.max_kwh is not None:
        yield (
            "--max-kwh counts the power of the GPU boards that nvidia-smi reads; each machine has "
            "an equal share."
        )
    if job.checkpoint_uri is None and {job.max_usd, job.max_kwh} != {None}:
        yield "What was spent stands on each machine's own disk: a new machine counts from 0."


def _secret_notes(copies: Mapping[str, Path], engine: str) -> Iterator[str]:
    """Keys that stand in the code itself: copies are exact, a config map is read by many."""
    for name, path in copies.items():
        lines = lines_with_secrets(path.read_text(encoding="utf-8", errors="replace"))
        if lines:
            where = ", ".join(map(str, lines[:5]))
            hidden = engine == "kubeflow"
            how = "is [redacted] in the config map" if hidden else "goes along as it is"
            yield (
                f"{name}, line {where}: what looks like a secret {how}. Read it from a variable, "
                "launch it once with --env NAME=…, and export that run."
            )


def _plain(job: EngineJob, launcher: str, address: str | None) -> Export:
    if job.nodes > 1 and address is None:
        raise UsageError(
            "Machines of your own find each other at the first one's address. Give --address."
        )
    where = check_address(address or "127.0.0.1")
    head = '#!/usr/bin/env bash\nset -euo pipefail\ncd "$(dirname "$0")"\n'
    files = {
        f"node-{rank}.sh": head
        + launch_script(
            job,
            address=where,
            port=job.port,
            node_rank=rank,
            launcher=launcher,
            resume=saves(job),
        )
        for rank in range(job.nodes)
    }
    next_ = tuple(f"bash node-{rank}.sh    # on machine {rank}" for rank in range(job.nodes))
    notes = ("Copy the folder to every machine first, to the same place.",) if job.nodes > 1 else ()
    return Export(engine=launcher, job=job, files=files, next=next_, notes=notes)


def _slurm(job: EngineJob) -> Export:
    from workbench.engines.slurm import check, sbatch_text  # noqa: PLC0415  (only where needed)

    problems = check(job)
    if problems:
        raise UsageError(" ".join(problems))
    files = {f"{slug(job)}.sbatch": sbatch_text(job)}
    name = next(iter(files))
    return Export(
        engine="slurm",
        job=job,
        files=files,
        next=(f"sbatch --test-only {name}", f"sbatch {name}"),
        notes=tuple(_site_notes(job)),
    )


def _site_notes(job: EngineJob) -> Iterator[str]:
    """What a Slurm site has to have, and what the script leaves to it."""
    yield "The folder must be on storage that all nodes share."
    if not job.setup:
        yield (
            f"The nodes run their own {job.python}: put the line that gives it torch and "
            "accelerate (module load …, source …/bin/activate) below the #SBATCH lines."
        )
    if job.max_hours is None:
        yield "The job sets no time limit, so the partition's applies. Set one with --max-hours."


def _rented(job: EngineJob, engine: str, copies: Mapping[str, Path]) -> Export:
    from workbench.engines import dstack, kubeflow, runpod, skypilot  # noqa: PLC0415  (YAML)

    files = {LAUNCH: launch_text(job)}
    name = slug(job)
    if engine == "skypilot":
        own, next_, notes = skypilot.task_files(job, name)
    elif engine == "dstack":
        own, next_, notes = dstack.task_files(job, name)
    elif engine == "runpod":
        own, next_, notes = runpod.request_files(job, name)
    else:
        own, next_, notes = kubeflow.trainjob_files(job, name, files | _texts(copies))
        files = {}
    return Export(engine=engine, job=job, files={**own, **files}, next=next_, notes=notes)


def _texts(copies: Mapping[str, Path]) -> dict[str, str]:
    return {
        name: hide_in_code(path.read_text(encoding="utf-8", errors="surrogateescape"))
        for name, path in copies.items()
    }


__all__ = ["ENGINES", "Export", "RefusedError", "checkpoint_folder", "export", "ship", "slug"]

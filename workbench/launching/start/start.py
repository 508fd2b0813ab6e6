"""Claims a run directory for a checked request, writes run.json and starts the supervisor."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.launching.cell.script import kept_script
from workbench.launching.prepare.acceptance import seal
from workbench.launching.prepare.devices import drives_all_gpus, placed, wants_devices
from workbench.launching.prepare.own_decisions import refuse_standing_notice
from workbench.launching.prepare.placement import check_known_here
from workbench.launching.prepare.recorded_environment import tuning_variables
from workbench.launching.prepare.request import Request
from workbench.launching.start.launch_spec import LaunchSpec, ResumeSpec, make_spec, warm_server
from workbench.launching.start.supervisor_process import spawn_supervisor
from workbench.provenance.record import record_provenance
from workbench.store import secrets
from workbench.store.commands import STORE_VARIABLE
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import MARKER
from workbench.store.queue_files import QueueFiles
from workbench.store.room import shortage
from workbench.store.run_record import OriginDoc, ProvenanceDoc, RunRecord, SweepDoc
from workbench.store.runs import discard
from workbench.store.schema import SCHEMA_VERSION
from workbench.store.signatures import vouch
from workbench.version import __version__

_ROOM_BYTES = 1 << 20
"""What a run's record, logs and metrics take at least; checkpoints come on top of it."""
_ROOM_FILES = 64


def begin(
    request: Request, resume: ResumeSpec | None = None, rerun_of: str | None = None
) -> RunPaths:
    """Start `request` in a run directory of its own.

    `resume`: the checkpoint to begin at, with ``"run"``: the id of the run that wrote it.
    `rerun_of`: the run that is started again.

    Raises:
        UsageError: another run holds devices that it needs, node 0 has no such address, or a notice
            of pre-emption stands.
        HostError: the GPU driver tells no GPU now.
        StoreError: the run store cannot be written.
    """
    if request.options.address is not None:
        check_known_here(request.options.address)
    refuse_standing_notice(request.options.recovery, request.working_directory)
    queue = QueueFiles(request.store.root)
    with queue.locked() if wants_devices(request) else nullcontext():
        paths, spec = prepare(placed(request), resume, rerun_of)
    try:
        spawn_supervisor(paths, spec)
    except OSError as error:
        discard(paths)
        raise _cannot_write(paths, error) from error
    return paths


def prepare(
    request: Request,
    resume: ResumeSpec | None = None,
    rerun_of: str | None = None,
    queued_at: float | None = None,
    sweep: SweepDoc | None = None,
) -> tuple[RunPaths, LaunchSpec]:
    """Claim the run directory of `request` and write what there is to know; nothing is started.

    `queued_at`: when it was filed in the queue, which starts it later. `sweep`: whose trial it is.

    Returns:
        The directory, and the spec for its supervisor.

    Raises:
        StoreError: the run store cannot be written.
    """
    _check_room(request.store.root)
    paths = request.store.create(request.name)
    try:
        request = replace(request, script=kept_script(request.script, paths.cell))
    except OSError as error:
        discard(paths)
        raise _cannot_write(paths, error) from error
    marker = uuid.uuid4().hex
    environment = {
        **request.environment,
        MARKER: marker,
        "WORKBENCH_RUN_DIR": str(paths.directory),
    }
    origin: OriginDoc | None = resume and {
        "run": resume.get("run"),
        "checkpoint": resume["checkpoint"],
        "step": resume["step"],
    }
    run = replace(
        _record(request, paths, marker, environment),
        resumed_from=origin,
        rerun_of=rerun_of,
        queued_at=queued_at,
        sweep=sweep,
        provenance=provenance(request, paths.source),
    )
    run = replace(run, vouched=vouched(run))
    try:
        write_json_atomic(paths.run, run.document(), indent=2)
        write_json_atomic(paths.view, _first_view(run))
        for path, text in request.config_files_in(paths.directory).items():
            Path(path).write_text(text, encoding="utf-8")
            Path(path).chmod(0o600)  # it decides what is started, whatever the umask
        command = request.command_in(paths.directory)
        folder = request.working_directory
        warm = warm_server(run)
        spec = make_spec(command, request.arguments, environment, folder, warm)
    except OSError as error:
        discard(paths)
        raise _cannot_write(paths, error) from error
    return paths, {**spec, "resume": resume}


def _check_room(store: Path) -> None:
    full = shortage(store, bytes_needed=_ROOM_BYTES, files_needed=_ROOM_FILES)
    if full:
        raise StoreError(
            f"No run can be kept in {store}: {full}. Free space there, or choose another folder "
            f"with --store DIR or {STORE_VARIABLE}=DIR."
        )


def provenance(request: Request, keep: Path | None) -> ProvenanceDoc:
    """The record's part about what is started; changes and copies are written into `keep`."""
    variables = {**os.environ, **request.options.environment}
    return record_provenance(
        request.script,
        request.arguments,
        request.working_directory,
        secrets.redact_environment(tuning_variables(variables)),
        ours=request.recipe is not None,
        keep=keep,
    ).document()


def record_of(request: Request) -> RunRecord:
    """The part of a record about what would be started and where; nothing is written."""
    return RunRecord(cluster=asdict(request.cluster), provenance=provenance(request, None))


def _first_view(run: RunRecord) -> dict[str, object]:
    """What a page finds until the supervisor writes the view: no one has looked at anything yet."""
    return {
        "schema": run.schema,
        "run": run.run,
        "name": run.name,
        "processes": run.processes,
        "device": run.device,
        "steps_total": run.steps_total,
        "strategy": run.strategy_name,
        "seq": 0,
        "phase": "starting",
        "steps": 0,
        "series": {},
        "ranks": [],
    }


def _cannot_write(paths: RunPaths, error: OSError) -> StoreError:
    return StoreError(f"The run directory {paths.directory} cannot be written: {error}")


def vouched(run: RunRecord) -> list[str]:
    """Proofs that the record's command, hooks and variables are ours; secrets are not in it."""
    run = replace(run, vouched=vouch(run, run.environment))
    run = replace(run, vouched=vouch(run, run.extra_environment or {}))
    return seal(run)


def recorded_work(request: Request) -> dict[str, Any]:
    """The record's part about what is trained, how long, and what is predicted of it."""
    workload, tokens = request.workload, None
    if workload is not None and workload.counts_tokens and not workload.variable_length:
        tokens = workload.tokens_per_step(request.strategy.data_ranks)
    return {
        "workload": asdict(workload) if workload else None,
        "trainer": request.trainer.document() if request.trainer else None,
        "predicted": request.prediction(),
        "steps_total": request.steps_total,
        "seconds_total": request.seconds_total,
        "tokens_per_step": tokens,
    }


def _record(
    request: Request, paths: RunPaths, marker: str, environment: dict[str, str]
) -> RunRecord:
    options = request.options.document()
    options["extra_environment"] = secrets.redact_environment(options["extra_environment"])
    document = {
        **options,
        "schema": SCHEMA_VERSION,
        "run": paths.directory.name,
        "name": request.name,
        "marker": marker,
        "created_at": time.time(),
        "workbench_version": __version__,
        "script": str(request.script),
        "module": request.module,
        "arguments": secrets.redact_arguments(request.arguments),
        "layout_arguments": list(request.layout_arguments),
        "recipe": request.recipe,
        "strategy": request.strategy.options(),
        "strategy_name": request.strategy.name,
        "processes": request.processes,
        "engine": None,
        "device": request.device,
        "all_gpus": drives_all_gpus(request),
        "cluster": asdict(request.cluster),
        **recorded_work(request),
        "warnings": list(request.warnings),
        "command": secrets.redact_arguments(request.command_in(paths.directory)),
        "environment": secrets.redact_environment(environment),
        "cpu_threads": request.threads.document(),
        "working_directory": str(request.working_directory),
        "usd_per_hour": request.usd_per_hour,
        "resumed_from": None,
        "rerun_of": None,
        "sweep": None,
        "part_of": request.part_of,
        "provenance": None,
        "vouched": [],
    }
    return RunRecord.of(document)

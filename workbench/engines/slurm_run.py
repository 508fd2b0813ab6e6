"""A run on Slurm: its directory is made at once; the nodes join it when its job runs."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.engines import slurm_watch
from workbench.engines.job import EngineJob
from workbench.engines.slurm import ANY_GPU, GRACE_SECONDS, cores_per_node, sbatch_text
from workbench.engines.slurm_watch import SlurmJob
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.launching.prepare.request import Request
from workbench.launching.run import Run
from workbench.launching.start.start import prepare
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.record import read_record
from workbench.store.schema import SCHEMA_VERSION
from workbench.store.status import read_status

SCRIPT = "job.sbatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What Slurm is asked for beside the machines."""

    hours: Annotated[
        float | None,
        Option(help="Time limit of each start [default: the partition's].", above=0),
    ] = None
    """None = the partition's."""
    partition: Annotated[str | None, Option(help="Slurm's partition [default: Slurm's].")] = None
    """None = Slurm's default."""
    account: Annotated[str | None, Option(help="Slurm's account [default: yours].")] = None
    """None = the user's."""
    grace_seconds: int = GRACE_SECONDS
    """Between Slurm's notice and the end."""
    cpus_per_rank: Annotated[
        int | None,
        Option(help="Cores of each rank [default: 1; beside a GPU 4].", flag="cpus", least=1),
    ] = None
    """None = 1, or 4 beside a GPU."""
    requeues: Annotated[
        int,
        Option(help="Maximum further starts of the job, from the newest checkpoint.", least=0),
    ] = 3
    """Starts after the first, when the time is over or the nodes are taken."""

    def __post_init__(self) -> None:
        """Refuse what no job could be given."""
        check_declared(self)


def job_of_request(request: Request, limits: Limits, python: str) -> EngineJob:
    """The job that a checked request is, for an engine on machines like this one."""
    if request.module is not None:
        raise UsageError(
            f"Slurm jobs start a file, not the module {request.module}. Give a script that runs it."
        )
    accelerator = request.cluster.accelerator
    gpu = None
    if request.device == "cuda":
        gpu = ANY_GPU if accelerator is None else accelerator.id
    return EngineJob(
        name=request.name,
        script=str(request.script),
        arguments=request.arguments,
        strategy=request.strategy,
        nodes=request.nodes,
        processes_per_node=request.processes_here,
        gpu=gpu,
        working_directory=request.working_directory,
        store=request.store.root,
        python=python,
        environment={},
        restarts=limits.requeues,
        max_hours=limits.hours,
        port=request.options.port or 29_500,
    )


def device_note(request: Request, limits: Limits) -> str:
    """What to say of a job on cores that no one asked for: this machine has no GPU; "" = nothing.

    Raises:
        UsageError: the nodes have GPUs, which the job would not use.
    """
    options = request.options
    if request.device == "cuda" or options.cpu or options.cluster is not None:
        return ""
    try:
        types = slurm_watch.gpu_types(limits.partition)
    except WorkbenchError:
        return (
            "This machine has no GPU, so the job trains on cores, whatever its nodes have. To "
            "train on GPUs: --gpu NAME."
        )
    if not types:
        return ""
    names = ", ".join(sorted(filter(None, types))) or "of no named type"
    raise UsageError(
        "This machine has no GPU, so the job would train on cores, and Slurm's nodes have GPUs "
        f"({names}). Say which is meant: --gpu NAME (as workbench gpus calls it), or --cpu."
    )


def text_of(request: Request, limits: Limits, directory: Path, python: str) -> str:
    """The batch script of `request` in that run directory.

    Raises:
        UsageError: the job is none for Slurm.
    """
    job, types = job_of_request(request, limits, python), None
    if job.gpu not in {None, ANY_GPU}:
        with contextlib.suppress(WorkbenchError):  # no Slurm here: its usual names
            types = slurm_watch.gpu_types()
    return sbatch_text(
        job,
        run_directory=directory,
        partition=limits.partition,
        account=limits.account,
        grace_seconds=limits.grace_seconds,
        cpus_per_rank=limits.cpus_per_rank,
        gpu_types=types,
    )


def submit(request: Request, limits: Limits, python: str) -> tuple[Run, SlurmJob | None]:
    """Ask Slurm whether it would, claim the run directory, submit.

    Raises:
        UsageError: we, or Slurm, refuse the job.
        HostError: Slurm is not here or does not answer.
        StoreError: the run directory cannot be written.
    """
    request = _on_nodes(request, limits)
    _test(text_of(request, limits, request.planned_directory, python))
    paths, _order = prepare(request)
    script = paths.config / SCRIPT
    try:
        script.write_text(text_of(request, limits, paths.directory, python), encoding="utf-8")
        job_id = slurm_watch.submit(script)
        run = replace(read_record(paths), engine={"name": "slurm", "job_id": job_id})
        write_json_atomic(paths.run, run.document(), indent=2)
    except OSError as error:
        raise StoreError(f"{paths.directory} cannot be written: {error}") from error
    except WorkbenchError as error:
        _end(paths, "failed", str(error))
        raise
    job = None
    with contextlib.suppress(WorkbenchError):  # a busy controller: the job is in all the same
        job = slurm_watch.look(job_id)
    return Run(paths), job


def _on_nodes(request: Request, limits: Limits) -> Request:
    """The request with the cores that Slurm gives the job on a node, not those of this machine."""
    cores = cores_per_node(job_of_request(request, limits, ""), limits.cpus_per_rank)
    return replace(request, cluster=replace(request.cluster, cpu_cores=cores))


def _test(text: str) -> None:
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        script = Path(folder) / SCRIPT
        script.write_text(text, encoding="utf-8")
        slurm_watch.test_only(script)


def look(run: Run) -> SlurmJob | None:
    """The run's job as Slurm knows it; None = it has none, or Slurm has forgotten it."""
    job_id = slurm_watch.job_of(run.document)
    return None if job_id is None else slurm_watch.look(job_id)


def settle(run: Run) -> str | None:
    """What Slurm says of the run's job, in a sentence; a job that is gone ends its run.

    None: the run is none of Slurm's, or Slurm does not answer from here.
    """
    job_id = slurm_watch.job_of(run.document)
    if job_id is None:
        return None
    with contextlib.suppress(WorkbenchError):
        job = slurm_watch.look(job_id)
        over = job is None or not (job.waiting or job.at_work)
        paths = RunPaths(run.directory)
        if over and not paths.exit.exists() and not paths.state.exists():
            how = "is no longer in Slurm's queue" if job is None else f"ended: {job.state}"
            _end(paths, "interrupted", f"Slurm job {job_id} {how}, before the run began.")
        return f"Slurm no longer lists job {job_id}." if job is None else job.sentence
    return None


def cancel_waiting(run: Run) -> bool:
    """Take the run's job out of the queue; False when it does not wait there.

    A job whose run has ended may still be there, to be started again: it goes, too.

    Raises:
        HostError: Slurm does not answer, and no one else could stop the run: it has not begun.
        UsageError: Slurm refused.
    """
    paths = RunPaths(run.directory)
    over = read_status(paths).state == "ended"
    try:
        job = look(run)
    except WorkbenchError:
        if not paths.state.exists():
            raise
        return False
    if job is None or not (job.waiting or (over and job.at_work)):
        return False
    check_own(paths, "stopped")
    slurm_watch.cancel(job.job_id)
    if not over:
        _end(paths, "stopped", f"Stopped in Slurm's queue: job {job.job_id} was cancelled.")
    return True


def _end(paths: RunPaths, outcome: str, message: str) -> None:
    """The end of a run that never began."""
    document = {
        "schema": SCHEMA_VERSION,
        "outcome": outcome,
        "exit_code": None,
        "failed_rank": None,
        "message": message,
        "finding": None,
        "processes_left": 0,
        "gpu_memory_left_bytes": None,
        "ended_at": round(time.time(), 3),
    }
    with contextlib.suppress(OSError):  # ForeignRunError is one: who only looks tells nothing
        check_own(paths, "ended")
        write_json_atomic(paths.exit, document, indent=2)

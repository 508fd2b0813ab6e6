"""What Slurm says of a job: waiting, at work, ended, how often it began; without accounting."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import HostError, UsageError, WorkbenchError

_SECONDS = 30.0
_JOB = re.compile(r"[0-9]+")
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_AT_WORK = frozenset({"CONFIGURING", "RUNNING", "COMPLETING", "STOPPED", "SUSPENDED", "SIGNALING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job, as ``scontrol show job`` tells."""

    job_id: str
    """Slurm's number."""
    state: str
    """PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL …"""
    reason: str | None = None
    """Why it waits: Resources, Priority, BeginTime …; None = it does not say."""
    restarts: int = 0
    """Starts after the first."""
    nodes: str | None = None
    """Where it runs; None = nowhere yet."""
    exit_code: str | None = None
    """``code:signal`` of the batch script; None while unknown."""
    eligible: str | None = None
    """When it may start again, after it was requeued."""

    @property
    def waiting(self) -> bool:
        """Whether it is in the queue."""
        return self.state in _WAITING

    @property
    def at_work(self) -> bool:
        """Whether it has nodes."""
        return self.state in _AT_WORK

    @property
    def sentence(self) -> str:
        """For people."""
        text = f"Slurm job {self.job_id}: {self.state.lower()}"
        why = f" ({self.reason})" if self.waiting and self.reason else ""
        starts_text = f", started {self.restarts + 1} times" if self.restarts else ""
        return f"{text}{why}{starts_text}."


def run_slurm(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands.

    Raises:
        HostError: it is not installed here, or its controller does not answer.
        UsageError: Slurm refused; its own words are in the message.
    """
    program = shutil.which(words[0])
    if program is None:
        raise HostError(
            f"{words[0]} is not installed on this machine. Submit from a login node of the "
            "cluster, or write the batch script for it: workbench export … --to slurm."
        )
    try:
        done = subprocess.run(
            [program, *words[1:]], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"{words[0]} did not answer within {_SECONDS:.0f} s: Slurm's controller does not "
            "respond. Try `sinfo`."
        ) from error
    if check and done.returncode:
        output = " ".join((done.stderr or done.stdout).split())
        if re.search(r"configuration source|Unable to contact slurm controller", output):
            raise HostError(
                f"No Slurm cluster is reached from this machine ({words[0]}: "
                f"{output[-120:].partition(' ')[2]}). Submit from a login node of the cluster, or "
                "write the batch script for it: workbench export … --to slurm."
            )
        raise UsageError(f"Slurm refused ({words[0]}): {output}")
    return done


def gpu_types(partition: str | None = None) -> frozenset[str]:
    """What this Slurm calls the GPUs of its nodes; "" is among them where some have no type.

    `partition`: of its nodes alone; None = of all.

    Raises:
        HostError: Slurm does not answer.
        UsageError: it refused.
    """
    where = [] if partition is None else [f"--partition={partition}"]
    return frozenset(types_in(run_slurm("sinfo", "--noheader", "--format=%G", *where).stdout))


def types_in(text: str) -> list[str]:
    r"""The types in lines of generic resources, as ``sinfo --format=%G`` prints them.

    >>> types_in("gpu:nvidia_h100_80gb_hbm3:8(S:0-1),shard:16\ngpu:4(IDX:0-3)\n(null)\n")
    ['nvidia_h100_80gb_hbm3', '']
    """
    return re.findall(r"(?:^|,)gpu(?::([^:,()]*[^:,()\d][^:,()]*))?:\d+", text, re.MULTILINE)


def look(job_id: str) -> SlurmJob | None:
    """The job as Slurm knows it; None when it has forgotten it (some minutes after its end).

    Raises:
        HostError: Slurm does not answer.
        UsageError: that is no job's number.
    """
    if not _JOB.fullmatch(job_id):
        raise UsageError(f"{job_id!r} is not a Slurm job id.")
    done = run_slurm("scontrol", "--oneliner", "show", "job", job_id, check=False)
    if done.returncode:
        if "Invalid job id" in done.stderr:
            return None
        raise HostError(f"Slurm's controller does not answer: {done.stderr.strip()}")
    return parse(done.stdout)


def parse(text: str) -> SlurmJob:
    """A line of ``scontrol --oneliner show job``.

    >>> parse("JobId=7 JobName=a JobState=PENDING Reason=Resources Restarts=1 NodeList=").sentence
    'Slurm job 7: pending (Resources), started 2 times.'
    """
    fields = dict(re.findall(r"(?:^|\s)([A-Z][\w:/-]*)=(\S*)", text))
    nodes, reason = fields.get("NodeList"), fields.get("Reason")
    empty = {None, "", "(null)", "None"}
    restarts = fields.get("Restarts", "0")
    return SlurmJob(
        job_id=fields.get("JobId", "?"),
        state=fields.get("JobState", "UNKNOWN"),
        reason=None if reason in empty else reason,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        nodes=None if nodes in empty else nodes,
        exit_code=fields.get("ExitCode"),
        eligible=fields.get("EligibleTime"),
    )


def job_of(document: dict[str, Any]) -> str | None:
    """Number of the Slurm job of a run (its run.json); None = it is none of Slurm's."""
    engine: dict[str, Any] = document.get("engine") or {}
    return str(engine["job_id"]) if engine.get("name") == "slurm" and "job_id" in engine else None


def cancel(job_id: str) -> None:
    """Take the job out of the queue, or end it.

    Raises:
        HostError: Slurm does not answer.
        UsageError: it refused.
    """
    run_slurm("scancel", job_id)


def test_only(script: Path) -> str:
    """Slurm's own opinion of a batch script, before it is submitted: when and where it would run.

    Raises:
        UsageError: it would refuse it.
        HostError: Slurm does not answer.
    """
    try:
        done = run_slurm("sbatch", "--test-only", str(script))
    except UsageError as error:
        if "not available" not in str(error):
            raise
        raise UsageError(
            f"{error}. Request less; `sinfo` lists the nodes; down or drained ones do not count."
        ) from error
    return " ".join(done.stderr.split())  # it says so there


def submit(script: Path) -> str:
    """Submit a batch script; returns the job's number.

    Raises:
        UsageError: Slurm refused it.
        HostError: Slurm does not answer.
    """
    job_id = run_slurm("sbatch", "--parsable", str(script)).stdout.strip().partition(";")[0]
    if not _JOB.fullmatch(job_id):
        raise WorkbenchError(f"Unexpected sbatch output: {job_id!r} (expected a job id).")
    return job_id

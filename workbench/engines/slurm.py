"""A job as a Slurm batch script, and what Slurm would refuse of it.

``sbatch`` starts the script on the first node; ``srun`` in it starts one process on each. A notice
of the end (USR1, some time before the limit) makes the ranks save; then Slurm is asked to put the
job into its queue again, and the same script goes on from the newest whole checkpoint.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

from workbench.describe.accelerators import lookup
from workbench.engines.commands import launch_script
from workbench.engines.job import EngineJob
from workbench.engines.launching import saves
from workbench.errors import UsageError
from workbench.units import GIB

GRACE_SECONDS = 120
ANY_GPU = "gpu"
"""A job's GPU where no catalog knows its type."""
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_LEAST_GRACE = 30
_LEAST_MEMORY = 0.93  # of the part's own, in a type's name: 80e9 bytes may be meant by 80gb
CPUS_PER_GPU = 4  # without a word Slurm gives all ranks of a node one core
_WORD = re.compile(r"[\w.@:,+-]+")
# Of the first node an address that the others reach. Its name may lead to a loopback address there
# (Debian's 127.0.1.1), and names of virtual nodes lead nowhere; Slurm has one that it uses itself.
_ADDRESS = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
known=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
MASTER_ADDR=$(getent ahostsv4 "${known:-$first}" | awk '{print $1; exit}')
case "$MASTER_ADDR" in
  127.*) [ "$known" = "$MASTER_ADDR" ] || MASTER_ADDR=$(hostname -I | awk '{print $1}') ;;
  "") MASTER_ADDR=127.0.0.1 ;;
esac
export MASTER_ADDR MASTER_PORT=@PORT@
"""
_WAIT = """\
child=$!
while kill -0 "$child" 2>/dev/null; do sleep 1 & wait $!; done
wait "$child"
code=$?
if [ -n "$noticed" ] && [ "$code" -ne 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt @RESTARTS@ ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def sbatch_text(
    job: EngineJob,
    *,
    run_directory: Path | None = None,
    partition: str | None = None,
    account: str | None = None,
    grace_seconds: int = GRACE_SECONDS,
    cpus_per_rank: int | None = None,
    gpu_types: Collection[str] | None = None,
) -> str:
    """The batch script: ``sbatch FILE`` starts `job`.

    With `run_directory`, which all nodes must see, each node runs ``workbench node`` in it, and the
    run is watched, stopped and resumed as any other. Without, each runs the plain launcher.

    Args:
        job: What to start.
        run_directory: A run that was prepared for it.
        partition: Slurm's; None = its default.
        account: Slurm's; None = the user's.
        grace_seconds: Between Slurm's notice and the end of the time limit.
        cpus_per_rank: Cores of each rank; None = 1, or 4 beside a GPU (loaders want some).
        gpu_types: What the site's GPUs are called, "" where they have no type; None = unknown.

    Raises:
        UsageError: what `check` says, all of it.
    """
    problems = [*check(job), *_check_site(job, partition, account, grace_seconds)]
    if problems:
        raise UsageError(" ".join(problems))
    output = "%x-%j.out" if run_directory is None else _quoted(run_directory / "logs" / "slurm.log")
    cpus = cores_per_node(job, cpus_per_rank)
    site = {"partition": partition, "account": account, "cpus-per-task": str(cpus)}
    lines = ["#!/bin/bash", *_directives(job, output, site, grace_seconds, gpu_types)]
    lines.append(f"export SRUN_CPUS_PER_TASK={cpus}  # srun does not take sbatch's since 22.05")
    if job.nodes > 1 or run_directory is not None:
        lines.append(_ADDRESS.replace("@PORT@", _port(job)).rstrip())
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()]
    lines += _plain(job) if run_directory is None else _watched(job, run_directory)
    return "\n".join(lines) + "\n" + _WAIT.replace("@RESTARTS@", str(_requeues(job)))


def cores_per_node(job: EngineJob, cpus_per_rank: int | None) -> int:
    """Cores that the job asks for on each node; `cpus_per_rank` None = 1, or 4 beside a GPU."""
    return job.processes_per_node * (cpus_per_rank or (1 if job.gpu is None else CPUS_PER_GPU))


def _quoted(path: Path) -> str:
    r"""A path as an #SBATCH line takes it: in sbatch's quotes, and without its replacements.

    >>> _quoted(Path("/it's 100%"))
    '"/it\\\'s 100%%"'
    """
    text = str(path).replace("%", "%%").replace("\\", 4 * "\\")  # read twice: quotes, then name
    return '"' + re.sub(r"([\"'])", r"\\\1", text) + '"'


def _port(job: EngineJob) -> str:
    """A port of the job's own: 15000 to 24999, below those that Linux gives outgoing connections.

    One above may be taken by any connection of the node just when the rendezvous wants it.
    """
    return f"$(( 15000 + ({job.port} + SLURM_JOB_ID) % 10000 ))"


def _directives(
    job: EngineJob,
    output: str,
    site: Mapping[str, str | None],
    grace: int,
    gpu_types: Collection[str] | None,
) -> list[str]:
    options = {
        "job-name": _NAME.sub("-", job.name).strip("-") or "workbench",
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": None if job.gpu is None else _gpus(job, gpu_types),
        "time": None if job.max_hours is None else _clock(job.max_hours),
        **site,
        "output": output,
        "open-mode": "append",
        "signal": f"B:USR1@{grace}",
    }
    requeue_flag = "--requeue" if _requeues(job) else "--no-requeue"
    flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
    lines = [f"#SBATCH {option}" for option in (*flags, requeue_flag)]
    if gpu_types is None and ":" in (options["gpus-per-node"] or ""):
        lines.append("# Where `sinfo -o %G` shows another type or none: sbatch --gpus-per-node=…")
    return lines


def _gpus(job: EngineJob, types: Collection[str] | None) -> str:
    """GPUs of one node as Slurm takes them: ``h100:8``, or ``8`` where they have no type."""
    assert job.gpu is not None
    name = gpu_type(job.gpu, types)
    return f"{name}:{job.processes_per_node}" if name else str(job.processes_per_node)


def gpu_type(gpu: str, types: Collection[str] | None) -> str:
    """What a site calls the accelerator, among the `types` it has; "" = ask for no type.

    A type is whatever the site wrote; usual are the short name, NVML's long one, and none. Sites
    differ most in how they call an RTX: that is asked for only by a name they have. Of types that
    say their memory the one that fits is taken, else the next larger one.

    >>> gpu_type("h100-sxm", None), gpu_type("h100-sxm", {"nvidia_h100_80gb_hbm3", "l40s"})
    ('h100', 'nvidia_h100_80gb_hbm3')
    >>> gpu_type("h100-sxm", {""}), gpu_type("rtx-4090", None), gpu_type("rtx-4090", {"RTX4090"})
    ('', '', 'RTX4090')
    >>> gpu_type("a100-sxm-80", {"a100_40gb", "a100_80gb"})
    'a100_80gb'

    Raises:
        UsageError: all that the site has of it have less memory.
    """
    if gpu == ANY_GPU:
        return ""
    first, *others = gpu.lower().split("-")
    if first == "rtx":
        first, joined = "", "".join([first, *others])
        alike = [kind for kind in types or () if joined in re.sub(r"[^a-z0-9]", "", kind.lower())]
    else:
        alike = [kind for kind in types or () if first in re.split(r"[^a-z0-9]+", kind.lower())]
    alike = [kind for kind in alike if not re.search(r"\dg\.\d+gb", kind.lower())]  # MIG slices
    if alike:
        return _fitting(gpu, alike)
    return "" if "" in (types or ()) else first


def _fitting(gpu: str, alike: Collection[str]) -> str:
    """The type of a site that `gpu` is, of those with its name: by memory, then by form factor."""
    part = lookup(gpu)
    if part is None:
        return min(alike)
    memory = {kind: re.search(r"(?<!\d)(\d+)gb", kind.lower()) for kind in alike}
    # Names say whole gigabytes, rounded either way: 94 of 93.6.
    ratio = {kind: int(size[1]) * GIB / part.memory_bytes for kind, size in memory.items() if size}
    fitting = [kind for kind in alike if ratio.get(kind, 1.0) >= _LEAST_MEMORY]
    if not fitting:
        raise UsageError(
            f"Of {gpu} ({part.memory_bytes / GIB:.0f} GB) this Slurm has only types with less "
            f"memory: {', '.join(sorted(alike))}. Plan for one of these: --gpu, or give another "
            "--partition."
        )
    form = part.form_factor.lower()[:3]  # SXM5, PCIe, OAM

    def distance(kind: str) -> tuple[bool, float, bool, bool, str]:
        has_form = form in kind.lower()
        has_other = not has_form and re.search("sxm|pcie|nvl", kind.lower()) is not None
        larger = max(ratio.get(kind, 1.0), 1.0 / _LEAST_MEMORY)
        return bool(ratio) and kind not in ratio, larger, has_other, not has_form, kind

    return min(fitting, key=distance)


def _clock(hours: float) -> str:
    """Hours as Slurm reads a time limit, in whole minutes.

    >>> _clock(25.5), _clock(0.01)
    ('25:30:00', '00:01:00')
    """
    minutes = max(1, round(60 * hours))
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


def _requeues(job: EngineJob) -> int:
    """How often the job may start again; machines that are taken back do it all the time."""
    return job.restarts or (100 if job.spot else 0)


def _watched(job: EngineJob, directory: Path) -> list[str]:
    """Each node joins the run directory; on the first it becomes the run's supervisor."""
    folder = shlex.quote(str(directory))
    notice = shlex.quote(f"noticed=1; touch {folder}/control/preempt")
    where = '--rank "$SLURM_NODEID" --address "$MASTER_ADDR" --port "$MASTER_PORT"'
    return [
        *job.setup,
        "noticed=",
        f"trap {notice} USR1",
        f"join() {{ exec {shlex.quote(job.python)} -m workbench.cli node {folder} {where}; }}",
        "export -f join",
        "srun --kill-on-bad-exit=0 --wait=0 bash -c join &",
    ]


def _plain(job: EngineJob) -> list[str]:
    """The plain launcher on each node; nothing of the workbench is needed there."""
    text = launch_script(
        job,
        address='"$MASTER_ADDR"',
        port='"$MASTER_PORT"',
        node_rank='"$SLURM_NODEID"',
        resume=saves(job),
    )
    return [
        "noticed=",
        "trap 'noticed=1; scancel --signal=TERM \"$SLURM_JOB_ID\"' USR1",
        "train() {",
        text.rstrip("\n"),
        "}",
        "export -f train",
        "srun --kill-on-bad-exit=1 bash -c train &",
    ]


def check(job: EngineJob) -> list[str]:
    """What is wrong with the job for Slurm, one sentence each; [] = nothing that we can see."""
    problems: list[str] = []
    if job.image is not None:
        problems.append(
            f"Slurm itself does not start containers ({job.image}). Remove --image and prepare the "
            "nodes with modules or an environment on shared storage."
        )
    if job.checkpoint_uri is not None and "://" in job.checkpoint_uri:
        problems.append(
            f"Slurm does not mount buckets ({job.checkpoint_uri}). Give a folder on shared "
            "storage, for example /shared/checkpoints."
        )
    if job.provider is not None or job.region is not None:
        where = " ".join(filter(None, [job.provider, job.region]))
        problems.append(
            f"Slurm's nodes have a fixed location, so {where} cannot be chosen. Remove it."
        )
    if job.max_usd_per_hour is not None:
        problems.append("Slurm does not know prices. Remove the cost limit; use max hours.")
    if job.max_hours is not None and job.max_hours * 3600 < 60:
        problems.append(
            f"Slurm counts its time limit in minutes; {job.max_hours:g} hours are less than one."
        )
    return problems


def _check_site(
    job: EngineJob, partition: str | None, account: str | None, grace_seconds: int
) -> list[str]:
    problems = [
        f"{name}={value!r} is not a valid Slurm name: use letters, digits, - and _."
        for name, value in (("partition", partition), ("account", account))
        if value is not None and not _WORD.fullmatch(value)
    ]
    if grace_seconds < _LEAST_GRACE:
        problems.append(
            f"A grace of {grace_seconds} s is too short to save: give at least {_LEAST_GRACE} s."
        )
    if job.max_hours is not None and grace_seconds >= 3600 * job.max_hours:
        problems.append(
            f"The grace of {grace_seconds} s is not shorter than the time limit of "
            f"{3600 * job.max_hours:.0f} s, so the notice would arrive at once."
        )
    return problems

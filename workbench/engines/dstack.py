"""A job as a dstack task with the fleet that it needs.

Keys: models of dstack 0.22.5 (tests/engines/test_dstack.py gives each file to that release).
"""

from __future__ import annotations

from typing import Any

from workbench.engines.gpu_names import gpu_name
from workbench.engines.job import CHECKPOINTS, DISK_GB, EngineJob
from workbench.engines.launching import LAUNCH, literal, setup_lines
from workbench.engines.refusals import able, place
from workbench.engines.skypilot import Made
from workbench.trainer_configs.yaml_text import yaml_text

FILE, FLEET = "task.dstack.yml", "fleet.dstack.yml"
_AT = "/workflow"
_LONGEST = 41  # letters of a name


def task_files(job: EngineJob, name: str) -> Made:
    """Fleet and task, what to type, what to know."""
    comments = (f"{job.name}: {job.nodes} x {job.processes_per_node} ranks",)
    files = {
        FILE: yaml_text(task(job, name), (*comments, f"start: dstack apply -f {FILE}")),
        FLEET: yaml_text(fleet(job, name), ("the machines; nothing is rented before a task",)),
    }
    next_ = (
        f"dstack apply -f {FLEET} -y",
        *(f"dstack secret set {secret} …" for secret in job.secrets),
        f"dstack apply -f {FILE}",
        f"dstack logs {name}",
    )
    notes = ["The task waits for its fleet: without one dstack reports 'no fleets'."]
    if job.provider is None and (job.nodes > 1 or job.spot):
        providers = able("dstack", nodes=job.nodes, spot=job.spot)
        notes.append(f"dstack supports this at {', '.join(providers)}.")
    return files, next_, tuple(notes)


def task(job: EngineJob, name: str) -> dict[str, Any]:
    """The task as dstack's models have it."""
    document: dict[str, Any] = {"type": "task", "name": name, "nodes": job.nodes}
    document |= {"image": job.image} if job.image else {"python": "3.12"}
    variables = {key: literal(value) for key, value in job.environment.items()}
    variables |= {secret: f"${{{{ secrets.{secret} }}}}" for secret in job.secrets}
    document |= {"env": variables} if variables else {}
    document["files"] = [f".:{_AT}"]
    document["working_dir"] = _AT
    document["commands"] = [
        *map(literal, setup_lines(job, torch=job.image is None)),
        "export NODE_RANK=$DSTACK_NODE_RANK MASTER_ADDR=$DSTACK_MASTER_NODE_IP",
        f"MASTER_PORT={job.port} bash {LAUNCH}",
    ]
    document |= _storage(job)
    return document | _where(job) | _limits(job)


def fleet(job: EngineJob, name: str) -> dict[str, Any]:
    """The machines that the task may take; created when a task needs them."""
    nodes = {"min": 0, "max": job.nodes, "target": 0}
    own = f"{name}-fleet" if len(name) <= _LONGEST - len("-fleet") else name
    document: dict[str, Any] = {"type": "fleet", "name": own, "nodes": nodes}
    document |= {"placement": "cluster"} if job.nodes > 1 else {}
    document |= _where(job)
    if job.idle_minutes is not None:
        document["idle_duration"] = f"{job.idle_minutes}m"
    return document


def _where(job: EngineJob) -> dict[str, Any]:
    fields: dict[str, Any] = {"resources": _resources(job)}
    if job.provider is not None:
        rented_place = place("dstack", job.provider)
        assert rented_place is not None
        fields["backends"] = [rented_place.name]
    fields |= {"regions": [job.region]} if job.region else {}
    fields["spot_policy"] = "spot" if job.spot else "on-demand"
    if job.max_usd_per_hour is not None:  # dstack counts one machine
        fields["max_price"] = job.max_usd_per_hour / job.nodes
    return fields


def _resources(job: EngineJob) -> dict[str, Any]:
    fields: dict[str, Any] = {"disk": f"{job.disk_gb or DISK_GB}GB.."}
    if job.gpu is None:
        return fields | {"cpu": f"{2 * job.processes_per_node}.."}
    # A container's own 64 MB of shared memory are too few for NCCL and for loader workers.
    gpu = f"{gpu_name('dstack', job.gpu)}:{job.processes_per_node}"
    return fields | {"gpu": gpu, "shm_size": "16GB"}


def _limits(job: EngineJob) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if job.max_hours is not None:
        fields["max_duration"] = f"{max(1, round(60 * job.max_hours))}m"
    if job.idle_minutes is not None:
        fields["idle_duration"] = f"{job.idle_minutes}m"
    if job.spot or job.restarts:
        events = ["interruption", "no-capacity"] if job.spot else []
        events += ["error"] if job.restarts else []
        fields["retry"] = {"on_events": events, "duration": "24h"}
    return fields


def _storage(job: EngineJob) -> dict[str, Any]:
    where = job.checkpoint_uri
    if where is None:
        return {}
    return {"volumes": [{"name": where.removeprefix("volume:"), "path": CHECKPOINTS}]}

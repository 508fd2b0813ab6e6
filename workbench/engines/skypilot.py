"""A job as a SkyPilot task: managed spot jobs with recovery, autostop, a mounted bucket.

Keys: schemas of SkyPilot 0.14.1 (tests/engines/test_skypilot.py gives each file to that release).
"""

from __future__ import annotations

from typing import Any

from workbench.engines.gpu_names import gpu_name, name_notes
from workbench.engines.job import CHECKPOINTS, DISK_GB, EngineJob
from workbench.engines.launching import LAUNCH, limited, setup_lines
from workbench.engines.refusals import able, place
from workbench.trainer_configs.yaml_text import yaml_text

Made = tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]
"""Files, what to type, notes."""
FILE = "skypilot.yaml"
_RUN = """\
export NODE_RANK="$SKYPILOT_NODE_RANK" MASTER_PORT={port}
export MASTER_ADDR="$(head -n1 <<< "$SKYPILOT_NODE_IPS")"
{command}
"""


def task_files(job: EngineJob, name: str) -> Made:
    """The task's file, what to type, what to know."""
    managed = job.spot or job.restarts > 0
    secrets = "".join(f" --secret {secret}" for secret in job.secrets)
    start = (
        f"sky jobs launch{secrets} {FILE}" if managed else f"sky launch -c {name}{secrets} {FILE}"
    )
    look = (
        ("sky jobs queue", f"sky jobs logs -n {name}")
        if managed
        else (f"sky logs {name}", f"sky down {name}    # releases the machines")
    )
    comments = (f"{job.name}: {job.nodes} x {job.processes_per_node} ranks", f"start: {start}")
    return {FILE: yaml_text(task(job, name), comments)}, (start, *look), tuple(_notes(job, managed))


def task(job: EngineJob, name: str) -> dict[str, Any]:
    """The task as SkyPilot's schema has it."""
    document: dict[str, Any] = {"name": name, "num_nodes": job.nodes}
    document["resources"] = _resources(job)
    document["workdir"] = "."
    document |= {"envs": dict(job.environment)} if job.environment else {}
    document |= {"secrets": dict.fromkeys(job.secrets)} if job.secrets else {}
    document |= _storage(job)
    document["setup"] = "\n".join(setup_lines(job, torch=job.image is None)) + "\n"
    document["run"] = _RUN.format(port=job.port, command=limited(job, f"bash {LAUNCH}"))
    return document


def _resources(job: EngineJob) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if job.provider is not None:
        rented_place = place("skypilot", job.provider)
        assert rented_place is not None
        fields["infra"] = (
            rented_place.name if job.region is None else f"{rented_place.name}/{job.region}"
        )
    elif job.region is not None:
        fields["region"] = job.region
    if job.gpu is not None:
        name = gpu_name("skypilot", job.gpu, job.provider)
        fields["accelerators"] = f"{name}:{job.processes_per_node}"
    else:
        fields["cpus"] = f"{2 * job.processes_per_node}+"
    fields |= {"use_spot": True} if job.spot else {}
    if job.spot or job.restarts:
        fields["job_recovery"] = {
            "strategy": "EAGER_NEXT_REGION",
            "max_restarts_on_errors": job.restarts,
        }
    if job.max_usd_per_hour is not None:  # SkyPilot counts one machine
        fields["max_hourly_cost"] = job.max_usd_per_hour / job.nodes
    if job.idle_minutes is not None and not (job.spot or job.restarts):
        fields["autostop"] = {"idle_minutes": job.idle_minutes, "down": True}
    fields |= {"image_id": f"docker:{job.image}"} if job.image else {}
    return fields | {"disk_size": job.disk_gb or DISK_GB}


def _storage(job: EngineJob) -> dict[str, Any]:
    where = job.checkpoint_uri
    if where is None:
        return {}
    if where.startswith("volume:"):
        return {"volumes": {CHECKPOINTS: where.removeprefix("volume:")}}
    return {"file_mounts": {CHECKPOINTS: {"source": where, "mode": "MOUNT_CACHED"}}}


def _notes(job: EngineJob, managed: bool) -> list[str]:  # noqa: FBT001
    notes: list[str] = []
    if managed:
        notes.append("Managed jobs need a separate controller machine, which also costs money.")
        if job.idle_minutes is not None:
            notes.append("Managed jobs release their machines at once: idle minutes are not used.")
    if job.max_hours is not None:
        notes.append("The time limit counts from each start, recoveries included.")
    if job.nodes > 1 and "://" in (job.checkpoint_uri or ""):
        notes.append(
            "MOUNT_CACHED uploads in the background: the machines see each other's checkpoint "
            "files late. Prefer --checkpoints volume:NAME for several machines."
        )
    if job.provider is None and (job.nodes > 1 or job.spot):
        providers = able("skypilot", nodes=job.nodes, spot=job.spot)
        notes.append(
            f"SkyPilot supports this at {', '.join(providers)} and silently skips other providers."
        )
    return notes + (name_notes("skypilot", job.gpu, job.provider) if job.gpu else [])

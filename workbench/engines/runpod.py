"""A job as the request for a RunPod Instant Cluster: the body of POST /v2/clusters.

Fields: runpod/docs@a900806, api-reference-v2/openapi.json (2026-08-20); no library of theirs knows
clusters yet.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from workbench.engines.gpu_names import gpu_name
from workbench.engines.job import CHECKPOINTS, DISK_GB, EngineJob
from workbench.engines.launching import LAUNCH, limited, setup_lines
from workbench.engines.skypilot import Made

FILE = "cluster.json"
ADDRESS = "https://api.runpod.io/v2/clusters"
_START = "/tmp/workbench-start.sh"  # noqa: S108  (inside the container)
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
"""The image that RunPod's own reference starts."""


def request_files(job: EngineJob, name: str) -> Made:
    """The request's body, what to type, what to know."""
    body = json.dumps(request(job, name), indent=2) + "\n"
    volume = _volume(job)
    key = '-H "Authorization: Bearer $RUNPOD_API_KEY"'
    post = f"curl -X POST {ADDRESS} {key} -H 'Content-Type: application/json' -d @{FILE}"
    next_ = (
        f"# copy this folder to {name}-files on the network volume {volume}",
        post,
        f"curl -X DELETE {ADDRESS}/ID {key}    # stops the billing",
    )
    notes = [
        "A cluster runs and costs money until you delete it.",
        "Traffic between the machines goes over ens1; over eth0 it would time out.",
        "Not tested against RunPod itself: that needs an account.",
    ]
    if job.max_hours is not None:
        notes.append(
            "--max-hours ends the training, not the billing: delete the cluster afterwards."
        )
    if job.secrets:
        notes.append(f"Create these secrets at RunPod first: {', '.join(job.secrets)}.")
    return {FILE: body}, next_, tuple(notes)


def request(job: EngineJob, name: str) -> dict[str, Any]:
    """The body, as the reference's CreateClusterRequest."""
    assert job.gpu is not None
    secrets = {secret: f"{{{{ RUNPOD_SECRET_{secret} }}}}" for secret in job.secrets}
    fields: dict[str, Any] = {
        "name": name,
        "type": "TRAINING",
        "compute": {
            "gpuTypeId": gpu_name("runpod", job.gpu),
            "gpuCountPerPod": job.processes_per_node,
            "podCount": job.nodes,
        },
        "image": job.image or IMAGE,
        "disk": job.disk_gb or DISK_GB,
        "env": {"NCCL_SOCKET_IFNAME": "ens1", **job.environment, **secrets},
        "args": _arguments(start_text(job, name)),
        "mounts": {"network": [{"volumeId": _volume(job), "path": CHECKPOINTS}]},
    }
    return fields | ({"dataCenterIds": [job.region]} if job.region else {})


def start_text(job: EngineJob, name: str) -> str:
    """What each container runs, and never ends.

    RunPod starts again what ends: the training would begin again, and its time with it.
    """
    lines = [
        "set -e",
        *setup_lines(job, torch=False),
        "export MASTER_ADDR=$PRIMARY_ADDR MASTER_PORT=$PRIMARY_PORT",
        f"({limited(job, f'bash {CHECKPOINTS}/{name}-files/{LAUNCH}')}) || echo 'training failed'",
        "echo 'the cluster costs money until it is deleted'",
        "sleep infinity",
    ]
    return "\n".join(lines) + "\n"


def _arguments(text: str) -> str:
    """The text in one word: RunPod's interface breaks quotes and newlines (SkyPilot found that)."""
    packed = base64.b64encode(text.encode()).decode()
    return f"bash -c 'echo {packed} | base64 -d > {_START}; bash {_START}'"


def _volume(job: EngineJob) -> str:
    """The network volume: it brings the files and keeps the checkpoints."""
    assert job.checkpoint_uri is not None  # else refused
    return job.checkpoint_uri.removeprefix("volume:")

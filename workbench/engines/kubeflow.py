"""A job as a Kubeflow TrainJob (v1alpha1), with its files in a config map.

Fields: the custom resource as of Kubeflow Trainer 2.3 (tests/engines/test_kubeflow.py gives each
file to kubeflow_trainer_api 2.3.0). The version says alpha: expect change.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from workbench.describe.accelerators import find
from workbench.describe.amd import VENDOR as AMD
from workbench.engines.job import CHECKPOINTS, EngineJob
from workbench.engines.launching import LAUNCH, literal, setup_lines
from workbench.engines.skypilot import Made
from workbench.errors import UsageError
from workbench.trainer_configs.yaml_text import yaml_text

FILE, MAP = "trainjob.yaml", "files.yaml"
RUNTIME = "torch-distributed"
"""ClusterTrainingRuntime that the Trainer's own manifests install."""
_AT, _WORK = "/workbench-files", "/tmp/workbench"  # noqa: S108  (inside the pod)
_MOST_BYTES = 1_000_000  # of a config map, with room for its own fields


def trainjob_files(job: EngineJob, name: str, files: Mapping[str, str]) -> Made:
    """Config map and job, what to type, what to know.

    `files`: name -> text; bytes that are not UTF-8 are escaped as ``surrogateescape`` has it.
    """
    size = sum(len(text.encode(errors="surrogateescape")) for text in files.values())
    if size > _MOST_BYTES:
        raise UsageError(
            f"The script's files have {size:,} bytes; a config map holds {_MOST_BYTES:,}. Build "
            "them into an image and give --image."
        )
    keys = {f"f{number}": path for number, path in enumerate(files)}
    data, binary = _contents({key: files[path] for key, path in keys.items()})
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-files"},
        "data": data,
        **({"binaryData": binary} if binary else {}),
    }
    comments = (f"{job.name}: {job.nodes} x {job.processes_per_node} ranks",)
    made = {
        FILE: yaml_text(trainjob(job, name, keys), comments),
        MAP: yaml_text(config, (f"launch.sh and what it starts, for {FILE}",)),
    }
    literals = " ".join(f"--from-literal={secret}=…" for secret in job.secrets)
    secrets = (f"kubectl create secret generic {name}-secrets {literals}",) if literals else ()
    next_ = (
        *secrets,
        f"kubectl apply --server-side -f {MAP} -f {FILE}",  # client-side: 262,144 bytes at most
        f"kubectl get trainjob {name}",
        f"kubectl logs -l jobset.sigs.k8s.io/jobset-name={name} -f",
    )
    return made, next_, tuple(_notes(job))


def _contents(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """A config map's texts, and in base 64 what is not in UTF-8: a script may name another one."""
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    for key, text in texts.items():
        if not re.search("[\udc80-\udcff]", text):
            data[key] = text
        else:
            binary[key] = base64.b64encode(text.encode(errors="surrogateescape")).decode()
    return data, binary


def trainjob(job: EngineJob, name: str, keys: Mapping[str, str]) -> dict[str, Any]:
    """The resource; `keys` of the config map -> where the file goes."""
    spec: dict[str, Any] = {
        "runtimeRef": {
            "name": RUNTIME,
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
        },
        "trainer": _trainer(job, name),
        "runtimePatches": [_patch(job, name, keys)],
    }
    if job.max_hours is not None:
        spec["activeDeadlineSeconds"] = max(1, round(3600 * job.max_hours))
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def _trainer(job: EngineJob, name: str) -> dict[str, Any]:
    lines = [
        f"cp -rL {_AT}/. {_WORK}/ && cd {_WORK}",
        *map(literal, setup_lines(job, torch=False)),  # the runtime's image has torch
        "export NODE_RANK=$PET_NODE_RANK MASTER_ADDR=$PET_MASTER_ADDR MASTER_PORT=$PET_MASTER_PORT",
        f"exec bash {LAUNCH}",
    ]
    fields: dict[str, Any] = {"numNodes": job.nodes, "numProcPerNode": job.processes_per_node}
    fields |= {"image": job.image} if job.image else {}
    fields["command"] = ["bash", "-c"]
    fields["args"] = ["\n".join([f"set -e; mkdir -p {_WORK}", *lines]) + "\n"]
    if job.gpu is not None:
        plugin = f"{find(job.gpu).vendor.lower()}.com/gpu"
        fields["resourcesPerNode"] = {"limits": {plugin: str(job.processes_per_node)}}
    variables: list[dict[str, Any]] = [
        {"name": key, "value": literal(value)} for key, value in job.environment.items()
    ]
    variables += [
        {"name": secret, "valueFrom": {"secretKeyRef": {"name": f"{name}-secrets", "key": secret}}}
        for secret in job.secrets
    ]
    return fields | ({"env": variables} if variables else {})


def _patch(job: EngineJob, name: str, keys: Mapping[str, str]) -> dict[str, Any]:
    """Mounts the files and the claim in the pods of the runtime's job ``node``."""
    items = [{"key": key, "path": path} for key, path in keys.items()]
    volumes: list[dict[str, Any]] = [
        {"name": "files", "configMap": {"name": f"{name}-files", "items": items}}
    ]
    mounts = [{"name": "files", "mountPath": _AT}]
    # A pod's own 64 MB of shared memory are too few for NCCL and for loader workers.
    volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    where = job.checkpoint_uri
    if where is not None:
        claim = {"claimName": where.removeprefix("pvc:")}
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": claim})
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINTS})
    pod = {"volumes": volumes, "containers": [{"name": "node", "volumeMounts": mounts}]}
    inner: dict[str, Any] = {"spec": {"template": {"spec": pod}}}
    jobs = [{"name": "node", "template": inner}]
    return {
        "manager": "workbench.export/user",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
    }


def _notes(job: EngineJob) -> list[str]:
    notes = [f"The cluster needs Kubeflow Trainer 2 with the runtime {RUNTIME}."]
    if job.restarts:
        notes.append(
            "Restarts are the runtime's: backoffLimit of its job, failurePolicy of the set."
        )
    if job.gpu is not None and find(job.gpu).vendor == AMD and not job.image:
        notes.append(
            f"The image of {RUNTIME} has PyTorch for CUDA, and {job.gpu} needs ROCm. Give one that "
            "has it: --image rocm/pytorch:latest, or better one of its dated tags."
        )
    if job.gpu is not None:
        notes.append(f"Add a nodeSelector for {job.gpu}; label names depend on your cluster.")
    return notes

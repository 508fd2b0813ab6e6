"""What an engine has no words for: fields of a `EngineJob` that its files could not carry."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.engines.job import EngineJob

_PLAIN = {
    "max_hours": "Plain commands do not have a time limit.",
    "max_usd_per_hour": "Plain commands do not have prices.",
    "idle_minutes": "Plain commands do not release machines.",
    "restarts": "Plain commands do not restart.",
    "image": "Plain commands do not start containers.",
    "region": "Plain commands run on machines that you have.",
    "disk_gb": "Plain commands run on machines that you have.",
}
ABSENT: Mapping[str, Mapping[str, str]] = {
    "torchrun": _PLAIN,
    "accelerate": _PLAIN,
    "slurm": {
        "max_usd_per_hour": "Slurm does not know prices.",
        "idle_minutes": "Slurm does not release machines: they exist anyway.",
        "image": "Slurm itself does not start containers.",
        "region": "Slurm's nodes have a fixed location.",
        "disk_gb": "Slurm's nodes have fixed disks.",
    },
    "kubeflow": {
        "max_usd_per_hour": "Kubeflow does not know prices.",
        "idle_minutes": "Kubeflow does not release machines: they exist anyway.",
        "region": "A cluster's nodes have a fixed location.",
        "disk_gb": "A cluster's nodes have fixed disks.",
    },
    "runpod": {
        "max_usd_per_hour": "A RunPod cluster does not have a cost limit.",
        "idle_minutes": "A RunPod cluster runs until it is deleted.",
        "restarts": "A RunPod cluster starts the training once.",
    },
}
"""Engine -> field of `EngineJob` -> why it has no such thing."""


def options_without_effect(job: EngineJob, engine: str) -> dict[str, str]:
    """Of these fields the ones that the job sets -> the reason."""
    absent = ABSENT.get(engine, {})
    return {name: why for name, why in absent.items() if getattr(job, name) not in {None, 0}}

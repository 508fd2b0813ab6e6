"""What an engine has no words for: fields of a `Job` that its files could not carry."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.engines.job import Job

_PLAIN = {
    "max_hours": "Plain commands have no time limit.",
    "max_usd_per_hour": "Plain commands know no prices.",
    "idle_minutes": "Plain commands give no machines back.",
    "restarts": "Plain commands are not started again.",
    "image": "Plain commands start no container.",
    "region": "Plain commands run on machines that you have.",
    "disk_gb": "Plain commands run on machines that you have.",
}
ABSENT: Mapping[str, Mapping[str, str]] = {
    "torchrun": _PLAIN,
    "accelerate": _PLAIN,
    "slurm": {
        "max_usd_per_hour": "Slurm knows no prices.",
        "idle_minutes": "Slurm gives no machines back: they are there anyway.",
        "image": "Slurm itself starts no container.",
        "region": "Slurm's nodes are where they are.",
        "disk_gb": "Slurm's nodes have the disks that they have.",
    },
    "kubeflow": {
        "max_usd_per_hour": "Kubeflow knows no prices.",
        "idle_minutes": "Kubeflow gives no machines back: they are there anyway.",
        "region": "A cluster's nodes are where they are.",
        "disk_gb": "A cluster's nodes have the disks that they have.",
    },
    "runpod": {
        "max_usd_per_hour": "A RunPod cluster has no limit of dollars.",
        "idle_minutes": "A RunPod cluster runs until it is deleted.",
        "restarts": "A RunPod cluster starts the training once.",
    },
}
"""Engine -> field of `Job` -> why it has no such thing."""


def given_in_vain(job: Job, engine: str) -> dict[str, str]:
    """Of these fields the ones that the job sets -> the reason."""
    absent = ABSENT.get(engine, {})
    return {name: why for name, why in absent.items() if getattr(job, name) not in {None, 0}}

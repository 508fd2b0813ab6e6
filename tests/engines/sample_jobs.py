"""Jobs of several kinds that every engine's own library is shown."""

from __future__ import annotations

from workbench.engines.job import EngineJob
from workbench.engines.jobs import job_from_request

STEPS = ("--steps", "1000", "--size", "12")


def job(script: str = "gpt", **given: object) -> EngineJob:
    """A job of a recipe with the usual arguments."""
    return job_from_request(script, STEPS, **given)


def rented(storage: str, joined: str = "nebius") -> dict[str, EngineJob]:
    """Jobs for engines that rent: one machine, spot, several machines, CPU, everything at once.

    `joined`: where two machines are asked for.
    """
    saved = {"checkpoint_uri": storage, "checkpoint_every": 100}
    eight = {"processes_per_node": 8, "gpu": "h100"}
    return {
        "one machine": job(processes_per_node=8, gpu="a100-sxm-80", strategy="fsdp"),
        "one GPU": job(gpu="l4"),
        "spot": job(**eight, strategy="fsdp", spot=True, restarts=3, provider="aws", **saved),
        "two machines": job(**eight, nodes=2, strategy="hsdp", provider=joined, **saved),
        "own image": job(
            **eight, image="pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel", strategy="ddp"
        ),
        "CPU": job(processes_per_node=4, strategy="ddp"),
        "everything": job(
            **eight,
            nodes=4,
            strategy="fsdp16-tp2",
            name='Everything: "at" once!',
            spot=True,
            provider="gcp",
            region="us-central1",
            max_hours=12.5,
            max_usd_per_hour=90.0,
            max_usd=500.0,
            max_kwh=20.0,
            idle_minutes=15,
            disk_gb=500,
            restarts=2,
            environment={"NCCL_DEBUG": "INFO", "NOTE": "it's 1: two\nlines"},
            secrets=("WANDB_API_KEY", "HF_TOKEN"),
            setup=("apt-get install -y iproute2",),
            **saved,
        ),
    }

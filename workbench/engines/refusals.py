"""What each engine refuses: which providers it rents at, on how many machines, on spot, and why.

The table (data/providers.csv) was read from the engines' own code; tests/engines asks that code
again. A cell holds the reason; an empty one means that the engine does it.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.describe.accelerators import STARTABLE, lookup
from workbench.describe.amd import VENDOR as AMD
from workbench.describe.prices import ALIASES
from workbench.engines.gpu_names import gpu_name, known_gpus
from workbench.engines.job import NODES, EngineJob
from workbench.engines.limits import ABSENT, options_without_effect
from workbench.errors import UnknownNameError

ENGINES = ("torchrun", "accelerate", "slurm", "skypilot", "dstack", "kubeflow", "runpod")
"""What a job can be exported to."""
RENTING = ("skypilot", "dstack", "runpod")
"""Those of them that rent the machines."""
_DATA = Path(__file__).parent / "data"
_TITLES = {"skypilot": "SkyPilot", "dstack": "dstack", "runpod": "A RunPod Instant Cluster"}
CLUSTER_NODES, CLUSTER_GPUS = (2, 8), (16, 64)
"""RunPod Instant Clusters: machines and GPUs, runpod/docs@a900806 instant-clusters.mdx, 2026-08."""
BUCKETS = ("s3", "gs", "r2", "nebius", "oci", "cos", "https")
"""Schemes that SkyPilot mounts."""
_STORAGE = {
    "skypilot": (("bucket", "volume"), "SkyPilot mounts buckets and volumes"),
    "dstack": (("volume",), "dstack mounts its own volumes"),
    "runpod": (
        ("volume",),
        "A RunPod cluster gets its files from a network volume and saves to it",
    ),
    "kubeflow": (("claim",), "Kubernetes mounts claims"),
    "slurm": (("path",), "Slurm's nodes share a file system"),
    "torchrun": (("path",), "Machines of your own share a file system"),
    "accelerate": (("path",), "Machines of your own share a file system"),
}
_WRITTEN = {
    "bucket": "s3://bucket/path (gs://, r2:// …)",
    "volume": "volume:NAME",
    "claim": "pvc:NAME (a PersistentVolumeClaim, ReadWriteMany for several nodes)",
    "path": "/shared/path",
}
CLUSTER_FAMILIES = ("a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm")
"""Accelerators of Instant Clusters, of the same page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An engine at a provider; each of the five abilities is empty or the reason against it."""

    engine: str
    """One of `RENTING`."""
    provider: str
    """Our short name."""
    name: str
    """The engine's name of the provider."""
    nodes: str
    """Several machines that reach each other."""
    spot: str
    """Machines that may be taken back."""
    image: str
    """A container image."""
    bucket: str
    """Storage that outlives the machines, mounted: SkyPilot buckets, dstack volumes."""
    idle: str
    """Idle machines are given back."""
    source: str
    """Where that was read."""
    date: str
    """When."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that the engine does not do, and what would work."""

    what: str
    """What was asked for: provider, nodes, spot, gpu, storage, image, limit."""
    reason: str
    """One sentence."""
    instead: str
    """What to do, one sentence."""

    @property
    def sentence(self) -> str:
        """Both."""
        return f"{self.reason} {self.instead}"


@functools.cache
def places() -> tuple[Place, ...]:
    """The whole table."""
    with (_DATA / "providers.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Place(**row) for row in csv.DictReader(file))


def place(engine: str, provider: str) -> Place | None:
    """The engine at that provider; None where it does not rent."""
    short = ALIASES.get(provider.strip().lower(), provider.strip().lower())
    matches = (place for place in places() if place.engine == engine and place.provider == short)
    return next(matches, None)


def able(engine: str, *, nodes: int = NODES, spot: bool = False, bucket: bool = False) -> list[str]:
    """Providers at which the engine does all of this.

    >>> able("skypilot", nodes=2, spot=True)
    ['aws', 'azure', 'gcp', 'mithril', 'nebius', 'oci']
    """
    return sorted(
        place.provider
        for place in places()
        if place.engine == engine
        and not (nodes > 1 and place.nodes)
        and not (spot and place.spot)
        and not (bucket and place.bucket)
    )


def starters(provider: str, *, nodes: int = NODES, spot: bool = False) -> dict[str, str]:
    """Each renting engine -> why it does not start such machines there; "" = it does."""
    reasons: dict[str, str] = {}
    for engine in RENTING:
        rented_place = place(engine, provider)
        if rented_place is None:
            reasons[engine] = f"it does not support {provider}"
        elif engine == "runpod" and not CLUSTER_NODES[0] <= nodes <= CLUSTER_NODES[1]:
            reasons[engine] = f"a cluster has {CLUSTER_NODES[0]} to {CLUSTER_NODES[1]} machines"
        else:
            reasons[engine] = (rented_place.nodes if nodes > 1 else "") or (
                rented_place.spot if spot else ""
            )
    return reasons


def refusals(job: EngineJob, engine: str) -> tuple[Refusal, ...]:
    """Everything about `job` that the engine would not do, worst first.

    Raises:
        UnknownNameError: no such engine.
    """
    if engine not in ENGINES:
        raise UnknownNameError.near("engine", str(engine), ENGINES)
    reasons = list(_unstartable(job))
    if engine in RENTING:
        reasons += _rented(job, engine)
        reasons += _unnamed_gpu(job, engine)
    if engine == "runpod":
        reasons += _cluster(job)
    if engine not in RENTING:
        reasons += _not_rented(job, engine)
    for name, why in options_without_effect(job, engine).items():
        subject = "image" if name == "image" else "limit"
        reasons.append(Refusal(subject, why, f"Leave --{name.replace('_', '-')} out."))
    return (*reasons, *_stored(job, engine))


def _unstartable(job: EngineJob) -> Iterator[Refusal]:
    """A part that the launcher starts no ranks on, or whose power nothing there reads."""
    gpu = None if job.gpu is None else lookup(job.gpu)
    if gpu is None:
        return
    if gpu.vendor not in STARTABLE:
        reason = f"{gpu.name}: the launcher starts ranks on {' or '.join(STARTABLE)} only."
        yield Refusal("gpu", reason, "Give one of those as --gpu: workbench gpus lists them.")
    if gpu.vendor == AMD and job.max_kwh is not None:
        reason = f"--max-kwh counts what nvidia-smi reads; it does not read {gpu.name}."
        yield Refusal("limit", reason, "Leave --max-kwh out; --max-hours limits the time.")


def _rented(job: EngineJob, engine: str) -> list[Refusal]:
    provider = job.provider or ("runpod" if engine == "runpod" else None)  # its only one
    if provider is None:
        return []
    title, rented_place = _TITLES[engine], place(engine, provider)
    if rented_place is None:
        names = ", ".join(place.provider for place in places() if place.engine == engine)
        return [
            Refusal("provider", f"{title} does not support {provider}.", f"Supported: {names}.")
        ]
    absent = ABSENT.get(engine, {})
    reasons = {
        "nodes": rented_place.nodes if job.nodes > 1 else "",
        "spot": rented_place.spot if job.spot else "",
        "storage": rented_place.bucket if _wants_mount(job, engine) else "",
        "image": rented_place.image if job.image else "",
        "limit": rented_place.idle if job.idle_minutes and "idle_minutes" not in absent else "",
    }
    return [
        Refusal(subject, f"{title} at {provider}: {reason}.", _instead(job, engine, subject))
        for subject, reason in reasons.items()
        if reason
    ]


def _wants_mount(job: EngineJob, engine: str) -> bool:
    """Whether storage is asked for that the table's column is about."""
    where = job.checkpoint_uri or ""
    return "://" in where if engine == "skypilot" else where.startswith("volume:")


def _instead(job: EngineJob, engine: str, subject: str) -> str:
    nodes, spot = job.nodes if subject in {"nodes", "spot"} else 1, job.spot
    bucket = subject == "storage" or _wants_mount(job, engine)
    providers = able(engine, nodes=nodes, spot=spot, bucket=bucket)
    if subject in {"image", "limit"}:
        return f"Leave {'--image' if subject == 'image' else '--idle-minutes'} out."
    if subject == "spot" and engine == "runpod":
        return "Remove --spot, or use --to skypilot."
    kind = f"{nodes} {'spot ' if spot else ''}machines" if nodes > 1 else "that"
    alternatives = (
        f"For {kind} it supports: {', '.join(providers)}."
        if providers
        else ("No provider offers that.")
    )
    if subject == "nodes" and job.provider == "runpod" and engine == "skypilot" and not spot:
        return f"Use --to runpod (Instant Cluster). {alternatives}"
    if subject == "storage" and engine == "skypilot":
        return f"Give a volume made there as --checkpoints volume:NAME. {alternatives}"
    return alternatives


def _unnamed_gpu(job: EngineJob, engine: str) -> list[Refusal]:
    if job.gpu is None:
        if engine == "runpod":
            return [Refusal("gpu", "A RunPod cluster has GPUs.", "Give --gpu h100-sxm.")]
        return []
    if gpu_name(engine, job.gpu, job.provider) is not None:
        return []
    where = f"{engine} for {job.provider}" if job.provider else engine
    gpus = ", ".join(known_gpus(engine, job.provider))
    return [Refusal("gpu", f"The name of {job.gpu} at {where} is unknown.", f"Known: {gpus}.")]


def _cluster(job: EngineJob) -> list[Refusal]:
    reasons: list[Refusal] = []
    (least, most), (fewest, largest) = CLUSTER_NODES, CLUSTER_GPUS
    gpus = job.world_size
    if not least <= job.nodes <= most or not fewest <= gpus <= largest:
        reason = (
            f"A RunPod Instant Cluster has {least} to {most} machines and {fewest} to {largest} "
            f"GPUs, not {job.nodes} with {gpus}."
        )
        reasons.append(Refusal("nodes", reason, "One machine there: --to skypilot or --to dstack."))
    if job.gpu is not None and not job.gpu.startswith(CLUSTER_FAMILIES):
        reason = f"RunPod Instant Clusters do not offer {job.gpu}."
        reasons.append(Refusal("gpu", reason, f"They offer: {', '.join(CLUSTER_FAMILIES)}."))
    return reasons


def _not_rented(job: EngineJob, engine: str) -> list[Refusal]:
    reasons: list[Refusal] = []
    if job.provider is not None and not (engine == "kubeflow" and job.provider == "kubernetes"):
        reason = f"{engine} does not rent machines: it runs on your own."
        remedy = (
            f"Remove --provider {job.provider}; where a plan names it, use --to skypilot or "
            "dstack, or plan for your machines: workbench plan --gpu G --gpus N."
        )
        reasons.append(Refusal("provider", reason, remedy))
    if job.spot and engine in {"torchrun", "accelerate"}:
        reason = "Plain commands do not restart after a spot interruption."
        reasons.append(Refusal("spot", reason, "Use --to skypilot, dstack or slurm."))
    if job.spot and engine == "kubeflow":
        reason = "A TrainJob cannot ask for spot: the cluster's node pools decide that."
        reasons.append(Refusal("spot", reason, "Remove --spot and give --restarts."))
    return reasons


def _stored(job: EngineJob, engine: str) -> list[Refusal]:
    """Storage of another kind than the engine mounts, or none where it must be."""
    kinds, sentence = _STORAGE[engine]
    ways = f"Give --checkpoints {' or '.join(_WRITTEN[kind] for kind in kinds)}."
    where = job.checkpoint_uri
    if where is not None:
        is_mountable = storage_kind(where) in kinds
        return [] if is_mountable else [Refusal("storage", f"{sentence}, not {where}.", ways)]
    if job.spot:
        reason = (
            "Spot machines lose their disks when interrupted: all steps would be lost each time."
        )
        return [Refusal("storage", reason, ways)]
    return [Refusal("storage", f"{sentence}.", ways)] if engine == "runpod" else []


def storage_kind(where: str) -> str | None:
    """What a job's storage is: bucket, volume, claim or path; None = nothing that is known.

    >>> storage_kind("s3://a/b"), storage_kind("pvc:a"), storage_kind("/a"), storage_kind("a")
    ('bucket', 'claim', 'path', None)
    """
    if where.partition("://")[0] in BUCKETS and "://" in where:
        return "bucket"
    for start, kind in (("volume:", "volume"), ("pvc:", "claim"), ("/", "path")):
        if where.startswith(start) and len(where) > len(start):
            return kind
    return None

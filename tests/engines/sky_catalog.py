"""Our price table as SkyPilot's catalog, and the questions that both searches answer.

Left out are providers whose catalog code asks the provider itself (aws, gcp, azure); of the others
every offer is one row.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.engines.sample_jobs import job
from workbench.describe import prices
from workbench.describe.price import Offer
from workbench.engines.exporting import export
from workbench.engines.gpu_names import gpu_name
from workbench.engines.refusals import place, starters

PROVIDERS = ("lambda", "runpod", "cudo", "nebius", "vastai", "digitalocean")
COLUMNS = (
    *("InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "GpuInfo"),
    *("Price", "SpotPrice", "Region"),
)
OPTIMIZE = """
import sky
from unittest import mock
from sky.optimizer import Optimizer
from sky.utils.registry import CLOUD_REGISTRY
answers = []
for one in asked:
    clouds = [CLOUD_REGISTRY.from_str(name) for name in one["clouds"]]
    with mock.patch("sky.check.get_cached_enabled_clouds_or_refresh", lambda *a, **k: clouds):
        task = sky.Task.from_yaml_config(one["task"])
        with sky.Dag() as dag:
            dag.add(task)
        Optimizer.optimize(dag, minimize=sky.OptimizeTarget.COST, quiet=True)
    best = task.best_resources
    answers.append({"cloud": str(best.cloud), "usd_per_hour": best.get_cost(3600) * task.num_nodes})
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class Question:
    """Which machines are cheapest per hour for this job?"""

    name: str
    gpu: str
    gpus: int
    nodes: int = 1
    spot: bool = False
    outcome: str = "agrees"
    """agrees, refused (the cheapest is one that SkyPilot does not start), renamed (the name is also
    another card's) or named (the cheapest has another name there)."""
    joined: bool = True
    """Whether what SkyPilot takes is known to have a fabric: our planner takes nothing else."""

    @property
    def asked(self) -> dict[str, Any]:
        """Our export of the job, and where SkyPilot may look."""
        wish = job(
            gpu=self.gpu,
            processes_per_node=self.gpus,
            nodes=self.nodes,
            strategy="fsdp" if self.gpus * self.nodes > 1 else "single",
            spot=self.spot,
            checkpoint_uri="volume:ours" if self.spot else None,
            checkpoint_every=100,
        )
        task = yaml.safe_load(export(wish, "skypilot").files["skypilot.yaml"])
        task.pop("volumes", None)  # the search is about machines; no volume exists here
        task["resources"].pop("disk_size")
        return {"task": task, "clouds": [cloud_name(one) for one in PROVIDERS]}

    def price(self, offer: Offer) -> float:
        """Of all machines and an hour."""
        price = offer.spot_usd_per_hour if self.spot else offer.usd_per_hour
        assert price is not None
        return price * self.nodes


QUESTIONS = (
    Question("8 x A100 80 GB", "a100-sxm-80", 8, outcome="renamed"),
    Question("8 x H200", "h200-sxm", 8, outcome="named"),
    Question("1 x H100", "h100-sxm", 1),
    Question("2 x 8 x B200", "b200-sxm", 8, nodes=2, joined=False),
    Question("2 x 8 x H100", "h100-sxm", 8, nodes=2, joined=False),
    Question("2 x 8 x H200", "h200-sxm", 8, nodes=2, outcome="refused"),
    Question("8 x H100 spot", "h100-sxm", 8, spot=True),
    Question("2 x 8 x H200 spot", "h200-sxm", 8, nodes=2, spot=True),
)


def cloud_name(provider: str) -> str:
    """SkyPilot's name of a provider."""
    found = place("skypilot", provider)
    assert found is not None
    return found.name


def offers() -> list[Offer]:
    """Those of the embedded table that have a price and a name of SkyPilot's."""
    return [
        one
        for one in prices.offers(providers=PROVIDERS, live=False, own=False)
        if gpu_name("skypilot", one.gpu, one.provider)
        and (one.usd_per_hour or one.spot_usd_per_hour)
    ]


def write(folder: Path) -> None:
    """Write them as SkyPilot's catalogs."""
    every = offers()
    _common(folder / "common", every)
    for provider in PROVIDERS:
        target = folder / cloud_name(provider) / "vms.csv"
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            found = [one for one in every if one.provider == provider]
            writer.writerows(_row(one, number) for number, one in enumerate(found))
    return offers


def _common(folder: Path, every: list[Offer]) -> None:
    """The list of accelerators by name that SkyPilot downloads before anything else."""
    at: dict[str, set[str]] = {}
    for one in every:
        name = gpu_name("skypilot", one.gpu, one.provider)
        assert name is not None
        at.setdefault(name, set()).add(cloud_name(one.provider))
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f'{name},"{sorted(clouds)}"' for name, clouds in at.items()]
    (folder / "accelerators.csv").write_text("\n".join(["AcceleratorName,Clouds", *rows]) + "\n")
    (folder / "metadata.csv").write_text("GPU,MemoryGB,Manufacturer\n")


def _row(offer: Offer, number: int) -> dict[str, Any]:
    name = gpu_name("skypilot", offer.gpu, offer.provider)
    return {
        "InstanceType": f"offer-{number}",
        "vCPUs": offer.cpu_cores or 8 * offer.gpus,
        "MemoryGiB": 64 * offer.gpus,
        "AcceleratorName": name,
        "AcceleratorCount": offer.gpus,
        "GpuInfo": f"{{'Gpus': [{{'Name': '{name}', 'Manufacturer': 'NVIDIA', 'Count': {offer.gpus}.0, 'MemoryInfo': {{'SizeInMiB': 81920}}}}], 'TotalGpuMemoryInMiB': 81920}}",
        "Price": offer.usd_per_hour or "",
        "SpotPrice": offer.spot_usd_per_hour or "",
        "Region": offer.region or "anywhere",
    }


def cheapest(every: list[Offer], asked: Question, *, startable: bool = False) -> Offer:
    """Lowest price per hour; `startable`: of what SkyPilot starts, under its name of the GPU."""
    name = gpu_name("skypilot", asked.gpu)

    def fits(one: Offer) -> bool:
        if one.gpus != asked.gpus:
            return False
        if (one.spot_usd_per_hour if asked.spot else one.usd_per_hour) is None:
            return False
        if not startable:
            return one.gpu == asked.gpu
        why = starters(one.provider, nodes=asked.nodes, spot=asked.spot)["skypilot"]
        return gpu_name("skypilot", one.gpu, one.provider) == name and not why

    return min(filter(fits, every), key=asked.price)

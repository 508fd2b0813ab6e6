"""gpuhunt's items as offers: one per machine and region, form factor and spot price put right.

The library drops the form factor ("H100" is SXM, PCIe or half of an NVL pair); it is read from the
provider's own name of the machine, or known for it (data/providers.csv). Where neither says, the
slower form is taken and the offer is marked.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from typing import Any

from workbench.describe.accelerators import Accelerator, accelerators, find, lookup
from workbench.describe.price import Offer
from workbench.describe.price_files import fabric, gpu_of
from workbench.units import GIB

# gpuhunt's spellings that the catalog's own rules would miss, or take for a relative.
NAMES = {
    "h100nvl": "h100-nvl",
    "h200nvl": "h200-nvl",
    "rtx6000": "rtx-6000-turing",
    "rtxpro6000": "rtx-pro-6000",
    "v4": "tpu-v4",
    "v5litepod": "tpu-v5e",
    "v5p": "tpu-v5p",
    "v6e": "tpu-v6e",
}
MAKERS = ("NVIDIA ", "Tesla ", "Quadro ", "AMD ")
TOLERANCE = 0.15  # of the memory: catalogs round (B300 270 or 288 GB); a half is a slice
RENTABLE = frozenset({"vastai", "lium"})  # list only what can be rented now


def offers_of(
    provider: str, items: Iterable[dict[str, Any]], *, date: str, source: str
) -> tuple[Offer, ...]:
    """Offers of `provider` from gpuhunt's items.

    Items whose accelerator the catalog does not know, slices of a GPU, and prices that are not a
    price are left out.
    """
    machines: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for item in items:
        if _is_price(item["price"]) and item["gpu_count"]:
            cluster = _pods(item) is not None
            key = (item["instance_name"], item["location"], item["gpu_count"], cluster)
            machines.setdefault((*key, item["gpu_name"], item["gpu_memory"]), []).append(item)
    offers = (_offer(provider, group, date, source) for group in machines.values())
    return tuple(offer for offer in offers if offer is not None)


def _is_price(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and 0 < value < 1e6


def _pods(item: dict[str, Any]) -> int | None:
    """Most machines of a RunPod cluster; None for single machines."""
    counts: list[int] = item["provider_data"].get("pod_counts", [])
    return max(counts, default=None)


def _offer(provider: str, group: list[dict[str, Any]], date: str, source: str) -> Offer | None:
    item = group[0]
    identified = recognised(provider, item["instance_name"], item["gpu_name"], item["gpu_memory"])
    if identified is None:
        return None
    gpu, certain = identified
    pods = _pods(item)
    name = f"Instant Cluster {item['gpu_name']}" if pods else item["instance_name"]
    network, nodes = fabric(provider, name)
    prices = {
        spot: [row["price"] for row in group if row["spot"] is spot] for spot in (False, True)
    }
    return Offer(
        provider=provider,
        name=name,
        gpu=gpu,
        gpus=item["gpu_count"],
        usd_per_hour=min(prices[False], default=None),
        spot_usd_per_hour=min(prices[True], default=None),
        region=item["location"],
        max_nodes=pods or nodes,
        network=network,
        cpu_cores=int(item["cpu"]) or None,
        memory_bytes=int(item["memory"] * GIB) or None,
        disk_gb=item["disk_size"] or None,
        available=True if provider in RENTABLE else None,
        source=source,
        date=date,
        confidence="high",
        marks=() if certain else ("form unknown",),
    )


@functools.lru_cache(maxsize=8192)
def recognised(
    provider: str, instance: str, gpu_name: str | None, memory_gb: float | None
) -> tuple[str, bool] | None:
    """Accelerator id and whether the form factor is certain; None for unknown parts and slices.

    >>> recognised("runpod", "NVIDIA H100 80GB HBM3", "H100", 80), recognised("x", "a", "H100", 80)
    (('h100-sxm', True), ('h100-pcie', False))
    """
    override = gpu_of(provider, instance)
    if override is not None:
        return (override, True) if _fits(find(override), memory_gb) else None
    driver = lookup(instance) if instance.startswith(MAKERS) else None
    if driver is not None and _fits(driver, memory_gb):
        return driver.id, True
    family = [gpu for gpu in _family(gpu_name or "") if _fits(gpu, memory_gb)]
    forms = [gpu for gpu in family if _form(gpu) in _words(instance)] or family
    if not forms:
        return None
    return min(forms, key=_speed).id, len(forms) == 1


def _family(gpu_name: str) -> list[Accelerator]:
    """Every form of the part that gpuhunt calls `gpu_name`; an NVL pair has a name of its own."""
    catalog_name = NAMES.get(gpu_name.lower())
    if catalog_name is not None:
        return [find(catalog_name)]
    like = lookup(gpu_name) if gpu_name else None
    if like is None:
        return []
    return [
        gpu
        for gpu in accelerators()
        if _stem(gpu) == _stem(like) and not gpu.form_factor.endswith("NVL")
    ]


def _stem(gpu: Accelerator) -> str:
    return gpu.id if gpu.id.startswith(("rtx", "tpu")) else gpu.id.split("-")[0]


def _fits(gpu: Accelerator, memory_gb: float | None) -> bool:
    nominal = gpu.memory_bytes / GIB
    return not memory_gb or abs(memory_gb - nominal) <= TOLERANCE * nominal


def _form(gpu: Accelerator) -> str:
    return "sxm" if gpu.form_factor.startswith("SXM") else gpu.form_factor.lower()


def _words(instance: str) -> set[str]:
    """Form factors that a machine's name speaks of."""
    text = instance.lower()
    forms = {word for word in ("sxm", "pcie") if word in text}
    return forms | ({"sxm"} if re.search(r"hbm3|hgx", text) else set[str]())


def _speed(gpu: Accelerator) -> tuple[float, bool, float]:
    """Order of forms; on a PCIe card the bridge that its data sheet counts is usually absent."""
    rate = gpu.bf16_flops or gpu.fp16_flops or 0.0
    return rate, gpu.form_factor.startswith("SXM"), gpu.memory_bytes_per_second or 0.0

"""Where it runs: GPUs, the machines around them, their network, and what was measured on them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from workbench.describe.accelerators import Accelerator, find
from workbench.describe.checks import plain, require_choice
from workbench.describe.option import Option
from workbench.describe.option_limits import check_value
from workbench.describe.shown import changed_fields
from workbench.errors import UnknownNameError, UsageError
from workbench.units import GIB

MOST_GPUS, MOST_NODES = 128, 100_000  # beyond them a size is a typing mistake
SIZES = {
    "gpus": Option(
        help="GPUs per node [default: the strategy's, or 1].",
        least=1,
        most=MOST_GPUS,
        beyond="These are the GPUs of one node. 256 GPUs are --nodes 32 --gpus 8 "
        "(in Python nodes=32, gpus=8).",
    ),
    "nodes": Option(help="Equal machines.", least=1, most=MOST_NODES),
    "link": Option(
        help="Between a node's GPUs: catalog (its own), nvlink, pcie.",
        choices=("catalog", "nvlink", "pcie"),
    ),
}
"""What is declared of a cluster's size, in `Placement` too."""
NETWORK_KINDS = ("infiniband", "roce", "efa", "tcpx", "omni-path", "ethernet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Fabric between the nodes of a cluster. ``Network.parse("8x400 infiniband")`` builds one."""

    name: str
    """What people call it."""
    kind: str
    """One of `NETWORK_KINDS`; ethernet = TCP without RDMA."""
    bytes_per_second: float
    """What one node sends at most, one direction, all its ports together."""

    def __post_init__(self) -> None:
        require_choice("network kind", self.kind, NETWORK_KINDS)
        if not 0 < self.bytes_per_second < math.inf:
            raise UsageError(f"A network's rate must be above 0, not {self.bytes_per_second}.")

    @staticmethod
    def parse(text: str) -> Network:
        """Read a fabric as people write it: ports x Gbit/s per node, then the kind.

        Raises:
            UnknownNameError: no such kind, or no rate.

        >>> Network.parse("8x400 infiniband").bytes_per_second
        400000000000.0
        >>> Network.parse("100 ethernet").bytes_per_second
        12500000000.0
        """
        match = re.fullmatch(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*(?:gb\S*)?\s+(\S+)", text.lower())
        kinds = {"ib": "infiniband", "tcp": "ethernet", "opa": "omni-path"}
        kind = kinds.get(match[3], match[3]) if match else text
        if match is None or kind not in NETWORK_KINDS:
            raise UnknownNameError.near(
                "network", text, [f"8x400 {name}" for name in NETWORK_KINDS]
            )
        rate = float(match[2]) * 1e9 / 8 * int(match[1] or 1)
        return Network(name=text, kind=kind, bytes_per_second=rate)


_SLICE = "MIG-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator of this host, as the driver reports it."""

    __repr__ = changed_fields

    index: int
    """The driver's index (not renumbered by CUDA_VISIBLE_DEVICES)."""
    name: str
    """Product name."""
    memory_bytes: int
    """Usable memory."""
    power_limit_w: float | None = None
    """Enforced power limit; None when the driver does not say."""
    uuid: str | None = None
    """The driver's name of it that no reboot changes; None when it tells none."""

    @property
    def is_slice(self) -> bool:
        """Whether it is a part of a card (MIG)."""
        return (self.uuid or "").startswith(_SLICE)

    @property
    def device_name(self) -> str:
        """What ``--devices`` calls it, see `device_name`."""
        return device_name(self.index, self.uuid)


def device_name(index: int | None, uuid: str | None) -> str:
    """The name of a GPU as a device: a card's index; of a slice, which has no number, the UUID."""
    return uuid if uuid is not None and uuid.startswith(_SLICE) else str(index)


def with_parts(
    gpus: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Each GPU's index and part, 0 but of a card's second slice (MIG) and on, and its document.

    Slices of one card share the driver's index. A machine tells them in one order at all times, in
    what it has and in what it samples.
    """
    counts: dict[int, int] = {}
    for gpu in gpus:
        index = int(gpu["index"])
        counts[index] = counts.get(index, -1) + 1
        yield index, counts[index], gpu


def card_name(index: int, part: int | None) -> str:
    """``gpu0``; ``gpu0:1`` is the second of several slices of it, whose first has `part` 0."""
    return f"gpu{index}" if part is None else f"gpu{index}:{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Machines for a run. ``detect_host()`` describes this one."""

    __repr__ = changed_fields

    name: str
    """Host name or the offer's name."""
    gpus: tuple[Gpu, ...] = ()
    """GPUs of one node that a run may use; empty = CPU."""
    nodes: int = 1
    """Equal machines."""
    cpu_name: str | None = None
    """Processor; None when unknown."""
    cpu_cores: int | None = None
    """Cores this process may use on one node."""
    memory_bytes: int | None = None
    """Host memory of one node (the container's limit where there is one)."""
    usd_per_hour: float | None = None
    """Price of one node; None when unknown (then no cost is shown)."""
    accelerator: Accelerator | None = None
    """The catalog's row for `gpus`; None for CPU, mixed or unknown ones."""
    network: Network | None = None
    """Fabric between the nodes; None when unknown or when there is one node."""
    link: str = "catalog"
    """Between the GPUs of one node: catalog (the part's own; bridges count as absent), nvlink
    (a bridge is fitted, or the part's own fabric), pcie (no fabric, or it is switched off)."""

    @classmethod
    def rented(
        cls,
        gpu: str | Accelerator,
        gpus: int = 8,
        nodes: int = 1,
        *,
        usd_per_hour: float | None = None,
        network: Network | str | None = None,
        link: str = "catalog",
    ) -> Cluster:
        """Describe `nodes` machines with `gpus` accelerators each, as the catalog has them.

        Args:
            gpu: any usual name, see `catalog.gpu`.
            gpus: accelerators of one node.
            nodes: equal machines.
            usd_per_hour: price of one node; None when unknown.
            network: fabric between the nodes, or its text ("8x400 infiniband").
            link: between the GPUs of one node: catalog, nvlink or pcie.

        Raises:
            UsageError: an unknown accelerator, fabric or link, a size below 1 or absurd, a
                negative price.

        >>> Cluster.rented("h100-sxm", gpus=8, nodes=2, usd_per_hour=20.0).world_size
        16
        """
        accelerator = gpu if isinstance(gpu, Accelerator) else find(gpu)
        gpus, nodes = plain(gpus), plain(nodes)
        for name, value in (("gpus", gpus), ("nodes", nodes), ("link", link)):
            check_value(name, value, SIZES[name])
        devices = tuple(
            Gpu(
                index=index,
                name=accelerator.name,
                memory_bytes=accelerator.memory_bytes,
                power_limit_w=accelerator.tdp_w,
            )
            for index in range(gpus)
        )
        return cls(
            name=f"{nodes} x {gpus} {accelerator.id}" if nodes > 1 else f"{gpus} {accelerator.id}",
            gpus=devices,
            nodes=nodes,
            usd_per_hour=_price(usd_per_hour),
            accelerator=accelerator,
            network=Network.parse(network) if isinstance(network, str) else network,
            link=link,
        )

    @property
    def host_bytes_per_gpu(self) -> float:
        """Host memory that the rank of each GPU may use; needs GPUs.

        Where it is unknown, 1.9 times the smallest card's is assumed, up to 200 GiB: what the
        offers of 8 GPUs have at least, those of one provider apart (data/prices.csv).
        """
        if self.memory_bytes:
            return self.memory_bytes / len(self.gpus)
        return min(200 * GIB, 1.9 * min(gpu.memory_bytes for gpu in self.gpus))

    @property
    def world_size(self) -> int:
        """GPUs of all nodes; on CPU the number of nodes."""
        return max(1, len(self.gpus)) * self.nodes

    @property
    def device(self) -> str:
        """``cuda`` where there are GPUs, else ``cpu``."""
        return "cuda" if self.gpus else "cpu"


def _price(usd_per_hour: float | None) -> float | None:
    if usd_per_hour is None:
        return None
    number = isinstance(usd_per_hour, (int, float)) and not isinstance(usd_per_hour, bool)  # pyright: ignore[reportUnnecessaryIsInstance]  (callers are not type-checked)
    if not number or not 0 <= usd_per_hour < math.inf:
        raise UsageError(
            f"usd_per_hour must be a number from 0 (free) upwards, not {usd_per_hour!r}. "
            "Leave it out when the price is unknown."
        )
    return float(usd_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a step's time depends on besides workload, strategy and cluster.

    The defaults describe a healthy machine without measurements; a calibration replaces them and
    narrows the range of the estimate.
    """

    matmul_share: float | None = None
    """Large matmuls' measured rate over the catalog's dense peak; None = the usual one of the
    generation."""
    memory_share: float | None = None
    """Copy bandwidth over the catalog's; None = the usual one."""
    link_share: float | None = None
    """Collectives' bus bandwidth inside a node over the link's; None = the usual one."""
    network_share: float | None = None
    """The same between nodes; None = the usual one of the fabric's kind."""
    input_seconds: float = 0.0
    """Time the host takes to prepare one micro-batch; what the step does not hide is waited for."""
    straggler: float = 0.0
    """Share by which the slowest rank is slower than the others (0.05 = 5 %)."""
    measured_ratio: float | None = None
    """Measured over predicted step time of earlier runs like this one; None = none yet."""
    source: str = ""
    """Where measured values come from; empty = nothing was measured."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not 0 <= value < 1e6:
                raise UsageError(f"{field.name} must be 0 or above, not {value}.")
        for name in ("matmul_share", "memory_share", "link_share", "network_share"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1.5:
                raise UsageError(f"{name} is a share of the data sheet's rate, not {value}.")

    @property
    def is_measured(self) -> bool:
        """Whether anything was measured on the machine itself."""
        return bool(self.source)


def device_of(where: Cluster | str) -> str:
    """Cuda or cpu: of a cluster, or of the word that stands for one."""
    return where if isinstance(where, str) else where.device

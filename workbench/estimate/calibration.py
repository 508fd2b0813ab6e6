"""A calibration: what was measured on one host, kept as facts that estimates derive rates from.

`workbench.compare.calibration` measures it, `workbench.store.calibrations` stores it,
`predict_step` uses it. It is valid for that host alone; a rented cluster uses the catalog's rates.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from workbench.describe import Cluster, Conditions
from workbench.describe.accelerators import Accelerator, find
from workbench.errors import UnknownNameError
from workbench.estimate.calibration_rows import (
    Collective,
    MeasuredStep,
    Product,
    Rates,
    read_rows,
)

FORMAT = 1
_ROWS: Mapping[str, type[Any]] = {
    "products": Product,
    "rates": Rates,
    "collectives": Collective,
    "steps": MeasuredStep,
}
_NUMBERS = ("host_to_device", "device_to_host", "disk_write", "disk_read", "loader_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured on a host, by whom and when."""

    key: str
    """`store.calibrations.host_key` of the host."""
    host: str
    """Its name."""
    device: str
    """cpu or cuda."""
    cores: int
    """Cores that the probes could use."""
    measured_at: float
    """When it ended, seconds since 1970."""
    seconds: float
    """How long it took."""
    device_name: str | None = None
    """Processor or GPU as the host reports it; None when unknown."""
    gpu: str | None = None
    """Id of the GPU in the catalog; None for a CPU or a GPU that it does not have."""
    gpus: int = 0
    """GPUs that took part."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str], hash=False)
    """torch, python, driver, cuda, nccl: where they are known."""
    products: tuple[Product, ...] = ()
    """Matrix products and fused attention."""
    rates: tuple[Rates, ...] = ()
    """Memory bandwidth and launches, by the number of processes."""
    collectives: tuple[Collective, ...] = ()
    """Through torch.distributed."""
    steps: tuple[MeasuredStep, ...] = ()
    """Real steps of the embedded recipe's model."""
    host_to_device: float | None = None
    """Pinned memory to the card, bytes/s; None on a CPU."""
    device_to_host: float | None = None
    """The other way, bytes/s."""
    disk_write: float | None = None
    """To the store's disk, flushed, bytes/s; None when it could not be written."""
    disk_read: float | None = None
    """From there, the page cache dropped where the system allows it, bytes/s."""
    loader_tokens: float | None = None
    """Tokens per second that the recipe's batches are drawn at by one process."""
    slow_clock: float | None = None
    """GPU: lowest SM clock under load over the highest allowed one; None when unknown."""
    notes: tuple[str, ...] = ()
    """What was left out and why."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form; `read` is its inverse."""
        values: dict[str, Any] = dataclasses.asdict(self)
        for name in (*_ROWS, "notes"):
            values[name] = list(values[name])
        return {"format": FORMAT, **values}

    @property
    def date(self) -> str:
        """Day of the measurement in local time, 2026-11-22."""
        return time.strftime("%Y-%m-%d", time.localtime(self.measured_at))

    @property
    def source(self) -> str:
        """What estimates say of their rates."""
        return f"measured here on {self.date} (workbench calibrate)"

    @property
    def accelerator(self) -> Accelerator | None:
        """The catalog's row of the GPU; None for a CPU, or a GPU that it no longer has."""
        if self.gpu is None:
            return None
        try:
            return find(self.gpu)
        except UnknownNameError:
            return None

    def restricted(self, processes: Iterable[int]) -> Calibration:
        """The same without what was measured with other numbers of processes."""
        process_counts = set(processes)
        return dataclasses.replace(
            self,
            products=tuple(row for row in self.products if row.processes in process_counts),
            rates=tuple(row for row in self.rates if row.processes in process_counts),
            collectives=tuple(row for row in self.collectives if row.ranks in process_counts),
            steps=tuple(row for row in self.steps if row.processes in process_counts),
        )

    def fits(self, cluster: Cluster) -> bool:
        """Whether `cluster` is this hardware as a host reports it: a description of one never is.

        Names do not count: a container gets a new one at every start.
        """
        if cluster.nodes != 1 or cluster.cpu_cores != self.cores:
            return False
        if self.device == "cpu":
            return not cluster.gpus and self.device_name in {None, cluster.cpu_name}
        return cluster.accelerator is not None and cluster.accelerator.id == self.gpu

    def conditions(self) -> Conditions:
        """What `step_time` is to use instead of the usual shares; without effect for a CPU."""
        gpu = self.accelerator
        if gpu is None:
            return Conditions()
        return Conditions(
            matmul_share=_share(self.best_flops("bf16"), gpu.peak_flops("bf16"))
            or _share(self.best_flops("fp16"), gpu.peak_flops("fp16")),
            memory_share=_share(self.memory_bytes_per_second(1), gpu.memory_bytes_per_second),
            link_share=_share(self.bus_bytes_per_second(), link_rate(gpu)),
            source=self.source,
        )

    def best_flops(self, precision: str, processes: int = 1) -> float | None:
        """The fastest product's rate of one process; None when none was measured."""
        measured = [
            product.flops_per_second
            for product in self.products
            if (product.precision, product.processes) == (precision, processes)
        ]
        return max(measured, default=None)

    def memory_bytes_per_second(self, processes: int) -> float | None:
        """One process's copy bandwidth beside its fellows."""
        measured = [
            rate.memory_bytes_per_second for rate in self.rates if rate.processes == processes
        ]
        return statistics.median(measured) if measured else None

    def bus_bytes_per_second(
        self, kind: str = "all-reduce", ranks: int | None = None
    ) -> float | None:
        """Best bus bandwidth of a collective over `ranks`; None = over the most."""
        most = ranks or max((collective.ranks for collective in self.collectives), default=0)
        measured = [
            collective.bus_bytes_per_second
            for collective in self.collectives
            if (collective.kind, collective.ranks) == (kind, most)
        ]
        return max(measured, default=None)


def link_rate(gpu: Accelerator) -> float | None:
    """What joins two GPUs of a node by the catalog, one direction: the fabric, else PCIe."""
    fabric = gpu.has_link and "bridge" not in gpu.link
    return gpu.link_bytes_per_second if fabric else gpu.pcie_bytes_per_second


def _share(measured: float | None, peak: float | None) -> float | None:
    """Measured over the data sheet; None where either is unknown or they cannot belong together."""
    if not measured or not peak:
        return None
    share = measured / peak
    return share if 0 < share <= 1.5 else None


def read(document: Mapping[str, Any] | None) -> Calibration | None:
    """A calibration from anyone's file; what cannot be read is left out.

    None where there is no document, or it does not say which host it is of.
    """
    if document is None or document.get("format") != FORMAT:
        return None
    header = {name: document.get(name) for name in ("key", "host", "device")}
    texts = all(isinstance(value, str) and value for value in header.values())
    numbers = {name: _number(document.get(name)) for name in ("cores", "measured_at", "seconds")}
    if not texts or header["device"] not in {"cpu", "cuda"} or None in numbers.values():
        return None
    gpus = _number(document.get("gpus"))
    values: dict[str, Any] = {
        **header,
        **numbers,
        "cores": int(numbers["cores"] or 1),
        "device_name": _text(document.get("device_name")),
        "gpu": _text(document.get("gpu")),
        "gpus": int(gpus or 0),
        "versions": _texts(document.get("versions")),
        "notes": _notes(document.get("notes")),
        "slow_clock": _number(document.get("slow_clock")),
        **{name: read_rows(kind, document.get(name)) for name, kind in _ROWS.items()},
        **{name: _number(document.get(name)) or None for name in _NUMBERS},
    }
    return Calibration(**values)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 1e24 and math.isfinite(value) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    table = cast("Mapping[Any, Any]", value)
    return {str(name): text for name, text in table.items() if isinstance(text, str)}


def _notes(value: Any) -> tuple[str, ...]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))

"""A calibration beside what the catalog promises: line by line, and what is slow and why."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from workbench.describe import Cluster, Conditions
from workbench.describe.accelerators import Accelerator
from workbench.errors import UsageError
from workbench.estimate.calibration import Calibration
from workbench.estimate.network import links
from workbench.estimate.rates import machine
from workbench.units import format_seconds

SLOW = 0.8
"""Below this share of what is usual for the part, something is wrong with the machine."""
SLOW_CLOCK = 0.85
"""SM clock under load over the highest one; healthy parts at their power limit hold about 0.9."""
NOISY = 0.15
"""Median spread of the rounds from which on a host is not quiet."""
FLAT = 1.3
"""Total throughput of two processes over one's: cores are doubled, not shared, above this."""

ODD = 0.9
"""One process over each of two: below this they contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measured figure."""

    name: str
    """What was measured."""
    measured: float
    """In `unit`."""
    unit: str
    """FLOP/s, B/s, s or tokens/s."""
    expected: float | None = None
    """The usual figure of a healthy part, from the catalog; None where it has none (any CPU)."""

    @property
    def ratio(self) -> float | None:
        """Measured over expected."""
        return self.measured / self.expected if self.expected else None

    @property
    def is_slow(self) -> bool:
        """Whether it lies well below."""
        return self.ratio is not None and self.ratio < SLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that the figures say is wrong."""

    what: str
    """The finding, with its figures."""
    next: str
    """What to do."""


def lines(calibration: Calibration) -> tuple[Line, ...]:
    """The figures that people look at, beside the catalog's expectation."""
    gpu = calibration.accelerator
    result = [*_product_lines(calibration, gpu), *_memory_lines(calibration, gpu)]
    result += _collective_lines(calibration, gpu)
    transfer = gpu.pcie_bytes_per_second if gpu is not None else None
    usual = None if transfer is None else 0.8 * transfer
    for name, value, unit, expected in (
        ("host to device", calibration.host_to_device, "B/s", usual),
        ("device to host", calibration.device_to_host, "B/s", usual),
        ("disk, writing", calibration.disk_write, "B/s", None),
        ("disk, reading", calibration.disk_read, "B/s", None),
        ("loader", calibration.loader_tokens, "tokens/s", None),
    ):
        if value:
            result.append(Line(name=name, measured=value, unit=unit, expected=expected))
    return tuple(result)


def _product_lines(calibration: Calibration, gpu: Accelerator | None) -> list[Line]:
    result: list[Line] = []
    for processes in sorted({product.processes for product in calibration.products}):
        for precision in ("fp32", "tf32", "bf16", "fp16", "attention"):
            best = calibration.best_flops(precision, processes)
            if best is None:
                continue
            name = precision if precision == "attention" else f"matmul {precision}"
            suffix = f", each of {processes} processes" if processes > 1 else ""
            usual = _usual_flops(gpu, precision) if processes == 1 or gpu else None
            result.append(Line(name=name + suffix, measured=best, unit="FLOP/s", expected=usual))
    return result


def _usual_flops(gpu: Accelerator | None, precision: str) -> float | None:
    if gpu is None or precision not in {"fp32", "bf16", "fp16"}:
        return None
    try:
        return machine(gpu, precision, 2, Conditions()).matmul_flops
    except UsageError:
        return None


def _memory_lines(calibration: Calibration, gpu: Accelerator | None) -> list[Line]:
    result: list[Line] = []
    peak = None if gpu is None else gpu.memory_bytes_per_second
    for row in calibration.rates:
        suffix = f", each of {row.processes} processes" if row.processes > 1 else ""
        rate = row.memory_bytes_per_second
        usual = None if peak is None else 0.9 * peak
        result.append(Line(name=f"memory{suffix}", measured=rate, unit="B/s", expected=usual))
        result.append(Line(name=f"launch{suffix}", measured=row.launch_seconds, unit="s"))
    return result


def _collective_lines(calibration: Calibration, gpu: Accelerator | None) -> list[Line]:
    result: list[Line] = []
    usual = None
    if gpu is not None and calibration.gpus > 1:
        usual = links(Cluster.rented(gpu, calibration.gpus), Conditions()).link
    for ranks in sorted({collective.ranks for collective in calibration.collectives}):
        of_ranks = [
            collective for collective in calibration.collectives if collective.ranks == ranks
        ]
        for kind in dict.fromkeys(collective.kind for collective in of_ranks):
            best = max(
                collective.bus_bytes_per_second
                for collective in of_ranks
                if collective.kind == kind
            )
            name = f"{kind}, {ranks} ranks, {of_ranks[0].backend}"
            result.append(Line(name=name, measured=best, unit="B/s", expected=usual))
        quickest = min(collective.seconds for collective in of_ranks)
        result.append(Line(name=f"shortest collective, {ranks} ranks", measured=quickest, unit="s"))
    return result


def troubles(calibration: Calibration) -> tuple[Trouble, ...]:
    """What is slow, the likely cause and what to do; empty where nothing is."""
    gpu = calibration.accelerator
    spreads = [row.spread for row in (*calibration.products, *calibration.steps)]
    noise = statistics.median(spreads) if spreads else 0.0
    result = [] if gpu is None else _gpu_troubles(calibration, gpu)
    against = _contradiction(calibration) if gpu is None else []
    result += against
    if gpu is None and noise <= NOISY and not against:
        result = _cpu_troubles(calibration)
    if noise > NOISY:
        result.append(
            Trouble(
                what=f"The rounds differ by ±{noise:.0%}: the host did other things meanwhile.",
                next="Calibrate again when nothing else runs: these figures are too low.",
            )
        )
    return tuple(result)


def _gpu_troubles(calibration: Calibration, gpu: Accelerator) -> list[Trouble]:
    result: list[Trouble] = []
    by_name = {line.name.partition(",")[0]: line for line in lines(calibration)}
    clock = calibration.slow_clock
    matmul = next(
        (by_name[kind] for kind in ("matmul bf16", "matmul fp16") if kind in by_name), None
    )
    if clock is not None and clock < SLOW_CLOCK:
        finding = f"The GPU is throttled: under load its clock was {clock:.0%} of the highest one."
        result.append(
            Trouble(what=finding, next="See nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE.")
        )
    elif matmul is not None and matmul.is_slow:
        finding = f"{matmul.name} reaches {matmul.ratio:.0%} of what {gpu.name} usually does."
        step = "See nvidia-smi for other processes, MIG slices and the power limit."
        result.append(Trouble(what=finding, next=step))
    memory = by_name.get("memory")
    if memory is not None and memory.is_slow:
        finding = f"Memory bandwidth is {memory.ratio:.0%} of the usual one."
        result.append(
            Trouble(what=finding, next="See nvidia-smi for other processes and ECC errors.")
        )
    result += _link_trouble(calibration, gpu, by_name.get("all-reduce"))
    transfer = by_name.get("host to device")
    if transfer is not None and transfer.is_slow:
        finding = f"Host to device runs at {transfer.ratio:.0%} of the catalog's PCIe link."
        query = "pcie.link.gen.current,pcie.link.width.current"
        result.append(
            Trouble(what=finding, next=f"See nvidia-smi --query-gpu={query} --format=csv.")
        )
    return result


def _link_trouble(calibration: Calibration, gpu: Accelerator, line: Line | None) -> list[Trouble]:
    if line is None or not line.is_slow:
        return []
    rate, pcie = line.measured, gpu.pcie_bytes_per_second
    by_pcie = gpu.has_link and pcie is not None and rate < pcie
    reached = f"All-reduce over {calibration.gpus} GPUs reaches {line.ratio:.0%} of the usual rate"
    if by_pcie:
        finding = f"{reached}: the GPUs talk over PCIe, not over the {gpu.link} that was paid for."
        step = "See nvidia-smi topo -m and nvlink --status; unset NCCL_P2P_DISABLE."
        return [Trouble(what=finding, next=step)]
    step = "Run it with NCCL_DEBUG=INFO and look for the transport that it chose."
    return [Trouble(what=f"{reached}.", next=step)]


def _contradiction(calibration: Calibration) -> list[Trouble]:
    """A process alone that is slower than each of several that share the cores was disturbed."""
    rates = {line.name: line.measured for line in lines(calibration) if line.unit != "s"}
    for name, shared in rates.items():
        kind, _, several = name.partition(", each of ")
        solo = rates.get(kind)
        if not several or not solo or not shared or solo >= ODD * shared:
            continue
        finding = (
            f"{kind}: one process alone reaches {solo / shared:.0%} of what each of {several} "
            "does beside the others: something else had the cores then."
        )
        step = "Calibrate again when nothing else runs: steps are predicted far too slow so."
        return [Trouble(what=finding, next=step)]
    return []


def _cpu_troubles(calibration: Calibration) -> list[Trouble]:
    solo = calibration.best_flops("fp32", 1)
    shared = calibration.best_flops("fp32", 2)
    if not solo or not shared or calibration.cores < 2 or 2 * shared < FLAT * solo:
        return []
    finding = f"Two processes compute {2 * shared / solo:.1f} times as much as one with all cores."
    return [
        Trouble(
            what=finding, next="Prefer several processes (--strategy ddp) to one with many threads."
        )
    ]


def amount(value: float | None, unit: str) -> str:
    """A rate in decimal units, as data sheets have them, or a duration.

    >>> amount(794e12, "FLOP/s"), amount(3.35e12, "B/s"), amount(2e-6, "s"), amount(None, "s")
    ('794 TFLOP/s', '3.35 TB/s', '2 µs', 'n/a')
    """
    if unit == "s" and value is not None and value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if value is None or unit == "s":
        return format_seconds(value)
    for prefix in ("", "k", "M", "G", "T"):
        if value < 999.5 or prefix == "T":
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    raise AssertionError

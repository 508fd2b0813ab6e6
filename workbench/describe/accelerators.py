"""Accelerators: what the data sheets and the drivers say, one row of data/gpus.csv each.

Rates are dense (a sparse rate on a data sheet is twice the dense one) and links are counted in one
direction (a data sheet's "900 GB/s NVLink" is 450 each way). Unknown is None, never 0.
"""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from pathlib import Path

from workbench.describe.checks import require_choice
from workbench.describe.shown import changed_fields
from workbench.errors import UnknownNameError
from workbench.units import GIB, MIB

FILE = Path(__file__).parent / "data" / "gpus.csv"
PRECISIONS = ("bf16", "bf16-pure", "fp16", "fp16-pure", "fp8", "tf32", "fp32")
STARTABLE = ("NVIDIA", "AMD")
"""Vendors whose accelerators our launcher starts ranks on: CUDA; ROCm, not run on hardware."""
RESERVED = 0.01  # part of the nominal memory that drivers keep, where the reported size is unknown
NOISE = frozenset(
    {
        *("nvidia", "amd", "intel", "google", "aws", "geforce", "tesla", "instinct"),
        *("generation", "server", "edition", "gpu", "chip", "per", "on", "a", "board"),
    }
)
# Columns of the file -> fields, for the cells that could not be verified.
FIELDS = {
    **{name: f"{name}_flops" for name in ("bf16", "fp16", "fp8", "tf32", "fp32")},
    "mem_bw": "memory_bytes_per_second",
    "mem_type": "memory_type",
    "memory_mib": "memory_bytes",
    "vram": "memory_bytes",
    "scaleup_bw": "link_bytes_per_second",
    "pcie": "pcie_bytes_per_second",
    "p2p": "link",
    "tdp": "tdp_w",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One type of accelerator. ``catalog.gpu("h100")`` finds one by any usual name."""

    __repr__ = changed_fields

    id: str
    """Short name, unique: family, form factor and memory where they differ (a100-pcie-40)."""
    name: str
    """The maker's name."""
    vendor: str
    """NVIDIA, AMD, Intel, Google or AWS."""
    form_factor: str
    """SXM5, PCIe, OAM …: decides link and power."""
    arch: str
    """Generation (Hopper, Ada, CDNA3 …)."""
    compute_capability: str | None
    """CUDA compute capability or gfx target."""
    memory_bytes: int
    """Memory that the driver reports; nominal less 1 % (and `unverified`) where that is unknown."""
    memory_type: str
    """HBM3, GDDR6 …"""
    memory_bytes_per_second: float | None
    """Peak memory bandwidth."""
    bf16_flops: float | None
    """Dense bf16 rate with fp32 accumulation, FLOP/s; None = the hardware has no bf16."""
    fp16_flops: float | None
    """Dense fp16 rate with fp32 accumulation, FLOP/s."""
    fp8_flops: float | None
    """Dense fp8 rate, FLOP/s."""
    tf32_flops: float | None
    """Dense TF32 rate, FLOP/s: fp32 matmuls once allowed to use the tensor cores."""
    fp32_flops: float | None
    """fp32 rate of the ordinary cores, FLOP/s."""
    link: str
    """Fabric between the accelerators of one node; starts with "none" where there is only PCIe."""
    link_bytes_per_second: float | None
    """What one accelerator sends over that fabric, one direction (with "none": over PCIe)."""
    pcie_generation: int | None
    """PCIe generation, x16 where not noted."""
    pcie_bytes_per_second: float | None
    """PCIe to the host, one direction."""
    tdp_w: float | None
    """Power of the part at full load."""
    year: int | None
    """Year of launch."""
    source: str
    """Where the numbers come from."""
    date: str
    """Day the sources were read."""
    unverified: tuple[str, ...]
    """Fields whose sources disagree, are single, or were derived."""
    notes: str
    """What to know before using it."""
    aliases: tuple[str, ...] = ()
    """Other names, the driver's first of all."""

    @property
    def has_link(self) -> bool:
        """Whether a fabric faster than PCIe joins the accelerators of a node."""
        return not self.link.startswith("none")

    def link_joins(self, gpus: int) -> bool:
        """Whether that fabric can join so many of them in a node: a bridge joins 2, or 4.

        >>> find("rtx-3090").link_joins(2), find("rtx-3090").link_joins(5)
        (True, False)
        >>> find("h100").link_joins(8), find("h200-nvl").link_joins(4), find("l4").link_joins(2)
        (True, True, False)
        """
        bridged = re.search(r"(\d+)-way", self.link)
        return self.has_link and (bridged is None or gpus <= int(bridged[1]))

    def peak_flops(self, precision: str) -> float | None:
        """Dense peak in FLOP/s for matmuls at `precision`; None where it has no such unit.

        fp32 is the rate without TF32, as PyTorch computes by default.

        >>> find("h100").peak_flops("bf16"), find("t4").peak_flops("bf16")
        (989000000000000.0, None)
        """
        require_choice("precision", precision, PRECISIONS)
        rates = {
            "bf16": self.bf16_flops,
            "bf16-pure": self.bf16_flops,
            "fp16-pure": self.fp16_flops,
            "fp16": self.fp16_flops,
            "fp8": self.fp8_flops,
            "tf32": self.tf32_flops,
            "fp32": self.fp32_flops,
        }
        return rates[precision]

    def why_not(self, precision: str) -> str:
        """Why nothing should be trained at `precision` on it; empty where it has the units.

        >>> find("t4").why_not("bf16")
        'NVIDIA T4 16GB has no bf16 matmuls. Use precision fp16, or another GPU.'
        >>> find("a100").why_not("fp8"), find("h100").why_not("fp8")
        ('NVIDIA A100 SXM4 80GB has no fp8 matmuls. Use precision bf16, or another GPU.', '')
        """
        if self.peak_flops(precision) is not None:
            return ""
        other = self.instead_of(precision)
        use = f"Use precision {other}, or another GPU." if other else "Use another GPU."
        return f"{self.name} has no {precision} matmuls. {use}"

    def instead_of(self, precision: str) -> str | None:
        """What people use on it where it lacks `precision`; None where it has nothing.

        >>> find("t4").instead_of("bf16"), find("a100").instead_of("fp8")
        ('fp16', 'bf16')
        """
        substitutes = ("bf16", "fp16", "fp32") if precision == "fp8" else ("fp16", "fp32", "bf16")
        return next((name for name in substitutes if self.peak_flops(name) is not None), None)


@functools.cache
def accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of the catalog; within a family the usual one comes first."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(_accelerator(row) for row in csv.DictReader(file))


def _accelerator(row: dict[str, str]) -> Accelerator:
    doubtful = [cell for cell in row["unverified_cells"].split(",") if cell]
    mebibytes = row["memory_mib"]
    nominal = float(row["vram_gb"]) * GIB * (1 - RESERVED)
    return Accelerator(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"],
        form_factor=row["form_factor"],
        arch=row["arch"],
        compute_capability=row["compute_capability"] or None,
        memory_bytes=int(mebibytes) * MIB if mebibytes else int(nominal),
        memory_type=row["mem_type"],
        memory_bytes_per_second=_scaled(row["mem_bw_gbs"], 1e9),
        bf16_flops=_scaled(row["bf16_dense_tflops"], 1e12),
        fp16_flops=_scaled(row["fp16_dense_tflops"], 1e12),
        fp8_flops=_scaled(row["fp8_dense_tflops"], 1e12),
        tf32_flops=_scaled(row["tf32_dense_tflops"], 1e12),
        fp32_flops=_scaled(row["fp32_tflops"], 1e12),
        link=row["scaleup_link"],
        link_bytes_per_second=_scaled(row["scaleup_uni_gbs"], 1e9),
        pcie_generation=int(row["pcie_gen"]) if row["pcie_gen"] else None,
        pcie_bytes_per_second=_scaled(row["pcie_uni_gbs"], 1e9),
        tdp_w=_scaled(row["tdp_w"], 1),
        year=int(row["launch_year"]) if row["launch_year"] else None,
        source=row["sources"],
        date=row["date"],
        unverified=tuple(sorted({FIELDS.get(cell, cell) for cell in doubtful})),
        notes=row["notes"],
        aliases=tuple(alias for alias in row["aliases"].split(";") if alias),
    )


def _scaled(cell: str, unit: float) -> float | None:
    return float(cell) * unit if cell else None


def find(name: str) -> Accelerator:
    """The accelerator that people, clouds or the driver call `name`.

    An id, maker's name or alias wins; else every word must fit, and within a family the usual
    part (SXM before PCIe) is taken.

    Raises:
        UnknownNameError: nothing fits; near names are suggested.

    >>> find("H100").id, find("A100 40GB").id, find("RTX4090").id, find("NVIDIA H100 PCIe").id
    ('h100-sxm', 'a100-sxm-40', 'rtx-4090', 'h100-pcie')
    """
    gpu = lookup(name)
    if gpu is None:
        words = _words(str(name))
        of_chip = [part.id for part, chip, _ in _described() if chip in words]
        every = [each.id for each in accelerators()]
        raise UnknownNameError.near("accelerator", str(name), of_chip or every)
    return gpu


def recognise(name: str, memory_bytes: int) -> Accelerator | None:
    """The accelerator a driver reports as `name`; None when unsure (an unknown part, a MIG slice).

    The memory tells variants of one name apart. It must agree within 7 %: GDDR6 reports a
    sixteenth less where ECC is on (an RTX A6000 46068 MiB of 49140, an L40S 46068 of 49140).
    """
    match = lookup(name)
    candidates = () if match is None else (match, *_same_family(match))
    for candidate in candidates:
        if abs(candidate.memory_bytes - memory_bytes) <= 0.07 * candidate.memory_bytes:
            return candidate
    return None


def lookup(name: str) -> Accelerator | None:
    """As `find`, with None for a name that nothing fits."""
    words = _words(str(name))
    exact = _exact_names().get(words)
    if exact is not None:
        return exact
    for gpu, family, gpu_words in _described():
        if family in words and words <= gpu_words:
            return gpu
    return None


def _same_family(like: Accelerator) -> tuple[Accelerator, ...]:
    family = _family(like.id)
    return tuple(
        gpu
        for gpu in accelerators()
        if _family(gpu.id) == family and gpu.form_factor == like.form_factor and gpu != like
    )


@functools.cache
def _exact_names() -> dict[frozenset[str], Accelerator]:
    by_words: dict[frozenset[str], Accelerator] = {}
    for gpu in accelerators():
        for name in (gpu.id, gpu.name, *gpu.aliases):
            by_words.setdefault(_words(name), gpu)
    return by_words


@functools.cache
def _described() -> tuple[tuple[Accelerator, str, frozenset[str]], ...]:
    return tuple((gpu, _family(gpu.id), _all_words(gpu)) for gpu in accelerators())


def _all_words(gpu: Accelerator) -> frozenset[str]:
    nominal = re.search(r"(\d+)\s*GB", gpu.name)
    sizes = {nominal[1], f"{nominal[1]}gb"} if nominal else set[str]()
    form = gpu.form_factor.lower()
    texts = (gpu.id, gpu.name, gpu.form_factor, gpu.memory_type, gpu.vendor, gpu.arch, *gpu.aliases)
    words = frozenset[str]().union(*(_words(text) for text in texts))
    return words | sizes | ({"sxm"} if form.startswith("sxm") else set[str]())


def _family(identifier: str) -> str:
    """The part of an id that names the chip: its first word with a digit."""
    return next(word for word in identifier.split("-") if any(map(str.isdigit, word)))


def _words(name: str) -> frozenset[str]:
    text = re.sub(r"rtx(?=[a-z]?\d)", "rtx ", name.lower())
    text = re.sub(r"(gaudi|trainium)[\W_]+(?=\d)", r"\1", text)
    text = re.sub(r"(?<![a-z\d])(\d+)[\W_]*(?:gib|gb|g)\b", r"\1gb", text)
    text = re.sub(r"(\d)[\W_]+ti(?![a-z])", r"\1ti", text)
    text = re.sub(r"(\d(?:ti)?)(super|ada|nvl|sxm|pcie)", r"\1 \2", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - NOISE

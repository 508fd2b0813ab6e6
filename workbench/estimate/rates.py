"""What a GPU really achieves: matrix products, fused attention, memory traffic, kernel launches.

Peaks are the catalog's dense ones; what large matmuls reach of them was measured by
ml-engineering's MAMF finder (compute/accelerator, 2026-08): 271 of 312 TFLOP/s on A100, 794 of
989 on H100, 1,745 of 2,250 on B200, 1,822 of 2,500 on GB200, 668 of 1,307 on MI300X.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.describe import Accelerator, Conditions
from workbench.errors import UsageError

# Generation -> share of the dense bf16 peak that the best large matmul reaches (sources above).
MATMUL_CEILING = {
    "Ampere": 0.869,
    "Hopper": 0.803,
    "Blackwell": 0.776,
    "CDNA3": 0.511,
    "CDNA4": 0.626,
    "Volta": 0.85,
    "Ada": 1.0,  # GeForce parts hold clocks above the data sheet's boost
}
# Share of that rate kept in minutes of training with real numbers: the clock follows power and
# heat; generations that are dense for their power lose most (set on published runs).
SUSTAINED = {"Ampere": 0.86, "Hopper": 0.79, "Blackwell": 0.73, "CDNA3": 0.70}
USUAL_SUSTAINED = 0.85
# Ada's larger parts run into their power limit long before the peak: about 0.6 TFLOP/s per watt.
FLOPS_PER_WATT = {"Ada": 0.6e12}
# Power at which the ceilings above were measured; a part with less holds a lower clock. The
# exponent follows H100 PCIe and A100 PCIe against their SXM forms.
USUAL_POWER = {"Ampere": 400.0, "Hopper": 700.0, "Blackwell": 1000.0}
POWER_EXPONENT = 0.35
FP8 = {"CDNA3": 0.55}  # where fp8 lies further below its peak than `Efficiency.fp8` says
# Fused attention, forward, causal, 8K tokens, heads of 128: share of the dense bf16 peak.
# FlashAttention-2: 190 of 312 on A100 (arXiv 2307.08691), 370 of 989 on H100; FlashAttention-3:
# 610 of 989 on H100 (arXiv 2407.08608); cuDNN on B200 about 1,400 of 2,250.
ATTENTION = {
    (1, "Ampere"): 0.39,
    (2, "Ampere"): 0.49,
    (3, "Ampere"): 0.62,
    (1, "Hopper"): 0.21,
    (2, "Hopper"): 0.34,
    (3, "Hopper"): 0.73,
    (2, "Blackwell"): 0.25,
    (3, "Blackwell"): 0.69,
    (2, "Ada"): 0.75,
    (2, "CDNA3"): 0.27,
}


ALIGNED = 64
"""Elements: tensor cores of A100 and later want rows of 128 bytes (NVIDIA's matmul guide)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Constants of an implementation on any GPU; each is one mechanism, none knows a model."""

    fp8: float = 0.80
    """fp8 matmuls' share of their peak relative to bf16's (scaling, less time per product)."""
    tile: float = 128 * 128
    """Elements of the result that one block of threads makes."""
    tiles_at_once: float = 150.0
    """Blocks that run at once; a product of fewer leaves the card idle."""
    wave: float = 0.25
    """Share of one wave lost at the end of a product."""
    depth: float = 65.0
    """Inner size k at which half the time goes into starting and storing a tile."""
    unaligned: float = 0.57
    """Rate of products whose sizes are not a multiple of 64 elements, over aligned ones."""
    memory: float = 0.90
    """Pointwise kernels' share of the peak bandwidth."""
    attention_length: float = 260.0
    """Sequence length at which fused attention reaches half its long-sequence rate."""
    attention_backward: float = 0.76
    """Backward's rate over forward's (its 2.5 times as many FLOPs counted)."""
    kernel_seconds: float = 2.5e-6
    """Gap between two kernels that are already queued."""
    launch_seconds: float = 3.5e-6
    """Host time per eager operation (Python, autograd, dispatch)."""
    pointwise: float = 0.81
    """Share of the counted passes that reach memory; the rest is found in the cache."""


EFFICIENCY = Efficiency()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One GPU's achievable rates under given conditions."""

    matmul_flops: float
    """Large products at the workload's precision, FLOP/s."""
    plain_flops: float
    """Large 16-bit products (head, adapters, attention projections kept out of fp8), FLOP/s."""
    attention_flops: float
    """Fused attention forward on long sequences, FLOP/s."""
    memory_bytes: float
    """Pointwise kernels, bytes read and written per second."""
    flash_version: int
    """Generation of the fused attention kernel."""
    card_bytes: int
    """Memory of the card."""
    host_bytes: float
    """To and from host memory, bytes per second and direction."""
    efficiency: Efficiency
    """The other constants."""

    def product_seconds(
        self, m: float, k: float, n: float, *, copies: float = 1, plain: bool = False
    ) -> float:
        """Equal [m, k] x [k, n] products, run as one grouped kernel.

        The rate falls where few tiles or a short inner size leave the card idle; never faster
        than reading and writing the matrices.
        """
        e = self.efficiency
        rate = self.plain_flops if plain else self.matmul_flops
        if k % ALIGNED or n % ALIGNED:
            rate *= e.unaligned
        tiles = max(1.0, copies * m * n / e.tile)
        fill = tiles / (tiles + e.wave * e.tiles_at_once)
        depth = k / (k + e.depth)
        compute = 2.0 * m * k * n * copies / (rate * fill * depth)
        traffic = 2.0 * (m * k + k * n + m * n) * copies / self.memory_bytes
        return max(compute, traffic) + e.kernel_seconds

    def attention_seconds(self, flops: float, sequence: float, head: int) -> float:
        """Fused attention's forward: short sequences and narrow heads are slower."""
        e = self.efficiency
        rate = self.attention_flops * sequence / (sequence + e.attention_length)
        if self.flash_version > 1:  # FlashAttention-1 is no slower with narrow heads
            rate *= min(1.0, 0.55 + 0.45 * head / 128)
        return flops / rate + e.kernel_seconds


def machine(
    accelerator: Accelerator, precision: str, flash_version: int, conditions: Conditions
) -> Machine:
    """Achievable rates of `accelerator` at `precision`.

    Raises:
        UsageError: the hardware has no such matmuls, or its bandwidth is unknown.
    """
    e = EFFICIENCY
    low = "bf16" if accelerator.bf16_flops else "fp16"
    plain = accelerator.peak_flops("fp32" if precision == "fp32" else low)
    peak = accelerator.peak_flops(precision)
    if peak is None or plain is None:
        raise UsageError(accelerator.why_not(precision))
    if accelerator.memory_bytes_per_second is None:
        raise UsageError(f"The memory bandwidth of {accelerator.name} is unknown.")
    arch = family(accelerator.arch)
    ceiling = conditions.matmul_share or _ceiling(accelerator, arch, plain)
    fp8 = FP8.get(arch, e.fp8) if precision == "fp8" else 1.0
    flash = ATTENTION.get((flash_version, arch)) or ATTENTION.get((2, arch), 0.30)
    memory = conditions.memory_share or e.memory
    return Machine(
        matmul_flops=peak * ceiling * fp8,
        plain_flops=plain * ceiling,
        attention_flops=(accelerator.peak_flops(low) or plain) * flash,
        flash_version=flash_version,
        card_bytes=accelerator.memory_bytes,
        memory_bytes=accelerator.memory_bytes_per_second * memory,
        host_bytes=(accelerator.pcie_bytes_per_second or 16e9) * 0.8,
        efficiency=e,
    )


def _ceiling(accelerator: Accelerator, arch: str, plain: float) -> float:
    share = MATMUL_CEILING.get(arch, 0.75) * SUSTAINED.get(arch, USUAL_SUSTAINED)
    if arch in FLOPS_PER_WATT and accelerator.tdp_w:
        share = min(share, FLOPS_PER_WATT[arch] * accelerator.tdp_w / plain)
    elif arch in USUAL_POWER and accelerator.tdp_w and "RTX" not in accelerator.name:
        share *= min(1.0, accelerator.tdp_w / USUAL_POWER[arch]) ** POWER_EXPONENT
    return share


def family(arch: str) -> str:
    """The generation's name in the tables above."""
    for known in MATMUL_CEILING:
        if arch.lower().startswith(known.lower()):
            return known
    return arch

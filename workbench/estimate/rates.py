"""What a GPU really achieves: matrix products, fused attention, memory traffic, kernel launches.

Peaks are the catalog's dense ones; what large matmuls reach of them was measured by
ml-engineering's MAMF finder (compute/accelerator, 2026-08): 271 of 312 TFLOP/s on A100, 794 of
989 on H100, 1,745 of 2,250 on B200, 1,822 of 2,500 on GB200, 668 of 1,307 on MI300X.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from workbench.describe import Accelerator, Conditions
from workbench.describe.implementation import STACKS
from workbench.errors import UsageError
from workbench.estimate.fitted import constants, fitted

# Generation -> share of the dense bf16 peak that the best large matmul reaches (sources above).
MATMUL_CEILING = {
    "Ampere": 0.869,
    "Hopper": 0.803,
    "Blackwell": 0.776,
    "CDNA3": 0.511,
    "CDNA4": 0.626,
}
# Parts that reach another share of their own peak than their generation (the same source).
PART_CEILING = {"gb200": 0.729}
# Power at which the ceilings above were measured; a part with less holds a lower clock.
USUAL_POWER = {"Ampere": 400.0, "Hopper": 700.0, "Blackwell": 1000.0}
# Fused attention, forward, causal, 8K tokens, heads of 128: share of the dense bf16 peak.
# FlashAttention-2: 190 of 312 on A100 (arXiv 2307.08691), 370 of 989 on H100; FlashAttention-3:
# 610 of 989 on H100 (arXiv 2407.08608); cuDNN on B200 about 1,400 of 2,250. Others: fitted.
ATTENTION = {(2, "Ampere"): 0.49, (3, "Hopper"): 0.73, (3, "Blackwell"): 0.69}
FAMILIES = (*MATMUL_CEILING, "Volta", "Ada")


ALIGNED = 64
"""Elements: tensor cores of A100 and later want rows of 128 bytes (NVIDIA's matmul guide)."""


TILE = 128 * 128
"""Elements of the result that one block of threads makes."""


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
    stack_efficiency: float = 1.0
    """Share of these rates that the software stack keeps."""

    def product_seconds(
        self, m: float, k: float, n: float, *, copies: float = 1, plain: bool = False
    ) -> float:
        """Equal [m, k] x [k, n] products, run as one grouped kernel.

        The rate falls where few tiles or a short inner size leave the card idle; never faster
        than reading and writing the matrices.
        """
        rate = self.plain_flops if plain else self.matmul_flops
        if k % ALIGNED or n % ALIGNED:
            rate *= fitted("unaligned")
        tiles = max(1.0, copies * m * n / TILE)
        fill = tiles / (tiles + fitted("wave") * fitted("tiles_at_once"))
        depth = k / (k + fitted("depth"))
        compute = 2.0 * m * k * n * copies / (rate * fill * depth)
        traffic = 2.0 * (m * k + k * n + m * n) * copies / self.memory_bytes
        return max(compute, traffic) + fitted("kernel_seconds")

    def attention_seconds(self, flops: float, sequence: float, head: int) -> float:
        """Fused attention's forward: short sequences and narrow heads are slower."""
        rate = self.attention_flops * sequence / (sequence + fitted("attention_length"))
        if self.flash_version > 1:  # FlashAttention-1 is no slower with narrow heads
            narrow = fitted("narrow_heads")
            rate *= min(1.0, narrow + (1 - narrow) * head / 128)
        return flops / rate + fitted("kernel_seconds")


def machine(
    accelerator: Accelerator,
    precision: str,
    flash_version: int,
    conditions: Conditions,
    stack: str = "unknown",
) -> Machine:
    """Achievable rates of `accelerator` at `precision`.

    Raises:
        UsageError: the hardware has no such matmuls, or its bandwidth is unknown.
    """
    low = "bf16" if accelerator.bf16_flops else "fp16"
    plain = accelerator.peak_flops("fp32" if precision == "fp32" else low)
    peak = accelerator.peak_flops(precision)
    if peak is None or plain is None:
        raise UsageError(accelerator.why_not(precision))
    if accelerator.memory_bytes_per_second is None:
        raise UsageError(f"The memory bandwidth of {accelerator.name} is unknown.")
    arch = family(accelerator.arch)
    part = "" if precision == "fp32" else accelerator.id  # measured on tensor cores
    ceiling = conditions.matmul_share or _ceiling(accelerator, arch, plain, part)
    fp8 = fitted("fp8_cdna3" if arch == "CDNA3" else "fp8") if precision == "fp8" else 1.0
    memory = conditions.memory_share or fitted("memory")
    attention = (accelerator.peak_flops(low) or plain) * _attention(arch, flash_version)
    if precision == "fp32":  # fused kernels of 16 bits do not take it (FlashAttention's README)
        attention = min(attention, plain * ceiling)
    return Machine(
        matmul_flops=peak * ceiling * fp8,
        plain_flops=plain * ceiling,
        attention_flops=attention,
        flash_version=flash_version,
        card_bytes=accelerator.memory_bytes,
        memory_bytes=accelerator.memory_bytes_per_second * memory,
        host_bytes=(accelerator.pcie_bytes_per_second or 16e9) * fitted("host_share"),
        stack_efficiency=stack_efficiency(stack, arch),
    )


def _ceiling(accelerator: Accelerator, arch: str, plain: float, part: str) -> float:
    share = PART_CEILING.get(part) or MATMUL_CEILING.get(arch)
    share = share or _fitted_for(arch, "ceiling")
    share *= _fitted_for(arch, "sustained")
    if arch == "Ada" and accelerator.tdp_w:
        share = min(share, fitted("ada_flops_per_watt") * accelerator.tdp_w / plain)
    elif arch in USUAL_POWER and accelerator.tdp_w and "RTX" not in accelerator.name:
        share *= min(1.0, accelerator.tdp_w / USUAL_POWER[arch]) ** fitted("power_exponent")
    return share


def _fitted_for(arch: str, name: str) -> float:
    """The generation's own constant, or that of all others."""
    own = f"{name}_{arch.lower()}"
    return fitted(own if own in constants() else f"{name}_other")


def stack_efficiency(stack: str, arch: str) -> float:
    """Share of the best rates that a class of software keeps on a generation of GPUs.

    An unknown class keeps what all classes keep in the (geometric) mean.
    """
    if stack != "unknown":
        return _fitted_for(arch, f"stack_{stack}")
    efficiencies = [_fitted_for(arch, f"stack_{stack}") for stack in STACKS if stack != "unknown"]
    return math.exp(statistics.fmean(map(math.log, efficiencies)))


def _attention(arch: str, version: int) -> float:
    """Fused attention's share of the peak; an unknown kernel is as FlashAttention-2 there."""
    for kernel in (version, 2):
        name = f"flash{kernel}_{arch.lower()}"
        share = ATTENTION.get((kernel, arch)) or (name in constants() and fitted(name))
        if share:
            return share
    return fitted("flash_other")


def family(arch: str) -> str:
    """The generation's name in the tables above."""
    for generation in FAMILIES:
        if arch.lower().startswith(generation.lower()):
            return generation
    return arch

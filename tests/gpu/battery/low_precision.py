"""fp8 products: right, and as quick as the catalog says. The recipe itself does not train in fp8."""

from __future__ import annotations

import statistics
import time
from typing import Any

from tests.gpu.battery.values import Check, NotAvailable, Report, Setup

SIZES = (4096, 8192)
TINY_SIZES = (64, 128)
_FIRST_WITH_FP8 = (8, 9)  # compute capability: Ada; Hopper is 9.0
_LARGEST = 448.0  # of float8_e4m3fn
_ROUNDS = 30
_MOST_ERROR = 0.1  # of the largest value of the product: three bits of mantissa on either side


def fp8_products(setup: Setup) -> Report:
    """`torch._scaled_mm`, which is what every fp8 training of today ends in."""
    import torch

    import workbench as wb

    if setup.on_gpu and torch.cuda.get_device_capability() < _FIRST_WITH_FP8:
        raise NotAvailable(f"{torch.cuda.get_device_name()} has no fp8")
    rows = [_row(size, setup) for size in (SIZES if setup.on_gpu else TINY_SIZES)]
    checks = [Check(name="error", value=max(row["error"] for row in rows), high=_MOST_ERROR)]
    accelerator = wb.detect_host().accelerator if setup.on_gpu else None
    if accelerator is not None and accelerator.fp8_flops:
        best = max(row["flops_per_second"] for row in rows)
        ratio = best / accelerator.fp8_flops
        checks.append(Check(name="of the catalog's rate", value=ratio, low=0.3, high=1.1))
    return Report(measured={"rows": rows}, checks=tuple(checks))


def _row(size: int, setup: Setup) -> dict[str, Any]:
    """One square product: its rate, and its largest error against fp32."""
    import torch

    torch.manual_seed(size)
    left, right = (torch.randn(size, size, device=setup.device) for _ in range(2))
    scales = [one.abs().max() / _LARGEST for one in (left, right)]
    a, b = (
        (one / scale).to(torch.float8_e4m3fn)
        for one, scale in zip((left, right), scales, strict=True)
    )

    def product() -> Any:
        return torch._scaled_mm(
            a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16
        )

    exact = left @ right.t()
    error = (product().float() - exact).abs().max() / exact.abs().max()
    wait = torch.cuda.synchronize if setup.on_gpu else (lambda: None)
    seconds: list[float] = []
    for _ in range(_ROUNDS if setup.on_gpu else 3):
        wait()
        began = time.perf_counter()
        product()
        wait()
        seconds.append(time.perf_counter() - began)
    rate = 2 * size**3 / statistics.median(seconds)
    return {"size": size, "flops_per_second": rate, "error": float(error)}

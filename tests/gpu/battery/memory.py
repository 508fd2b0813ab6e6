"""Predicted memory beside what the allocator and the card report, and beside the simulation."""

from __future__ import annotations

import functools
import os
from dataclasses import replace

from tests.gpu.battery.values import Case, Check, NotAvailable, Report, Setup, ratio_check
from tests.gpu.memory_probe import CASES, CHECK, train
from tests.gpu.memory_probe import Case as Training

ORDER = tuple(name for name in CASES if name != "0.1b-check")


def training_case(name: str, setup: Setup) -> Training:
    """The case, or on a CPU the same options on a model of a few thousand weights."""
    case = CASES[name]
    if setup.on_gpu:
        return case
    small = replace(case.workload, model=CHECK, seq_len=64, micro_batch=1)
    return replace(case, workload=small)


def measure(name: str, setup: Setup) -> Report:
    """Real steps; predicted parts beside the peaks."""
    import torch

    import workbench as wb

    case = training_case(name, setup)
    predicted = wb.training_memory(case.workload, case.strategy)
    if setup.on_gpu:
        free, _ = torch.cuda.mem_get_info()
        if predicted.reserved_bytes > 0.97 * free:
            raise NotAvailable(f"needs {predicted.reserved_bytes / 2**30:.0f} GiB on the card")
    seconds = train(case, setup.device, steps=6)
    measured: dict[str, object] = {"last_step_seconds": seconds[-1]}
    checks: list[Check] = [Check(name="steps made", value=len(seconds), equals=6)]
    if setup.on_gpu:
        measured |= {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "on_card_bytes": on_card_bytes(),
        }
        checks += [
            ratio_check(what, getattr(predicted, what), _number(measured[what]), low, high)
            for what, low, high in (
                ("allocated_bytes", 0.97, 1.03),
                ("reserved_bytes", 0.93, 1.07),
                ("on_card_bytes", 0.93, 1.07),
            )
        ]
    return Report(
        predicted={
            "allocated_bytes": predicted.allocated_bytes,
            "reserved_bytes": predicted.reserved_bytes,
            "on_card_bytes": predicted.on_card_bytes,
            "parts": dict(predicted.parts),
        },
        measured=measured,
        checks=tuple(checks),
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def on_card_bytes() -> int | None:
    """What NVML says that this process holds; else all that is used on the card."""
    import torch

    from workbench.observe.gpu import GpuSampler

    own = GpuSampler().memory_of({os.getpid()})
    if own is not None:
        return own
    free, total = torch.cuda.mem_get_info()
    return total - free


def simulate(name: str, setup: Setup) -> Report:
    """The same case on fake tensors, to be set beside the measurement of the same name."""
    import workbench as wb
    from workbench.estimate.simulate import SimulationUnavailable

    case = training_case(name, setup)
    try:
        simulated = wb.simulate(case.workload, case.strategy, timeout_seconds=150)
    except SimulationUnavailable as error:
        raise NotAvailable(str(error)) from error
    closed = wb.training_memory(case.workload, case.strategy)
    return Report(
        predicted={"allocated_bytes": closed.allocated_bytes},
        measured={
            "simulated_allocated_bytes": simulated.allocated_bytes,
            "simulated_reserved_bytes": simulated.reserved_bytes,
            "seconds": simulated.seconds,
        },
        checks=(
            ratio_check(
                "closed form over simulation",
                closed.allocated_bytes,
                simulated.allocated_bytes,
                0.9 if setup.on_gpu else 0.5,
                1.1 if setup.on_gpu else 2.0,
            ),
        ),
    )


def _packages(name: str) -> tuple[str, ...]:
    work = CASES[name].workload
    lowbit = work.quantization != "none" or work.optimizer.endswith("8bit")
    needed = ("transformers", *(("bitsandbytes",) if lowbit else ()))
    return (*needed, "peft") if work.lora_rank else needed


def measure_cases() -> tuple[Case, ...]:
    return tuple(
        Case(
            name=f"memory-{name}",
            group="memory",
            run=functools.partial(measure, name),
            limit_seconds=60,
            packages=_packages(name),
        )
        for name in ORDER
    )


def simulate_cases() -> tuple[Case, ...]:
    return tuple(
        Case(
            name=f"simulate-{name}",
            group="simulation",
            run=functools.partial(simulate, name),
            limit_seconds=180,
            packages=_packages(name),
            lane="cpu",
        )
        for name in ORDER
    )

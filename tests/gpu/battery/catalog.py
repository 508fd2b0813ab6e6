"""The cases, in the order of their worth."""

from __future__ import annotations

from tests.gpu.battery import environment, libraries, low_precision, ranks, training
from tests.gpu.battery.faults import fault_cases
from tests.gpu.battery.memory import measure_cases, simulate_cases
from tests.gpu.battery.values import Case


def _case(name: str, group: str, run: object, seconds: float, *packages: str) -> Case:
    return Case(name=name, group=group, run=run, limit_seconds=seconds, packages=packages)  # pyright: ignore[reportArgumentType]


CASES: tuple[Case, ...] = (
    _case("environment", "environment", environment.environment, 120),
    _case("system-python", "environment", environment.system_python, 120),
    _case("nvml", "environment", environment.nvml_values, 40),
    *training.recipe_cases()[:1],
    _case("hook-overhead", "recipe", training.hook_overhead, 150),
    *measure_cases(),
    *simulate_cases(),
    _case("calibrate", "time", training.calibrate, 120),
    *training.step_cases(),
    _case("fp8-products", "time", low_precision.fp8_products, 60),
    *training.recipe_cases()[1:],
    _case("two-ranks-gloo", "ranks", ranks.gloo, 120),
    _case("too-many-ranks", "ranks", ranks.too_many, 60),
    _case("two-ranks-nccl", "ranks", ranks.nccl, 120),
    *fault_cases(),
    _case("inference", "inference", libraries.inference, 60, "transformers"),
    _case("profile", "profile", libraries.profile, 120),
    _case("deepspeed-zero2", "libraries", libraries.deepspeed, 120, "deepspeed"),
)

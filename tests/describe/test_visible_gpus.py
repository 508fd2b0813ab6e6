"""Which GPUs a run may use, and in which order. NVML is a fake: no host here has a driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from workbench.describe import detection
from workbench.observe.gpu import GpuSampler
from workbench.units import GIB


class RefusedError(Exception):
    """What NVML raises."""


def driver(cards: int = 4, **functions: Any) -> SimpleNamespace:
    """An NVML whose handles are the numbers of the cards."""
    known: dict[str, Any] = {
        "NVMLError": RefusedError,
        "nvmlDeviceGetCount": lambda: cards,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}000-aaaa",
        "nvmlDeviceGetName": lambda handle: f"Card {handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 * GIB, used=2 * GIB),
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
    }
    return SimpleNamespace(**(known | functions))


def seen(monkeypatch: pytest.MonkeyPatch, library: Any, visible: str | None = None):
    monkeypatch.setattr(detection, "nvml", lambda: library)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    return detection.visible_gpus()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("3,1", [3, 1]),  # rank 0 is on card 3
        ("GPU-2000,GPU-0000-aaaa", [2, 0]),
        ("", []),
        ("-1", []),
    ],
)
def test_the_order_is_cudas(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[int]
) -> None:
    assert [gpu.index for gpu in seen(monkeypatch, driver(), visible)] == expected


def test_a_lost_card_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(index: int) -> int:
        if index == 1:
            raise RefusedError
        return index

    found = seen(monkeypatch, driver(nvmlDeviceGetHandleByIndex=handle))
    assert [gpu.index for gpu in found] == [0, 2, 3]


def test_memory_that_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_handle: int) -> Any:
        raise RefusedError

    (gpu,) = seen(monkeypatch, driver(1, nvmlDeviceGetMemoryInfo=refuses))
    assert gpu.memory_bytes == detection.host_memory_bytes()


SLICES = {
    "nvmlDeviceGetMigMode": lambda card: (int(card == 0), 0),
    "nvmlDeviceGetMaxMigDeviceCount": lambda _card: 7,
    "nvmlDeviceGetUUID": lambda one: f"MIG-{one}" if isinstance(one, str) else f"GPU-{one}000",
    "nvmlDeviceGetName": str,
    "nvmlDeviceGetMemoryInfo": lambda one: SimpleNamespace(
        total=(10 if isinstance(one, str) else 80) * GIB
    ),
}


def _slice(card: int, number: int) -> str:
    if number > 1:
        raise RefusedError
    return f"{card}-{number}"


@pytest.mark.parametrize(
    ("visible", "name"),
    [(None, "0-0"), ("0", "0-0"), ("MIG-0-1", "0-1"), ("1", "1")],
)
def test_one_slice_of_a_card_in_mig_mode(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, name: str
) -> None:
    library = driver(2, nvmlDeviceGetMigDeviceHandleByIndex=_slice, **SLICES)
    (gpu,) = seen(monkeypatch, library, visible)
    assert gpu.name == name
    assert gpu.memory_bytes == (10 if "-" in name else 80) * GIB


def sampler(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> GpuSampler:
    library = driver(1, **functions)
    for module in (detection, __import__("workbench.observe.gpu", fromlist=["gpu"])):
        monkeypatch.setattr(module, "nvml", lambda: library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return GpuSampler()


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([(1, 5)], 5),
        ([(1, 5), (0, 7)], 5),  # pid 0 is nobody's: a process of another container
        ([(1, None)], None),
        ([(2**22 + 1, 5)], None),  # not a process of this container
        ([], 0),
    ],
)
def test_held_memory_is_unknown_rather_than_nothing(
    monkeypatch: pytest.MonkeyPatch, entries: list[tuple[int, int | None]], expected: int | None
) -> None:
    listed = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in entries]
    found = sampler(monkeypatch, nvmlDeviceGetComputeRunningProcesses=lambda _handle: listed)
    assert found.memory_of({1}) == expected


def test_memory_in_use_is_without_what_the_driver_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(_handle: int, version: int | None = None) -> Any:
        return SimpleNamespace(total=80 * GIB, used=(1 if version else 2) * GIB)

    nothing = dict.fromkeys(
        ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature"),
        lambda *_: (_ for _ in ()).throw(RefusedError),
    )
    nothing |= dict.fromkeys(
        ("nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        nothing["nvmlDeviceGetPowerUsage"],
    )
    constants = {"NVML_TEMPERATURE_GPU": 0, "NVML_CLOCK_SM": 1}
    newer = sampler(
        monkeypatch, nvmlDeviceGetMemoryInfo=memory, nvmlMemory_v2=2, **constants, **nothing
    )
    assert newer.sample()[0].memory_bytes == GIB
    older = sampler(monkeypatch, **constants, **nothing)
    assert older.sample()[0].memory_bytes == 2 * GIB

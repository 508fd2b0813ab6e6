"""Which GPUs a run may use, and in which order; the driver is the simulated one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pod.place import Placed
from workbench.describe import detection
from workbench.observe import driver_processes
from workbench.observe.devices import read_devices
from workbench.observe.gpu import GpuSampler, gpu_holders
from workbench.rehearsing.driver.pod import PROFILES, Pod, Slice
from workbench.units import GIB

Put = Callable[[Pod], Placed]
NOT_SUPPORTED, NO_PERMISSION, UNKNOWN = 3, 4, 999


def seen(monkeypatch: pytest.MonkeyPatch, visible: str | None = None) -> list[int]:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    return [gpu.index for gpu in detection.visible_gpus()]


def test_every_profile_is_recognised(put: Put) -> None:
    host = detection.detect_host()
    for number, gpu in enumerate(PROFILES):
        put(Pod(gpu, number + 1))
        host = detection.detect_host()
        assert host.accelerator is not None
        assert (host.accelerator.id, len(host.gpus)) == (gpu, number + 1)
    assert len({gpu.uuid for gpu in host.gpus}) == len(PROFILES)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("3,1", [3, 1]),  # rank 0 is on card 3
        (" 3 , 1", [3, 1]),
        ("{2},{0}", [2, 0]),
        ("GPU-2,GPU-0", [2, 0]),
        ("", []),
        ("-1", []),
        ("0,9,1", [0]),  # the list ends at the first that is none
        ("0,-1,1", [0]),
        ("GPU-1,GPU-f,GPU-2", [1]),
        ("GPU-", []),  # of several cards
        ("1,1", []),
        ("{1},0", [1]),
        ("no", []),
    ],
)
def test_the_order_is_cudas(
    monkeypatch: pytest.MonkeyPatch, put: Put, visible: str | None, expected: list[int]
) -> None:
    pod = Pod("t4", 4)
    put(pod)
    if visible is not None:
        visible = visible.format(*map(pod.uuid, range(4)))
    assert seen(monkeypatch, visible) == expected
    torch = pytest.importorskip("torch")
    if visible is not None and "," in visible and " " not in visible:  # torch strips numbers alone
        assert torch.cuda._device_count_nvml() == len(expected)


def test_a_lost_card_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, put: Put) -> None:
    put(Pod("h100-sxm", 4).lost(0, 1))
    assert seen(monkeypatch) == [0, 2, 3]
    assert detection.silent_gpus() == {1: "GPU is lost"}


def test_what_the_driver_withholds_costs_no_card(put: Put) -> None:
    pod = Pod("h100-sxm", 2)
    for function in ("UUID", "Name", "EnforcedPowerLimit", "MigMode"):
        pod.error(0, f"nvmlDeviceGet{function}", NO_PERMISSION, device=1)
    put(pod)
    whole, other = detection.visible_gpus()
    assert other.memory_bytes == whole.memory_bytes
    assert (other.name, other.uuid, other.power_limit_w) == ("unknown GPU", None, None)


def test_memory_that_is_the_hosts(put: Put) -> None:
    placed = put(
        Pod("h100-sxm", 1)
        .error(0, "nvmlDeviceGetMemoryInfo", NOT_SUPPORTED)
        .error(5, "nvmlDeviceGetMemoryInfo", UNKNOWN)
    )
    (gpu,) = detection.visible_gpus()
    assert gpu.memory_bytes == detection.host_memory_bytes()
    placed.second = 5  # that is no card which shares the host's memory
    assert detection.visible_gpus() == ()


SLICES = [
    Slice(uuid=f"MIG-{number}aaa", name="NVIDIA H100 MIG 1g.10gb", memory_bytes=10 * GIB)
    for number in range(2)
]


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [
        (None, "MIG-0aaa"),
        ("0", "MIG-0aaa"),
        ("MIG-1", "MIG-1aaa"),
        ("GPU-0", "MIG-0aaa"),
        ("1", None),
    ],
)
def test_one_slice_of_a_card_in_mig_mode(
    monkeypatch: pytest.MonkeyPatch, put: Put, visible: str | None, uuid: str | None
) -> None:
    pod = Pod("h100-sxm", 2).slices(0, 0, SLICES)
    put(pod)
    seen(monkeypatch, visible)
    (gpu,) = detection.visible_gpus()
    assert gpu.uuid == (uuid or pod.uuid(1))
    assert gpu.memory_bytes == (10 * GIB if uuid else pod.gpu.memory_bytes)


def test_a_slice_is_read_as_what_it_is(monkeypatch: pytest.MonkeyPatch, put: Put) -> None:
    one = Slice(uuid="MIG-x", name="1g.10gb", memory_bytes=10 * GIB, used_bytes=3 * GIB)
    put(Pod("h100-sxm", 1).busy(0, 0).slices(0, 0, [*SLICES, one]))
    seen(monkeypatch, "MIG-x")
    (sample,) = GpuSampler().sample()
    assert sample.memory_bytes == 3 * GIB  # not what others hold on the card
    assert sample.util is None  # no one can tell
    assert sample.temperature_c == 62


def test_each_slice_of_a_card_is_held_for_itself(put: Put) -> None:
    parts = [
        Slice(uuid=f"MIG-{n}", name=f"{n}", memory_bytes=n * 10 * GIB, used_bytes=n * GIB)
        for n in (1, 2)
    ]
    put(Pod("h100-sxm", 1).slices(0, 0, parts))
    holders = gpu_holders(detection.device_gpus())
    told = [(one.memory_bytes // GIB, one.total_bytes // GIB) for one in holders]
    assert told == [(1, 10), (2, 20)]


MINE = os.getpid()


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({MINE: 5}, 5),
        ({MINE: 5, 0: 7}, 5),  # pid 0 is no one's: a process of another container
        ({MINE: None}, None),
        ({2**22 + 1: 5}, None),  # not a process of this container
        ({}, 0),
    ],
)
def test_held_memory_is_unknown_rather_than_nothing(
    put: Put, entries: dict[int, int | None], expected: int | None
) -> None:
    put(Pod("t4", 1).processes(0, 0, entries))
    assert GpuSampler().memory_of({MINE}) == expected


@pytest.mark.parametrize(
    ("used", "on_host", "expected"), [(20 * GIB, False, None), (0, False, 0), (20 * GIB, True, 0)]
)
def test_a_container_that_is_told_of_no_process_knows_nothing_of_memory_left(
    monkeypatch: pytest.MonkeyPatch, put: Put, used: int, *, on_host: bool, expected: int | None
) -> None:
    put(Pod("t4", 1).processes(0, 0, {}).at(0, 0, used=used))
    for name in ("observe.gpu", "observe.driver_processes"):
        monkeypatch.setattr(f"workbench.{name}.shares_numbers", lambda: on_host)
    assert GpuSampler().memory_of({MINE}) == expected


def test_a_number_of_the_host_is_no_process_of_this_container(
    monkeypatch: pytest.MonkeyPatch, put: Put, tmp_path: Path
) -> None:
    """The driver of a container may tell the host's numbers: by chance one is a process here."""
    put(Pod("t4", 1).processes(0, 0, {MINE: 5 * GIB}))
    for name in ("observe.gpu", "observe.driver_processes"):
        monkeypatch.setattr(f"workbench.{name}.shares_numbers", lambda: False)
    monkeypatch.setattr(driver_processes, "_DRIVERS", (str(tmp_path),))  # a real driver is there
    assert GpuSampler().memory_of({MINE}) is None
    (holder,) = gpu_holders(detection.device_gpus())
    assert holder.processes == ((MINE, None),)
    (device,) = read_devices(tmp_path, cuda=True)
    assert [(one.pid, one.text) for one in device.holders] == [
        (None, "a process outside this container")
    ]
    node = tmp_path / "nvidia0"
    monkeypatch.setattr(driver_processes, "_NODES", (str(node),))
    with node.open("w"):  # as a process that computes has it open
        assert GpuSampler().memory_of({MINE}) == 5 * GIB


def test_memory_in_use_is_without_what_the_driver_keeps(put: Put) -> None:
    pod = put(Pod("t4", 1).at(0, 0, used=GIB).error(5, "nvmlDeviceGetMemoryInfo_v2", 13))
    sampler = GpuSampler()
    assert sampler.sample()[0].memory_bytes == GIB
    pod.second = 5  # an older driver
    assert (sampler.sample()[0].memory_bytes or 0) > GIB

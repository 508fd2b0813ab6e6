"""A driver that hangs, for ever: no command waits for it for long, and each says it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import SCRIPTS, until
from tests.pod.place import Placed
from workbench.describe.bounded_calls import DRIVER, BoundedCalls, driver_silence
from workbench.describe.detection import detect_host, nvml, silent_gpus, visible_gpus
from workbench.describe.torch_build import cuda_version, why_no_cuda
from workbench.launching.prepare import preflight
from workbench.observe import doctor
from workbench.observe.devices import read_devices
from workbench.observe.gpu import gpu_holders
from workbench.rehearsing.driver.pod import Pod

Put = Callable[[Pod], Placed]
TORCH = {"cuda": "12.8", "torch": "2.13", "available": True, "gpus": 2, "archs": [], "nccl": "2"}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second is long here."""
    monkeypatch.setattr(DRIVER, "seconds", 0.5)


@pytest.mark.parametrize(
    "function",
    [
        "nvmlInitWithFlags",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetMemoryInfo",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetCudaComputeCapability",
    ],
)
def test_nothing_before_a_run_waits_for_it(tmp_path: Path, put: Put, function: str) -> None:
    put(Pod("h100-sxm", 2).stall(0, function, 600))
    began = time.monotonic()
    host, silent = detect_host(), silent_gpus()
    checks = [doctor._check_torch(TORCH), doctor._check_gpus(TORCH), doctor._check_links()]
    why_no_cuda()
    cuda_version()
    read_devices(tmp_path, cuda=True)
    gpu_holders(host.gpus)
    assert time.monotonic() - began < 120
    assert silent == {}
    assert "The GPU driver has not answered for" in driver_silence()
    after = doctor._check_gpus(TORCH)
    assert (after["ok"], after["found"]) == (False, "the driver does not answer")
    assert "restart or replace the machine" in after["fix"]
    assert {one["name"] for one in checks} == {"torch", "GPUs", "links"}


def test_a_launch_says_so_and_does_not_train_on_the_cpu_without_a_word(
    store: Path, put: Put
) -> None:
    put(Pod("h100-sxm", 2).stall(0, "nvmlInitWithFlags", 600))
    with pytest.raises(wb.HostError, match=r"driver has not answered .* --cpu"):
        wb.request(SCRIPTS / "raw_ddp.py", processes=2, store=store)
    assert wb.request(SCRIPTS / "raw_ddp.py", processes=2, store=store, cpu=True).device == "cpu"


def test_one_that_answers_again_is_asked_again(
    store: Path, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_check_cuda", lambda _request: None)
    put(Pod("h100-sxm", 2).stall(0, "nvmlInitWithFlags", 3))
    assert nvml() is None
    assert visible_gpus() == ()
    until(lambda: DRIVER.silent_seconds is None)
    monkeypatch.setattr(DRIVER, "seconds", 60.0)
    assert len(visible_gpus()) == 2
    assert driver_silence() == ""
    assert wb.request(SCRIPTS / "raw_ddp.py", processes=2, store=store).device == "cuda"


def test_torch_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PROBE", "import time; time.sleep(600)")
    monkeypatch.setattr(doctor, "_TORCH_SECONDS", 0.2)
    assert doctor._probe_torch() == {"silent_seconds": 0.2}
    check = doctor._hanging_torch(0.2)
    assert (check["ok"], check["found"]) == (False, "no answer within 0.2 s")


def test_two_who_ask_at_once_both_get_their_answer() -> None:
    asked, answers = BoundedCalls(60.0), list[int | None]()
    threads = [
        threading.Thread(target=lambda n=n: answers.append(asked.ask(lambda: n))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked.ask(lambda: asked.ask(lambda: 8)) == 8  # and one who asks while he answers
    assert sorted(one for one in answers if one is not None) == list(range(8))

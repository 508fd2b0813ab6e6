"""AMD's GPUs through AMD's library, played on a timeline; nothing of this was run on hardware."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import SCRIPTS, until
from tests.diagnose.sample import Replay, row
from tests.pod.place import Placed
from workbench.describe.detection import detect_host, vendor, visible_gpus
from workbench.describe.torch_build import why_no_cuda
from workbench.diagnose.facts import RankFacts
from workbench.diagnose.hardware import GpuErrors
from workbench.engines.jobs import environment_of
from workbench.launching.prepare import preflight
from workbench.launching.prepare.launcher_process import visible, with_visible_gpus
from workbench.launching.prepare.recorded_environment import is_applied
from workbench.observe import doctor
from workbench.observe.devices import read_devices
from workbench.observe.gpu import GpuSampler
from workbench.rehearsing.driver.pod import Pod
from workbench.store.files import LineReader
from workbench.store.layout import RunPaths

Put = Callable[[Pod], Placed]
TORCH = {
    "torch": "2.13",
    "cuda": None,
    "hip": "6.4",
    "available": True,
    "gpus": 8,
    "archs": ["gfx942"],
}


def test_eight_mi300x_are_seen_and_read(put: Put) -> None:
    pod = Pod("mi300x", 8).busy(0, 3, power_mw=700_000).processes(5, 3, {os.getpid(): 7 << 30})
    placed = put(pod)
    host = detect_host()
    assert vendor() == "AMD"
    assert [gpu.index for gpu in host.gpus] == list(range(8))
    assert host.accelerator is not None
    assert host.accelerator.id == "mi300x"
    assert host.gpus[3].uuid == pod.uuid(3)
    assert host.gpus[0].power_limit_w == 750
    placed.second = 10
    sampler = GpuSampler()
    sample = sampler.sample()[3]
    assert (sample.util, sample.power_w, sample.temperature_c) == (97, 700, 62)
    assert sample.memory_bytes == 7 << 30
    assert sample.sm_clock_mhz == 1890
    assert sample.throttle_reasons is None
    assert sample.energy_joules == pytest.approx(5000 + 10 * 700, abs=0.01)
    assert sampler.memory_of({os.getpid()}) == 7 << 30
    assert sampler.memory_errors() == dict.fromkeys(range(8), 0)


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({"HIP_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "5,6,7"}, [5, 6, 7]),
        ({"ROCR_VISIBLE_DEVICES": "5,6,7", "HIP_VISIBLE_DEVICES": "2,0"}, [7, 5]),
        ({"ROCR_VISIBLE_DEVICES": "{uuid}"}, [4]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_the_variables_of_rocm(
    put: Put, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], seen: list[int]
) -> None:
    pod = Pod("mi300x", 8)
    put(pod)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("{uuid}", pod.uuid(4)))
    assert [gpu.index for gpu in visible_gpus()] == seen


def test_a_run_shows_its_ranks_the_gpus_that_it_was_given(put: Put, tmp_path: Path) -> None:
    put(Pod("mi300x", 8))
    assert visible(("6", "2")) == {
        "ROCR_VISIBLE_DEVICES": "6,2",
        "HIP_VISIBLE_DEVICES": "0,1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    script = tmp_path / "one.py"
    script.write_text("print(1)")
    lone = with_visible_gpus(visible(("6", "2")), device="cuda", ranks=1, script=script)
    assert (lone["HIP_VISIBLE_DEVICES"], lone["CUDA_VISIBLE_DEVICES"]) == ("0", "0")


def test_the_printed_command_shows_the_gpus_of_this_shell(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(Pod("mi300x", 8))
    monkeypatch.setattr(preflight, "_check_cuda", lambda _request: None)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "5,6,7")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2,0")
    request = wb.request("gpt", processes=2, store=tmp_path)
    assert "HIP_VISIBLE_DEVICES=2,0 ROCR_VISIBLE_DEVICES=5,6,7 " in request.shell()
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        with pytest.raises(wb.UsageError, match=f"{name} decides which GPUs"):
            wb.request("gpt", environment={name: "1"}, store=tmp_path)
        assert is_applied(name)  # a record keeps what a run was given
        assert environment_of({name: "1"}) == ({}, ())  # an export's machines have their own


def test_the_doctor_names_them(put: Put) -> None:
    put(Pod("mi300x", 8))
    checks = [doctor._check_torch(TORCH), doctor._check_gpus(TORCH)]
    assert [one["fix"] for one in checks] == [None, None]
    assert checks[0]["found"] == "2.13 (ROCm 6.4)"
    assert "8 x AMD Instinct MI300X 192 GiB; amdgpu 570" in checks[1]["found"]
    assert "not run on hardware" in checks[1]["found"]
    cpu = doctor._check_torch({**TORCH, "hip": None, "available": False})
    assert "whl/rocm" in cpu["fix"]
    assert "not built for ROCm" in (why_no_cuda() or "")
    assert doctor._check_nccl({**TORCH, "nccl": "2.21", "gloo": True})["found"].startswith("RCCL")


@pytest.mark.parametrize(
    "function",
    [
        "amdsmi_init",
        "amdsmi_get_processor_handles",
        "amdsmi_get_gpu_asic_info",
        "amdsmi_get_gpu_memory_usage",
        "amdsmi_get_gpu_activity",
        "amdsmi_get_power_info",
        "amdsmi_get_energy_count",
        "amdsmi_get_temp_metric",
        "amdsmi_get_gpu_enumeration_info",
        "*",
    ],
)
def test_an_error_at_any_call_stops_no_reader(put: Put, tmp_path: Path, function: str) -> None:
    put(Pod("mi300x", 2).busy(0, (0, 1)).error(0, function, 2, device=-1))
    cluster = asdict(detect_host())
    samples = GpuSampler().sample()
    assert len(samples) in {0, 2}
    read_devices(tmp_path, cuda=True)
    replay = Replay(tmp_path, device="cuda", cluster=cluster)
    replay.rows([row(1, 3.0)])
    replay.facts = {"ranks": {0: RankFacts()}}
    replay.look(2000.0)
    assert list(GpuErrors().rule(replay.diagnoser.evidence)) == []


@pytest.mark.slow
def test_a_run_on_two_of_eight(store: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gloo ranks stand in for those of a torch with ROCm; the supervisor reads the cards."""
    monkeypatch.setattr(preflight, "_check_cuda", lambda _request: None)
    placed = put(Pod("mi300x", 8).busy(0, range(8), power_mw=600_000))
    words = ["--steps", "100000", "--step-seconds", "0.01"]
    run = wb.launch(
        SCRIPTS / "raw_ddp.py", words, processes=2, devices=("6", "2"), store=store, warm=True
    )
    assert run.document["environment"]["ROCR_VISIBLE_DEVICES"] == "6,2"
    assert [gpu["index"] for gpu in run.document["cluster"]["gpus"]] == [6, 2]
    until(lambda: run.view().get("steps", 0) > 3, what=lambda: run.logs(0)[-2000:])
    placed.second = 1
    until(lambda: ((run.view() or {}).get("energy") or {}).get("joules") is not None)
    placed.second = 101
    until(lambda: run.view()["energy"]["joules"] > 1e5)
    assert run.view()["energy"]["gpu_joules"] <= 2 * 101 * 600.01
    samples = LineReader(RunPaths(run.directory).system).read()
    assert [[gpu["index"] for gpu in one["gpus"]] for one in samples][-1] == [6, 2]
    run.stop()
    assert run.wait() == "stopped"

"""Which devices a run gets, who holds which, and the sentence where they are held."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import workbench as wb
from tests.pod.place import Placed
from workbench.describe import Cluster
from workbench.describe.hardware import Gpu
from workbench.launching.prepare import devices as choosing
from workbench.launching.prepare import preflight
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.devices import assigned, check_free, on_devices, placed
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.request import Request
from workbench.launching.start.start import prepare
from workbench.observe import devices as observed
from workbench.observe import gpu
from workbench.observe.devices import Device, Holder, held_by, read_devices
from workbench.queueing.device_requests import device_request
from workbench.rehearsing.driver.pod import Pod, Slice
from workbench.store import processes
from workbench.store.layout import RunPaths
from workbench.store.queue_files import QueueFiles
from workbench.store.record import read_record
from workbench.store.run_record import RunRecord

HOST = Cluster(
    name=socket.gethostname(),
    gpus=tuple(Gpu(index=index, name="GPU", memory_bytes=80 << 30) for index in range(4)),
    cpu_cores=8,
    usd_per_hour=8.0,
)


def a_run(store: Path, name: str, **fields: object) -> RunPaths:
    """The directory of a run that is at work: this process watches it."""
    paths = RunPaths(store / name)
    paths.directory.mkdir(parents=True)
    about = {"run": name, "cluster": {"name": socket.gethostname()}, "created_at": time.time()}
    paths.run.write_text(json.dumps({**about, **fields}))
    supervisor = processes.identify(os.getpid())
    paths.state.write_text(json.dumps({"phase": "running", "supervisor": supervisor}))
    return paths


def asked(store: Path, **options: object) -> Request:
    return build_request("gpt", [], LaunchOptions(cpu=True, store=store, **options))


def on_gpus(store: Path, ranks: int, **options: object) -> Request:
    """A request as a host with four GPUs would give it."""
    request = asked(store, processes=ranks)
    chosen = LaunchOptions(store=store, processes=ranks, **options)
    request = replace(request, device="cuda", cluster=HOST, options=chosen)
    names = request.options.devices
    return on_devices(request, names) if names else request


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Holder, ...]]:
    """Who holds the four GPUs."""
    held: dict[str, tuple[Holder, ...]] = {}

    def read(_store: Path, *, cuda: bool, excluding: str | None = None) -> tuple[Device, ...]:
        assert cuda
        names = [str(gpu.index) for gpu in HOST.gpus]
        others = {name: held.get(name, ()) for name in names}
        found = {
            name: [one for one in who if excluding is None or one.run != excluding]
            for name, who in others.items()
        }
        return tuple(
            Device(name=name, kind="gpu", label="GPU", holders=tuple(found[name])) for name in names
        )

    monkeypatch.setattr(choosing, "read_devices", read)
    return held


def test_slots_are_held_by_runs_that_name_them_and_by_others_as_many_as_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed, "usable_cores", lambda: 4)
    a_run(tmp_path, "named", devices=["3"], device="cpu")
    a_run(tmp_path, "plain", processes=2, device="cpu")
    a_run(tmp_path, "ended", processes=2, device="cpu").exit.write_text("{}")
    a_run(tmp_path, "elsewhere", processes=2, device="cpu", cluster={"name": "other"})
    held = {
        one.name: [who.text for who in one.holders] for one in read_devices(tmp_path, cuda=False)
    }
    assert held == {"0": ["plain"], "1": ["plain"], "2": [], "3": ["named"]}


def test_the_number_of_slots_is_the_stores(tmp_path: Path) -> None:
    files = QueueFiles(tmp_path)
    with files.locked():
        files.set(slots=6)
    assert len(read_devices(tmp_path, cuda=False)) == 6
    assert asked(tmp_path, devices=("0", "5")).processes == 2
    with pytest.raises(
        wb.UsageError, match=r"no slot of cores '6', but 0, 1, 2, 3, 4, 5\. Another"
    ):
        asked(tmp_path, devices=("6",))
    with pytest.raises(wb.UsageError, match="1 is named twice"):
        asked(tmp_path, devices=("1", "1"))


def test_a_run_on_slots_has_their_share_of_cores_and_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setenv("WORKBENCH_USD_PER_HOUR", "8")
    files = QueueFiles(tmp_path)
    with files.locked():
        files.set(slots=4)
    whole, half = asked(tmp_path, processes=1), asked(tmp_path, devices=("1", "3"))
    assert half.cluster.cpu_cores == max(1, (whole.cluster.cpu_cores or 0) // 2)
    assert (whole.usd_per_hour, half.usd_per_hour) == (8.0, 4.0)
    assert asked(tmp_path, processes=1, queue=True).usd_per_hour == 2.0


def test_a_held_slot_is_refused_with_who_and_what_to_type(tmp_path: Path) -> None:
    files = QueueFiles(tmp_path)
    with files.locked():
        files.set(slots=4)
    a_run(tmp_path, "first", devices=["0", "1"], device="cpu")
    with pytest.raises(wb.UsageError) as refused:
        placed(asked(tmp_path, devices=("1", "2")))
    text = str(refused.value)
    assert text.startswith("slot 1 is held by first. ")
    for way in ("workbench attach first", "--devices 2,3", "--queue", "--share"):
        assert way in text
    assert placed(asked(tmp_path, devices=("1",), share=True)).options.devices == ("1",)
    assert placed(asked(tmp_path, processes=2)).options.devices == ()


def test_a_run_that_names_no_gpus_gets_the_first_free_ones(
    tmp_path: Path, gpus: dict[str, tuple[Holder, ...]]
) -> None:
    assert placed(on_gpus(tmp_path, 2)).options.devices == ()  # as without the workbench
    gpus["0"] = (Holder(run="first", text="first"),)
    moved = placed(on_gpus(tmp_path, 2))
    assert moved.options.devices == ("1", "2")
    assert moved.environment["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert moved.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert [gpu.index for gpu in moved.cluster.gpus] == [1, 2]
    assert moved.usd_per_hour == 4.0
    with pytest.raises(wb.UsageError, match="GPU 0 is held by first"):
        placed(on_gpus(tmp_path, 4))


def test_a_strangers_process_does_not_refuse_a_launch_but_another_stores_run_does(
    tmp_path: Path, gpus: dict[str, tuple[Holder, ...]]
) -> None:
    gpus["0"] = (Holder(pid=1, text="python (pid 1)", is_run=False),)
    assert placed(on_gpus(tmp_path, 1, devices=("0",))).options.devices == ("0",)
    gpus["0"] = (Holder(pid=1, text="theirs"),)
    with pytest.raises(wb.UsageError, match=r"GPU 0 is held by theirs\. .* wait for it, use free"):
        placed(on_gpus(tmp_path, 1, devices=("0",)))


def test_the_record_says_which_gpus_a_run_holds() -> None:
    gpu = [{"index": index} for index in (2, 3, 5)]
    run = RunRecord(device="cuda", processes=2, cluster={"gpus": gpu})
    assert held_by(run) == ("2", "3")
    assert held_by(assigned(run, ("5", "2"))) == ("5", "2")
    assert assigned(run, ("5", "2")).environment["CUDA_VISIBLE_DEVICES"] == "5,2"
    assert held_by(RunRecord(device="cpu", processes=2)) == ()


def test_a_lone_process_that_drives_all_gpus_holds_all_of_them(
    tmp_path: Path, gpus: dict[str, tuple[Holder, ...]]
) -> None:
    script = tmp_path / "infer.py"
    script.write_text("model = load(device_map='auto')\n")
    lone = replace(on_gpus(tmp_path, 1), script=script, recipe=None)
    run = read_record(prepare(placed(lone))[0])
    assert held_by(run) == ("0", "1", "2", "3")
    script.write_text("model = load()\n")
    assert held_by(read_record(prepare(placed(lone))[0])) == ("0",)
    gpus["2"] = (Holder(run="other", text="other"),)
    script.write_text("model = load(device_map='auto')\n")
    with pytest.raises(wb.UsageError, match="GPU 2 is held by other"):
        placed(lone)


def test_a_run_holds_each_gpu_on_which_the_driver_names_it(
    tmp_path: Path, put: Callable[[Pod], Placed], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = {"name": socket.gethostname(), "gpus": [{"index": 0}, {"index": 1}]}
    for name in ("mine", "near"):
        a_run(tmp_path, name, device="cuda", processes=1, cluster=host)
    directories = {11: tmp_path / "mine", 12: tmp_path / "mine", 13: tmp_path / "else" / "near"}
    monkeypatch.setattr(
        observed.processes, "variable", lambda pid, _name: str(directories.get(pid) or "")
    )
    monkeypatch.setattr(gpu, "process_name", lambda _pid: "python")  # as if they ran here
    pod = Pod("h100-sxm", 3).processes(0, 0, {11: 1 << 30})
    put(pod.processes(0, 2, {11: 60 << 30, 12: 1 << 30, 13: 1 << 30}))
    held = {one.name: [(who.run, who.text) for who in one.holders]
            for one in read_devices(tmp_path, cuda=True)}  # fmt: skip
    assert held == {
        "0": [("mine", "mine"), ("near", "near")],
        "1": [],
        "2": [("mine", "mine"), (None, "near")],  # a run of that name in another store
    }
    again = read_devices(tmp_path, cuda=True, excluding="mine")
    assert [who.text for who in again[2].holders] == ["near"]


def test_slices_are_devices_of_their_own(
    tmp_path: Path, put: Callable[[Pod], Placed], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = Pod("h100-sxm", 2)
    for card in (0, 1):
        parts = [
            Slice(uuid=f"MIG-{card}{part}", name="H100 MIG 3g.40gb", memory_bytes=40 << 30)
            for part in (0, 1)
        ]
        pod = pod.slices(0, card, parts)
    put(pod)
    monkeypatch.setattr(preflight, "_check_cuda", lambda _request: None)
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    options = LaunchOptions(store=tmp_path, processes=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-11")
    paths, _ = prepare(placed(build_request(str(script), [], replace(options, name="other"))))
    mine = read_record(paths)
    assert held_by(mine) == ("MIG-11",)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")  # as in the queue's dispatcher
    supervisor = processes.identify(os.getpid())
    paths.state.write_text(json.dumps({"phase": "running", "supervisor": supervisor}))
    devices = read_devices(tmp_path, cuda=True)
    held = {one.name: [who.text for who in one.holders] for one in devices}
    assert held == {"MIG-00": [], "MIG-01": [], "MIG-10": [], "MIG-11": ["other"]}
    asked = device_request(mine, devices)
    assert (asked.allowed, asked.count, asked.impossible) == (("gpuMIG-11",), 1, False)
    given = assigned(mine, ["MIG-11"])
    assert given.environment["CUDA_VISIBLE_DEVICES"] == "MIG-11"
    assert [gpu["uuid"] for gpu in given.cluster["gpus"]] == ["MIG-11"]
    with pytest.raises(wb.UsageError, match="GPU MIG-11 is held by other"):
        placed(build_request(str(script), [], replace(options, devices=("MIG-11",))))
    beside = placed(build_request(str(script), [], replace(options, devices=("MIG-10",))))
    assert beside.environment["CUDA_VISIBLE_DEVICES"] == "MIG-10"
    with pytest.raises(wb.UsageError, match="one slice of a GPU"):
        build_request(str(script), [], replace(options, devices=("MIG-00", "MIG-10")))


def test_a_resume_is_refused_while_another_run_holds_its_devices(
    tmp_path: Path, gpus: dict[str, tuple[Holder, ...]]
) -> None:
    paths = a_run(tmp_path, "mine")
    run = RunRecord(run="mine", device="cuda", processes=1, devices=["1"])
    check_free(paths, run)
    gpus["1"] = (Holder(run="mine", text="mine"),)
    check_free(paths, run)
    gpus["1"] = (Holder(run="other", text="other"),)
    with pytest.raises(wb.UsageError, match="GPU 1 is held by other"):
        check_free(paths, run)
    check_free(paths, replace(run, share=True))
    with pytest.raises(wb.UsageError, match="mine had device 9, and this host has 0, 1, 2, 3"):
        check_free(paths, replace(run, devices=["9"]))


def test_a_resume_under_a_silent_driver_is_no_word_on_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = a_run(tmp_path, "mine")
    monkeypatch.setattr(choosing, "read_devices", lambda *_where, **_how: ())
    with pytest.raises(wb.HostError, match="The GPU driver does not answer"):
        check_free(paths, RunRecord(run="mine", device="cuda", processes=1, devices=["1"]))
    with pytest.raises(wb.HostError, match="The GPU driver does not answer"):
        placed(on_gpus(tmp_path, 1))


def test_devices_are_kept_in_the_record(tmp_path: Path) -> None:
    paths, _ = prepare(asked(tmp_path, devices=("0",)))
    assert read_record(paths).devices == ["0"]

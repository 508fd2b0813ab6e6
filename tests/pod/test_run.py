"""A real run on an eight-GPU node that there is not: two gloo ranks, the supervisor's own sampler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import SCRIPTS, until
from tests.pod.place import Placed
from workbench.launching.prepare import preflight
from workbench.observe.devices import read_devices
from workbench.rehearsing.driver.pod import Pod
from workbench.store.files import LineReader
from workbench.store.layout import RunPaths


def test_a_run_on_two_of_eight(
    store: Path, put: Callable[[Pod], Placed], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = Pod("h100-sxm", 8).busy(0, range(8)).at(0, 5, util=3).lost(50, 3)
    pod.xid(50, 3, 79).stall(60, "nvmlDeviceGetPowerUsage", 600, device=5)
    placed = put(pod)
    # The ranks stand in for those of a torch with CUDA; that this one is refused has its own test.
    monkeypatch.setattr(preflight, "_check_cuda", lambda _request: None)
    monkeypatch.setenv("WORKBENCH_USD_PER_HOUR", "16")
    run = wb.launch(
        SCRIPTS / "raw_ddp.py",
        ["--steps", "100000"],
        processes=2,
        devices=("3", pod.uuid(5)),
        store=store,
        warm=True,
    )
    paths = RunPaths(run.directory)
    until(lambda: (run.view() or {}).get("steps", 0) > 3, what=lambda: run.logs(0)[-2000:])
    assert run.document["usd_per_hour"] == 4.0  # two of the eight
    assert [gpu["uuid"] for gpu in run.document["cluster"]["gpus"]] == [pod.uuid(3), pod.uuid(5)]
    assert run.document["environment"]["CUDA_VISIBLE_DEVICES"] == "3,5"
    held = {one.name: [who.text for who in one.holders] for one in read_devices(store, cuda=True)}
    assert {name for name, who in held.items() if who} == {"3", "5"}
    samples = LineReader(paths.system).read()
    assert [[gpu["index"] for gpu in one["gpus"]] for one in samples][-1] == [3, 5]  # no other's
    assert samples[-1]["gpus"][0]["util"] == 97
    placed.second = 55
    until(lambda: {"xid-79", "gpu-lost"} <= {one.kind for one in run.findings()})
    assert {one.rank for one in run.findings() if one.kind in {"xid-79", "gpu-lost"}} == {0}
    placed.second = 65  # the driver hangs from here on
    steps = run.view()["steps"]
    until(lambda: run.view()["steps"] > steps + 3)
    run.stop()
    assert run.wait() == "stopped"

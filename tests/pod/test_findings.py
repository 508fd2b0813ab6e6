"""Every finding about GPUs, from what the driver tells to the rule; and none on a healthy node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.sample import Replay, kinds, row, sample
from tests.pod.place import Placed
from workbench.describe.detection import detect_host
from workbench.observe.gpu import PatientGpuSampler
from workbench.rehearsing.driver.pod import PROFILES, Pod
from workbench.store.findings import Finding

Put = Callable[[Pod], Placed]
RANKS = (0, 1)


def watched(
    folder: Path, placed: Placed, *, seconds: int = 200, step: int = 2, steps: bool = False
) -> list[Finding]:
    """The findings of a training on both cards, as the supervisor's own sampler reads them.

    `steps`: go on making ten a second.
    """
    cluster: dict[str, Any] = asdict(detect_host())
    replay = Replay(folder, device="cuda", cluster=cluster, recovery={"idle_minutes": 1})
    sampler = PatientGpuSampler()
    replay.rows([row(number, 3.0 - number / 1000) for number in range(1, 60)])
    found: list[Finding] = []
    for second in range(0, seconds, step):
        placed.second = second
        gpus = [one.document() for one in sampler.sample()]
        if steps:
            begun = 100 + 10 * second
            replay.rows([row(number, 2.9 - number / 1000) for number in range(begun, begun + 10)])
        found = replay.samples([sample(1010.0 + second, gpus=gpus)])
    return found


def busy() -> Pod:
    return Pod("h100-sxm", 2).busy(0, RANKS)


@pytest.mark.parametrize("gpu", PROFILES)
def test_a_healthy_node_is_silent(tmp_path: Path, put: Put, gpu: str) -> None:
    assert kinds(watched(tmp_path, put(Pod(gpu, 2).busy(0, RANKS)), step=6)) == []


@pytest.mark.parametrize(
    ("pod", "kind", "rank", "says"),
    [
        (
            busy().busy(60, 1, throttle=0x40, temperature=93, clock=1100),
            "thermal-throttling",
            1,
            "93 °C, 1100 MHz",
        ),
        (busy().busy(60, 0, throttle=0x88, clock=1000), "power-throttling", 0, "1000 MHz"),
        (busy().busy(60, 0, throttle=4, clock=900), "power-throttling", 0, "once 1782"),
        (busy().busy(60, 1, throttle=0, clock=900), "slow-clock", 1, "900 MHz"),
        (busy().lost(100, 1), "gpu-lost", 1, "gpu1 returned no reading in the last 3"),
        (busy().error(100, "*", 999), "gpu-lost", None, "No GPU returned a reading"),
        (busy().at(100, RANKS, util=0), "idle-gpus", None, "No GPU of the run was active"),
        (busy().at(0, 1, util=0), "unused-gpu", None, "gpu1 did nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_finding_and_no_other(
    tmp_path: Path, put: Put, pod: Pod, kind: str, rank: int | None, says: str
) -> None:
    found = [one for one in watched(tmp_path, put(pod)) if one.cleared_at is None]
    assert [one.kind for one in found] == [kind]
    assert found[0].rank == rank
    assert says in found[0].evidence


def test_cards_that_wait_while_steps_are_made(tmp_path: Path, put: Put) -> None:
    pod = busy().at(0, RANKS, util=20)
    (found,) = watched(tmp_path, put(pod), seconds=120, step=1, steps=True)
    assert (found.kind, found.rank) == ("low-utilisation", None)
    assert "busy 20 %" in found.evidence


def test_a_driver_that_is_silent_for_a_moment_has_lost_no_card(tmp_path: Path, put: Put) -> None:
    pod = busy().error(100, "*", 999, until=112)
    assert watched(tmp_path, put(pod)) == []


def test_a_card_that_is_back_is_read_again(put: Put) -> None:
    placed = put(busy().lost(5, 1, back=10))
    gpus = detect_host().gpus
    placed.second = 5
    sampler = PatientGpuSampler(gpus)
    assert [one.util for one in sampler.sample()] == [97, None]
    placed.second = 10
    assert [one.util for one in sampler.sample()] == [97, 97]

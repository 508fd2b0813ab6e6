"""The copy of a run at an address is kept in step, and what fails is told and tried again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import workbench as wb
from tests.conftest import until
from tests.storage.conftest import BUCKET, S3, save
from tests.storage.test_resume_elsewhere import SHAPE, vanish
from workbench.diagnose.economy import mirror as rule
from workbench.diagnose.evidence import Evidence
from workbench.diagnose.facts import Facts
from workbench.errors import StorageError
from workbench.launching.resume.arrival import pull
from workbench.recover.checkpoints import list_checkpoints
from workbench.storage import mirror as mirror_module
from workbench.storage.manifest import read_remote_run
from workbench.storage.mirror import Mirror
from workbench.storage.mirror_state import MirrorState, read_mirror, write_mirror
from workbench.storage.push import push
from workbench.storage.remote import Remote
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.runs import Store


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def test_each_finished_checkpoint_is_sent_at_once_and_metrics_once_a_minute(
    made: RunPaths, tmp_path: Path
) -> None:
    ended = made.exit.read_bytes()
    made.exit.unlink()
    clock, url = Clock(), str(tmp_path / "volume")
    sent = list[float]()

    def send(tell: Callable[[int, int, str], None]) -> object:
        sent.append(clock.now)
        return push(made, url, on_progress=tell)

    mirror = Mirror(made, url, send, lambda _: None, clock, clock)  # pyright: ignore[reportArgumentType]
    assert [mirror.look() for _ in range(3)] == [True] * 3
    assert len(sent) == 1
    (made.checkpoints / "partial-30").mkdir()
    clock.now += 5
    assert mirror.look()
    assert len(sent) == 1, "one that is being written is not"
    (made.checkpoints / "partial-30").rmdir()
    save(made, 30)
    assert mirror.look()
    assert len(sent) == 2
    clock.now += 61
    assert mirror.look()
    assert len(sent) == 3
    made.exit.write_bytes(ended)
    assert not mirror.look(), "the last copy is made, and that is all"
    state = read_mirror(made)
    assert state is not None
    assert (state.last_step, state.final, state.failing_since) == (30, True, None)
    assert pull(f"{url}/gpt-2", Store(tmp_path / "there")).step == 30


def test_a_failing_address_is_told_tried_again_and_given_up_after_the_end(made: RunPaths) -> None:
    clock, tries, works = Clock(), list[float](), [False]

    def send(_tell: object) -> object:
        tries.append(clock.now)
        if works[0]:
            return SimpleNamespace(step=20, sent_bytes=7, notes=[], seconds=0.1)
        raise StorageError("s3://pods/runs cannot be written: access is refused.")

    ended = made.exit.read_bytes()
    made.exit.unlink()
    mirror = Mirror(made, "s3://pods/runs", send, lambda _: None, clock, clock)  # pyright: ignore[reportArgumentType]
    began = clock.now
    while clock.now < began + 300:
        assert mirror.look()
        clock.now += 1
    assert 4 <= len(tries) <= 9, "with growing waits"
    state = read_mirror(made)
    assert state is not None
    assert "has failed for 5 min" in (state.problem(clock.now) or "")
    works[0] = True
    clock.now += 60
    assert mirror.look()
    state = read_mirror(made)
    assert state is not None
    assert state.problem(clock.now) is None
    works[0] = False
    made.exit.write_bytes(ended)
    began = clock.now
    while mirror.look():
        clock.now += 10
        assert clock.now < began + 2 * mirror_module.GIVE_UP_SECONDS


def test_a_clock_that_is_set_back_holds_up_no_copy(made: RunPaths) -> None:
    made.exit.unlink()
    clock, wall, tries = Clock(), Clock(), list[float]()

    def send(_tell: object) -> object:
        tries.append(clock.now)
        raise StorageError("no line")

    mirror = Mirror(made, "s3://pods/runs", send, lambda _: None, clock, wall)  # pyright: ignore[reportArgumentType]
    assert mirror.look()
    wall.now -= 3600
    for _ in range(300):
        clock.now, wall.now = clock.now + 1, wall.now + 1
        assert mirror.look()
    assert len(tries) >= 5
    state = read_mirror(made)
    assert state is not None
    assert abs(state.told_at - wall.now) < 60
    told = replace(state, failing_since=None)
    assert "said nothing" in (told.problem(wall.now - 3600) or ""), "it is gone, and the clock too"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1" + "0" * 400, '"5"', "[1]"])
def test_a_damaged_state_is_read_as_far_as_it_can_be(made: RunPaths, number: str) -> None:
    for name in ("last_good_at", "last_step", "sent_bytes", "failing_since", "told_at"):
        text = f'{{"url": "s3://pods/runs", "final": 1, "{name}": {number}}}'
        (made.directory / "mirror.json").write_text(text)
        assert read_mirror(made) == MirrorState(url="s3://pods/runs")


def test_the_finding_says_how_old_the_last_good_copy_is(made: RunPaths) -> None:
    run = read_run(made)
    assert run is not None
    facts = Facts(phase="running", elapsed_seconds=1.0, started_at=1.0)
    evidence = Evidence(made, replace(run, mirror="s3://pods/runs"), facts)
    assert not list(rule(evidence)), "nothing was told yet"
    now = time.time()
    good = MirrorState(url="s3://pods/runs", last_good_at=now - 600, last_step=20, told_at=now)
    write_mirror(made, good)
    assert not list(rule(evidence))
    write_mirror(made, replace(good, failing_since=now - 120, error="access is refused."))
    (finding,) = rule(evidence)
    assert "has failed for 2 min" in finding.evidence
    assert "refuse the copy" in finding.cause
    assert "10 min 00 s old and holds step 20" in finding.evidence
    assert "workbench push gpt-2 s3://pods/runs" in finding.next
    write_mirror(made, replace(good, told_at=now - 400))
    (silent,) = rule(evidence)
    assert "said nothing" in silent.evidence
    assert "logs/mirror.log" in silent.cause
    assert not list(rule(Evidence(made, run, facts))), "no mirror was asked for"


def test_checkpoints_that_are_removed_before_they_are_sent_are_a_finding(made: RunPaths) -> None:
    run = read_run(made)
    assert run is not None
    kept = tuple(saved for saved in list_checkpoints(made) if saved.step == 20)
    facts = Facts(phase="running", elapsed_seconds=1.0, started_at=1.0, checkpoints=kept)
    evidence = Evidence(made, replace(run, mirror="s3://pods/runs"), facts)
    now = time.time()
    state = MirrorState(url="s3://pods/runs", last_good_at=now, told_at=now)
    write_mirror(made, state)
    made.saved.write_text("".join(json.dumps({"step": step}) + "\n" for step in (10, 20)))
    assert not list(rule(evidence)), "the second may be under way"
    made.saved.write_text("".join(json.dumps({"step": step}) + "\n" for step in (5, 10, 20)))
    (finding,) = rule(evidence)
    assert "3 newer checkpoints were saved, up to step 20" in finding.evidence
    assert "still holds no checkpoint; 2 of them are gone here" in finding.evidence
    assert "--keep-last 3" in finding.next
    write_mirror(made, replace(state, last_step=10))
    assert not list(rule(evidence)), "a newer one has arrived"


@pytest.mark.slow
def test_a_machine_that_vanishes_loses_one_interval_at_most(
    s3: S3, tmp_path: Path, start: Callable[..., wb.Run]
) -> None:
    words = (*SHAPE, "--steps", "4000")
    run = start("gpt", words, processes=1, name="mirrored", mirror=f"{BUCKET}/runs")
    there = Remote(f"{BUCKET}/runs/mirrored")

    def step() -> int:
        pushed = read_remote_run(there)
        return 0 if pushed is None else pushed.step or 0

    until(step, 240, "the first checkpoint at the address")
    first = step()
    s3.faults({"method": "PUT", "in": "/pods/", "times": 10_000, "do": 403})
    until(lambda: [one for one in run.findings() if one.kind == "mirror-behind"], 240, "a finding")
    assert run.status.live, "the training does not notice"
    s3.faults()
    until(lambda: step() > first, 240, "the next copy")
    for process in _mirrors(run):
        process.kill()
    vanish(run)
    newest = max(one.step or 0 for one in run.checkpoints())
    pulled = pull(there.url, Store(tmp_path / "there"))
    assert pulled.step is not None
    assert pulled.step > first
    assert newest >= pulled.step


def _mirrors(run: wb.Run) -> list[psutil.Process]:
    words = str(run.directory)
    return [
        one
        for one in psutil.process_iter(["cmdline"])
        if words in (one.info["cmdline"] or []) and "workbench.storage" in one.info["cmdline"]
    ]

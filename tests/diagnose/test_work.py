"""What ranks that end no step do meanwhile: compute, wait for their own program, load, or nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tests.conftest import until
from tests.diagnose.test_stacks import BARRIER, LOADER, stack, still
from workbench.diagnose.evidence import Evidence
from workbench.diagnose.facts import Facts, RankFacts
from workbench.diagnose.hang import detection
from workbench.diagnose.hang.detection import HangWatch
from workbench.diagnose.hang.explanation import describe
from workbench.diagnose.hang.stacks import Frame, Stack
from workbench.diagnose.hang.work import Work, awaited_program, work_of
from workbench.observe.pulse import Pulse
from workbench.store import processes
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

HERE = Stack((Frame("/home/me/train.py", 18, "evaluate"),))
THERE = Stack((Frame("/home/me/train.py", 21, "evaluate"),))


def first_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, stacks: list[Stack], share: float
) -> dict[str, float]:
    """Seconds of silence at which each kind is first told; both ranks use `share` of a core."""
    answers = [cycle(stacks), cycle(stacks)]
    monkeypatch.setattr(detection, "ask", lambda *_: 0)
    monkeypatch.setattr(detection, "answer", lambda _paths, rank, _offset: next(answers[rank]))
    beat = Pulse(beats=1, steps=60, phase="forward", time=0.0, monotonic=1000.0)
    paths = RunPaths(folder)
    paths.make_folders()
    watch, told = HangWatch(), dict[str, float]()
    for silence in range(4000):
        rank = RankFacts(alive=True, process_state="S", pulse=beat, cpu_seconds=5 + share * silence)
        facts = Facts(
            phase="running",
            elapsed_seconds=100.0 + silence,
            started_at=0.0,
            monotonic=1000.0 + silence,
            ranks={0: rank, 1: rank},
        )
        for finding in watch.rule(Evidence(paths, RunRecord(device="cuda"), facts)):
            told.setdefault(finding.kind, silence)
    return told


@pytest.mark.parametrize(
    ("stacks", "share", "kind", "at"),
    [
        ([HERE, THERE], 0.15, "long-step", 900),  # an evaluation of an hour
        ([HERE, THERE], 0.01, "hang", 900),  # looks again and again for a file
        ([HERE], 0.01, "hang", 300),  # the patience before the first steps
    ],
)
def test_who_moves_and_computes_is_told_to_be_at_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stacks: list[Stack],
    share: float,
    kind: str,
    at: int,
) -> None:
    told = first_told(tmp_path, monkeypatch, stacks=stacks, share=share)
    assert told.keys() == {kind}
    assert at <= told[kind] < at + 60


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A Python that waits for a program as its standard input tells."""
    code = "import os, subprocess, sys; exec(sys.stdin.readline())"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            for left in processes.descendants(child.pid):
                processes.send_signal(left, 9)
            child.kill()


def tell(parent: subprocess.Popen[str], line: str) -> None:
    assert parent.stdin is not None
    parent.stdin.write(f"{line}\n")
    parent.stdin.flush()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("subprocess.run(['sleep', '60'])", True),
        ("os.system('sleep 60; true')", False),
    ],
)
def test_a_program_that_a_rank_waits_for_is_named(
    parent: subprocess.Popen[str], line: str, *, told: bool
) -> None:
    process = processes.identify(parent.pid)
    assert awaited_program(process, seen_in_stack=told) is None
    tell(parent, line)
    until(lambda: len(processes.descendants(parent.pid)) > 1 - told, 20, "the program")
    if not told and processes.waits_in(parent.pid) in {"", "0"}:
        pytest.skip("this kernel does not tell where a process waits")
    until(
        lambda: (awaited_program(process, seen_in_stack=told) or (0, ""))[1] == "sleep",
        20,
        "its name",
    )


def test_a_process_that_starts_a_program_and_works_on_waits_for_none(
    parent: subprocess.Popen[str],
) -> None:
    tell(parent, "subprocess.Popen(['sleep', '60']); sys.stdin.readline()")
    until(lambda: processes.descendants(parent.pid), 20, "the program")
    assert awaited_program(processes.identify(parent.pid), seen_in_stack=False) is None


def test_what_is_read_and_what_children_do_is_counted(parent: subprocess.Popen[str]) -> None:
    process = processes.identify(parent.pid)
    before = work_of(process)
    assert not work_of(process).goes_on(before)
    tell(parent, "x = open('/dev/zero', 'rb').read(64 << 20); subprocess.run('cat; sleep 60')")
    until(lambda: work_of(process).goes_on(before), 20, "what it read")


def test_children_count_apart() -> None:
    before = Work(children_cpu_seconds=10.0)
    assert Work(children_cpu_seconds=12.0).children_go_on(before, 20.0)
    assert not Work(children_cpu_seconds=10.5).children_go_on(before, 20.0)
    assert Work(children_moved_bytes=2 << 20).children_go_on(Work(), 20.0)
    assert not Work(children_cpu_seconds=12.0, children_moved_bytes=2 << 20).goes_on(before)


def test_ranks_that_all_wait_for_their_loaders_are_not_told_to_wait_for_the_network() -> None:
    found = describe(still(dict.fromkeys(range(2), stack(LOADER)), ["forward"] * 2), 36.0, "15 s")
    assert found.cause == "All ranks wait for their data loaders, in data loading at train.py:22."
    assert "worker processes" in found.next
    assert (
        "network"
        in describe(
            still(dict.fromkeys(range(2), stack(BARRIER)), ["forward"] * 2), 36.0, "15 s"
        ).cause
    )

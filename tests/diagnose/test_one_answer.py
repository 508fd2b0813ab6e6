"""Every face tells the same findings: diagnose, show, view.json and the report, live and ended."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.diagnose.test_recorded import RUNS, unpacked
from workbench.launching.supervise.monitor import RunMonitor
from workbench.launching.supervise.outcome import Verdict
from workbench.launching.supervise.run_state import RunState
from workbench.launching.supervise.supervisor import Supervisor
from workbench.store.files import read_json, write_json_atomic
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

SAMPLER = {"sampler": "RandomSampler", "distributed": False, "shuffle": True, "iterations": 2}


def healthy(paths: RunPaths) -> None:
    """As it was recorded."""


def no_sampler(paths: RunPaths) -> None:
    for rank in (0, 1):
        start = read_json(paths.rank_start(rank)) or {}
        paths.rank_start(rank).write_text(json.dumps(start | {"samplers": [SAMPLER]}))


def change(paths: RunPaths, edit: Callable[[dict[str, Any]], object]) -> None:
    for rank in (0, 1):
        lines = [json.loads(text) for text in paths.rank_metrics(rank).read_text().splitlines()]
        for line in lines:
            edit(line)
        text = "\n".join(json.dumps(line) for line in lines)
        paths.rank_metrics(rank).write_text(text + "\n")


def nan(paths: RunPaths) -> None:
    change(paths, lambda line: line.update(loss=float("nan")) if line["step"] > 30 else None)


def short(paths: RunPaths) -> None:
    """Ended before the rules would have looked twice."""
    no_sampler(paths)
    for rank in (0, 1):
        lines = paths.rank_metrics(rank).read_text().splitlines()[:8]
        paths.rank_metrics(rank).write_text("\n".join(lines) + "\n")


TROUBLES: dict[str, tuple[Callable[[RunPaths], None], set[str]]] = {
    "healthy": (healthy, set()),
    "no sampler": (no_sampler, {"no-distributed-sampler"}),
    "NaN": (nan, {"nan-loss"}),
    "short": (short, {"no-distributed-sampler"}),
}
FAILED = {
    "kind": "missing-key",
    "rank": 1,
    "step": 9,
    "severity": "error",
    "confidence": 0.75,
    "evidence": "train.py:3 in <lambda>",
    "cause": "Rank 1 failed: KeyError: 'a'",
    "next": ".",
}


def told(paths: RunPaths) -> dict[str, list[dict[str, Any]]]:
    """The findings by the face that tells them."""
    run = wb.Run(paths)
    faces = {
        "diagnose --json": [one.answer(run.directory) for one in run.findings()],
        "show --json": run.summary()["findings"],
        "view.json": run.view()["findings"],
    }
    return json.loads(json.dumps(faces))


def same(faces: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    first = faces["diagnose --json"]
    for face, found in faces.items():
        assert found == first, face
    return first


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
@pytest.mark.parametrize("trouble", sorted(TROUBLES))
@pytest.mark.parametrize("name", sorted(RUNS)[:2])
def test_all_faces_tell_the_same(tmp_path: Path, name: str, trouble: str, outcome: str) -> None:
    paths = unpacked(tmp_path, name)
    spoil, expected = TROUBLES[trouble]
    spoil(paths)
    paths.exit.unlink()
    run = (read_json(paths.run) or {}) | {
        "run": tmp_path.name,
        "name": "x",
        "environment": {},
        "command": ["x"],
        "marker": "none",
        "capture": True,
        "script": "train.py",
        "arguments": [],
        "device": "cpu",
        "recovery": {},
        "schema": 1,
    }
    paths.run.write_text(json.dumps(run))
    supervisor = Supervisor(RunState.of(paths, RunRecord.of(run)))
    supervisor.state.attempts.begin(first_step=0, checkpoint=None, why=None, arguments=None)
    watch = RunMonitor(supervisor.state, supervisor.ranks, begins=True)
    for _ in range(3):
        watch.look()
        same(told(paths))
    finding = Finding.read(FAILED) if outcome == "failed" else None
    verdict = Verdict(outcome=outcome, message="over", failed_rank=None, finding=finding)
    watch.judge(0)
    watch.finish(0 if finding is None else 1, verdict, 0)
    found = same(told(paths))
    kinds = {one["kind"] for one in found if one["cleared_at"] is None}
    assert kinds == expected | ({"missing-key"} if finding else set())
    if finding:  # before those that were seen earlier
        assert (found[0]["kind"], found[0]["ended_run"]) == ("missing-key", True)
    page = paths.report.read_text()
    for one in found:
        assert html.escape(one["cause"]) in page
        assert html.escape(one["next"]) in page
    assert ("No findings." in page) is not found


def test_a_run_that_ended_unwatched_has_one_answer_too(tmp_path: Path) -> None:
    paths = unpacked(tmp_path, min(RUNS))
    no_sampler(paths)
    run = wb.Run(paths)
    found = [one.answer(run.directory) for one in run.findings()]
    assert [one["kind"] for one in found] == ["no-distributed-sampler"]
    assert run.summary()["findings"] == found
    assert not paths.findings.exists()


def test_the_reader_knows_every_field() -> None:
    numbers = {"confidence": 0.5, "rank": 1, "step": 2, "seen_at": 3.0, "cleared_at": 4.0} | {
        "lost_share": 0.5,
        "lost_usd_per_hour": 2.0,
        "node": 3,
        "gpu": 5,
        "ended_run": True,
    }
    words = {"kind": "hang", "evidence": "a", "cause": "b", "next": "c", "severity": "note"} | {
        "phase": "input",
        "replaced_by": "deadlock@1",
    }
    assert {one.name for one in fields(Finding)} == numbers.keys() | words.keys()
    finding = Finding(**numbers, **words)
    assert Finding.read(finding.document()) == finding


def test_what_ended_a_run_comes_before_an_error_that_was_seen_earlier(tmp_path: Path) -> None:
    paths = unpacked(tmp_path, min(RUNS))
    first = Finding.read(FAILED)
    assert first is not None
    early = replace(first, kind="world-size", cause="Another size.", seen_at=1.0)
    late = replace(first, seen_at=2.0, cleared_at=None)
    listed = [early.document(), late.document()]
    write_json_atomic(paths.findings, {"schema": 1, "findings": listed})
    write_json_atomic(paths.exit, {"outcome": "failed", "finding": first.document()})
    assert [one.kind for one in wb.Run(paths).findings()] == ["missing-key", "world-size"]

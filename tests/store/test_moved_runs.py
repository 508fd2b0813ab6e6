"""A run that someone else starts than its user, in a store that lies elsewhere than it did."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.errors import ForeignRunError, UsageError
from workbench.launching import lead_node
from workbench.launching.multinode.node_spec import node_start
from workbench.launching.prepare.acceptance import check_accepted
from workbench.launching.prepare.moved import record_here
from workbench.launching.resume.resumable import why_not_resumable
from workbench.launching.start import queued
from workbench.launching.start.start import prepare
from workbench.store.files import read_texts, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import DIRECTORY
from workbench.store.record import read_record

ADDRESS = "127.0.0.1"
Move = Callable[..., tuple[RunPaths, str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The specs of supervisors that would have been started."""
    specs = list[Any]()
    for module in (lead_node, queued):
        monkeypatch.setattr(
            module, "spawn_supervisor", lambda _paths, spec, **_: specs.append(spec)
        )
    monkeypatch.setattr(lead_node, "has_continued", lambda *_: True)
    return specs


@pytest.fixture
def moved(tmp_path: Path) -> Move:
    """A run of several machines, or one, in a store that was moved since; and where it lay."""

    def make(nodes: int, **more: Any) -> tuple[RunPaths, str]:
        store = tmp_path / "runs"
        how: dict[str, Any] = {"address": ADDRESS} if nodes > 1 else {}
        request = wb.request(
            "gpt", ["--steps", "9"], cpu=True, processes=2, nodes=nodes, store=store, **how, **more
        )
        paths, _ = prepare(request)
        store.rename(tmp_path / "elsewhere")
        return RunPaths(tmp_path / "elsewhere" / paths.directory.name), str(paths.directory)

    return make


def assert_here(paths: RunPaths, before: str, spec: Any) -> None:
    run = read_record(paths)
    assert run.environment[DIRECTORY] == str(paths.directory)
    assert not [word for word in (*spec["launcher"], *run.command) if before in word]
    assert str(paths.config / "accelerate.yaml") in spec["launcher"]
    assert not [text for text in read_texts(paths.config, 1 << 20).values() if before in text]


@pytest.mark.parametrize("nodes", [2, 1])
def test_an_engine_starts_it_where_it_lies_now(moved: Move, started: list[Any], nodes: int) -> None:
    paths, before = moved(nodes, strategy="fsdp")
    lead_node._begin(paths, ADDRESS, 29_500, lambda _: None)
    assert_here(paths, before, started[0])
    if nodes > 1:
        order: Any = {
            "attempt": 1,
            "phase": "go",
            "address": ADDRESS,
            "port": 29_500,
            "arguments": started[0]["arguments"],
            "environment": {},
            "first_step": 0,
        }
        assert (
            str(paths.config / "accelerate.yaml")
            in node_start(paths, read_record(paths), order, 1).argv
        )


def test_its_queue_starts_it_where_it_lies_now(moved: Move, started: list[Any]) -> None:
    paths, before = moved(1, strategy="fsdp")
    queued.start_queued(paths, ())
    assert_here(paths, before, started[0])


def test_a_record_that_no_one_accepted_is_not_made_ones_own_by_moving_it(
    moved: Move, started: list[Any]
) -> None:
    paths, _ = moved(2)
    document = {**read_record(paths).document(), "vouched": []}
    write_json_atomic(paths.run, document)
    with pytest.raises(ForeignRunError):
        lead_node._begin(paths, ADDRESS, 29_500, lambda _: None)
    assert not started
    assert read_record(paths).document() == document


def test_a_volume_that_another_machine_mounts_at_the_same_place(tmp_path: Path) -> None:
    """The environment of the machine before was not on it: this one's Python is taken."""
    folder = tmp_path / "project"
    folder.mkdir()
    options = {"cpu": True, "processes": 2, "store": tmp_path / "runs"}
    paths, _ = prepare(replace(wb.request("gpt", **options), working_directory=folder))
    before = read_record(paths)
    assert record_here(paths, before) == (before, [])
    gone = replace(before, command=["/gone/venv/bin/python3", *before.command[1:]])
    here, notes = record_here(paths, gone)
    assert here.command == [sys.executable, *before.command[1:]]
    assert notes == [f"/gone/venv/bin/python3 is not on this machine: {sys.executable} is used."]
    check_accepted(paths, here)
    write_json_atomic(paths.exit, {"outcome": "failed", "message": "It failed."})
    assert not why_not_resumable(paths)
    folder.rmdir()
    with pytest.raises(UsageError, match="project, which no longer exists"):
        record_here(paths, before)
    assert "no longer exists" in why_not_resumable(paths)

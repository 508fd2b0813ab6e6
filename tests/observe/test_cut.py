"""Metric lines beyond a checkpoint make room for the steps that happen again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.store.cut_lines import cut_after


def line(step: int, filler: int = 0) -> bytes:
    return json.dumps({"step": step, "time": 1.0, "x": "y" * filler}).encode() + b"\n"


@pytest.mark.parametrize("filler", [0, 3000])  # within one block, and over many
@pytest.mark.parametrize("step", [0, 1, 57, 99, 100, 200])
def test_lines_beyond_the_step_are_moved(tmp_path: Path, step: int, filler: int) -> None:
    metrics, lost = tmp_path / "rank-0.jsonl", tmp_path / "lost.jsonl"
    lines = [line(number, filler) for number in range(1, 101)]
    metrics.write_bytes(b"".join(lines))
    assert cut_after(metrics, step, lost) == max(0, 100 - step)
    assert metrics.read_bytes() == b"".join(lines[:step])
    assert (lost.read_bytes() if lost.exists() else b"") == b"".join(lines[step:])


def test_torn_and_broken_lines_go_with_what_came_after_them(tmp_path: Path) -> None:
    metrics, lost = tmp_path / "rank-0.jsonl", tmp_path / "lost.jsonl"
    kept = line(1) + b"\x00broken\n" + line(2)
    metrics.write_bytes(kept + b"[1]\n" + line(3) + b'{"step": 4, "ti')
    cut_after(metrics, 2, lost)
    assert metrics.read_bytes() == kept
    assert lost.read_bytes() == b"[1]\n" + line(3) + b'{"step": 4, "ti\n'


def test_a_file_that_is_not_there_is_nothing_to_cut(tmp_path: Path) -> None:
    assert cut_after(tmp_path / "rank-0.jsonl", 5, tmp_path / "lost.jsonl") == 0

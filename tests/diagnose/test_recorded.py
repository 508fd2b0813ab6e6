"""Recorded runs: healthy ones say nothing, even those of a machine with seven times its load."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from workbench.diagnose.offline import diagnose, diagnose_offline
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths

DATA = Path(__file__).parent / "data" / "healthy.json.gz"
RUNS: dict[str, dict[str, str]] = json.loads(gzip.decompress(DATA.read_bytes()))


def unpacked(folder: Path, name: str) -> RunPaths:
    paths = RunPaths(folder)
    paths.make_folders()
    for file, text in RUNS[name].items():
        (folder / file).write_text(text)
    return paths


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_healthy_run_says_nothing(tmp_path: Path, name: str) -> None:
    paths = unpacked(tmp_path, name)
    assert diagnose_offline(paths) == []
    assert not paths.findings.exists()  # looking back writes nothing


@pytest.mark.parametrize("name", sorted(RUNS))
def test_the_same_run_with_one_rank_made_slow(tmp_path: Path, name: str) -> None:
    """The recorded times with 40 % of each step added before rank 1's backward pass."""
    paths = unpacked(tmp_path, name)
    for rank in (0, 1):
        lines, shift = [], 0.0
        for text in paths.rank_metrics(rank).read_text().splitlines():
            line = json.loads(text)
            lag = 2.0 * line.get("step_seconds", 0.0)
            line["backward_at"] += shift + (lag if rank == 1 else 0.0)
            shift += lag
            line["time"] += shift
            line["step_seconds"] = line.get("step_seconds", 0.0) + lag
            lines.append(json.dumps(line))
        paths.rank_metrics(rank).write_text("\n".join(lines) + "\n")
    found = [one for one in diagnose_offline(paths) if one.kind == "straggler"]
    assert [one.rank for one in found] == [1]


def test_what_was_kept_goes_before_what_can_be_worked_out(tmp_path: Path) -> None:
    paths = unpacked(tmp_path, min(RUNS))
    kept = {"kind": "hang", "evidence": "e", "cause": "c", "next": "n", "confidence": 0.9}
    write_json_atomic(paths.findings, {"findings": [kept | {"unknown": 1}, {"kind": 3}, 7]})
    write_json_atomic(paths.exit, {"outcome": "failed", "finding": kept | {"kind": "rank-failed"}})
    assert {one.kind for one in diagnose(paths)} == {"hang", "rank-failed"}


def test_a_run_that_cannot_be_read_has_no_findings(tmp_path: Path) -> None:
    assert diagnose(RunPaths(tmp_path)) == []

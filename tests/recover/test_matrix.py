"""Checkpoints of every layout are loaded by every other one, to the last bit: see matrix.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import matrix

ROOT = Path(__file__).parents[2]


def run(arguments: list[str], folder: Path) -> dict[str, object]:
    """In a process of its own: ranks are forks of one that has computed nothing."""
    result = folder / "result.json"
    command = [sys.executable, "-m", matrix.__name__, *arguments, "--result", str(result)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.exists(), done.stdout + done.stderr
    return json.loads(result.read_text())


@pytest.mark.slow
def test_layouts_that_differ_in_all_ways_load_each_others_checkpoints(tmp_path: Path) -> None:
    only = [word for name in matrix.REPRESENTATIVE for word in ("--only", name)]
    found = run([*only, "--pairs", "third"], tmp_path)
    assert found["wrong"] == {}
    assert found["settings"] == len(matrix.REPRESENTATIVE)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_pair_of_layouts(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="pip install 'training-workbench[deepspeed]'")
    found = run(["--pairs", "pairwise"], tmp_path)
    assert found["wrong"] == {}
    assert found["cells"] > 500


def test_every_combination_is_a_setting_or_refused_with_a_reason() -> None:
    offered, refused = matrix.settings()
    assert len(offered) + len(refused) == len(matrix.STRATEGIES) * len(matrix.OPTIONS)
    assert {one.layout for one in offered} == {
        f"{name} x{ranks}" for name, ranks in matrix.STRATEGIES
    }
    assert set(matrix.REPRESENTATIVE) <= {one.name for one in offered}
    assert all(refused.values())


def test_a_cell_says_what_differs() -> None:
    def state(**digests: str) -> dict[str, object]:
        return {"saved": digests, "random": "r", "after": {}}

    good = [state(a="1", b="2")]
    assert matrix.compare(good, good, same=True) == matrix.EXACT
    assert "other names: ['c']" in matrix.compare(good, [state(a="1", b="2", c="3")], same=False)
    assert "other bits in 1 of 2: ['b']" in matrix.compare(good, [state(a="1", b="3")], same=False)
    assert "random states" in matrix.compare(good, [{**good[0], "random": "s"}], same=False)
    assert "next step" in matrix.compare(good, [{**good[0], "after": {"a": "9"}}], same=True)
    assert matrix.compare(good, [{"refused": "no"}], same=False) == "refused: no"

"""Checkpoints of every layout are loaded by every other one, to the last bit: see matrix.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import matrix, matrix_pairs, matrix_record

ROOT = Path(__file__).parents[2]


def run(arguments: list[str], folder: Path) -> dict[str, object]:
    """In a process of its own: ranks are forks of one that has computed nothing."""
    result = folder / "result.json"
    command = [sys.executable, "-m", matrix.__name__, *arguments, "--result", str(result)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.exists(), done.stdout + done.stderr
    return json.loads(result.read_text())


@pytest.mark.full
@pytest.mark.slow
def test_layouts_that_differ_in_all_ways_load_each_others_checkpoints(tmp_path: Path) -> None:
    only = [word for name in matrix.REPRESENTATIVE for word in ("--only", name)]
    found = run([*only, "--pairs", "third"], tmp_path)
    assert found["wrong"] == {}
    assert found["settings"] == len(matrix.REPRESENTATIVE)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_sample_of_the_pairs_of_layouts(tmp_path: Path) -> None:
    """Each layout with and without options; `make matrix` has all pairs."""
    pytest.importorskip("deepspeed", reason="pip install 'training-workbench[deepspeed]'")
    found = run(["--pairs", "sample"], tmp_path)
    assert found["wrong"] == {}
    assert found["cells"] > 100


def test_every_combination_is_a_setting_or_refused_with_a_reason() -> None:
    offered, refused = matrix.settings()
    assert len(offered) + len(refused) == len(matrix.STRATEGIES) * len(matrix.OPTIONS)
    assert {one.layout for one in offered} == {
        f"{name} x{ranks}" for name, ranks in matrix.STRATEGIES
    }
    assert set(matrix.REPRESENTATIVE) <= {one.name for one in offered}
    sample = matrix_pairs.two_of_each_layout(offered)
    assert {one.layout for one in sample} == {one.layout for one in offered}
    assert {one.name.removeprefix(one.layout).strip() for one in sample} == set(matrix.OPTIONS)
    assert all(refused.values())


def test_a_cell_says_what_differs() -> None:
    def state(**digests: str) -> dict[str, object]:
        return {"saved": digests, "random": "r", "after": {}, "norms": {"a": 1.0}}

    good = [state(a="1", b="2")]
    assert matrix.compare(good, good, same=True) == matrix.EXACT
    assert "other names: ['c']" in matrix.compare(good, [state(a="1", b="2", c="3")], same=False)
    assert "other bits in 1 of 2: ['b']" in matrix.compare(good, [state(a="1", b="3")], same=False)
    assert "random states" in matrix.compare(good, [{**good[0], "random": "s"}], same=False)
    assert "next step" in matrix.compare(good, [{**good[0], "after": {"a": "9"}}], same=True)
    assert matrix.compare(good, [{"refused": "no"}], same=False) == "refused: no"
    of_three, rounded = good * 3, {**good[0], "after": {"a": "9"}, "norms": {"a": 1 + 1e-7}}
    assert matrix.compare(of_three, [rounded] * 3, same=True) == matrix.CLOSE
    wrong = {**rounded, "norms": {"a": 1.01}}
    assert "next step" in matrix.compare(of_three, [wrong] * 3, same=True)


def test_a_table_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = matrix_record.Record(tmp_path / "table")
    before.add("a", "b", matrix.EXACT, 1.5)
    before.write("a", [{"saved": {}}])
    for rank in range(2):
        matrix_record.append_loaded(before.loads("b"), rank, {"of": "a", "saved": {}})
    matrix_record.append_loaded(
        before.loads("b"), 0, {"of": "c", "saved": {}}
    )  # rank 1 is not done
    with (tmp_path / "table/cells.jsonl").open("a") as file:
        file.write('{"row": "a", "colu')
    after = matrix_record.Record(tmp_path / "table")
    assert (after.cells, after.cpu_seconds) == ({("a", "b"): matrix.EXACT}, 1.5)
    assert list(after.loaded("b", 2)) == ["a"]
    assert after.written("a") == [{"saved": {}}]
    assert after.written("c") is None
    assert not after.began_anew
    monkeypatch.setattr(matrix_record, "state", lambda: "of other code")
    anew = matrix_record.Record(tmp_path / "table")
    assert anew.began_anew
    assert anew.cells == {}

"""``workbench compare``, ``runs`` with conditions, ``tag``, ``note``, ``archive``, ``delete``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import workbench as wb
from tests.cli.conftest import Command
from tests.compare.made_runs import make_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs", "quick", slow=20)
    make_run(tmp_path / "runs", "slow", slow=60, age=1, arguments=["--lr", "1e-4"])
    make_run(tmp_path / "runs", "poor", floor=4.0, age=2, outcome="failed")
    return tmp_path / "runs"


def test_compare(command: Command, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    options = ("--by", "usd", "--loss", "2.5", "--csv", str(file), "--store", str(root))
    seen = command("compare", "quick", "slow", "poor", *options, "--json")
    assert seen.code == 0, seen.err
    document = json.loads(seen.out)
    assert document["runs"] == ["quick", "slow", "poor"]
    assert [one["what"] for one in document["configuration"]] == ["argument --lr"]
    assert document["reach"]["runs"]["poor"] is None
    assert document["reach"]["runs"]["quick"]["usd"] < document["reach"]["runs"]["slow"]["usd"]
    assert document["aligned"]["by"] == "usd"
    with file.open(newline="") as lines:
        assert len(list(csv.DictReader(lines))) == 600
    table = command("compare", "quick", "slow", "poor", *options)
    assert table.code == 0
    for words in (
        "argument --lr",
        "To a loss of 2.5 (given)",
        "never",
        "peak memory",
        "aligned by",
    ):
        assert words in table.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "quick"), "2 to 10 different"),
        (("compare", "quick", "nobody"), "Unknown run 'nobody'"),
        (("compare", "quick", "slow", "--by", "zzz"), "Known: step, time, tokens, usd"),
        (("compare", "quick", "slow", "--parquet", "x.csv"), "ends in .parquet"),
        (("runs", "--where", "los<2"), "Did you mean loss"),
        (("runs", "--sort", "price"), "Unknown field of runs"),
        (("tag", "quick", "two words"), "is no tag"),
        (("delete", "qui", "--yes"), "give its whole id"),
        (("delete", "quick"), "Confirm with --yes"),
    ],
)
def test_wrong_usage(command: Command, root: Path, words: tuple[str, ...], message: str) -> None:
    seen = command(*words, "--store", str(root), columns=400)
    assert seen.code == 2
    assert message in seen.err
    assert len(wb.runs(root)) == 3


def test_runs_chosen_sorted_written(command: Command, root: Path, tmp_path: Path) -> None:
    where = ("--store", str(root), "--json")
    found = json.loads(command("runs", "--where", "loss<3", "--sort", "loss", *where).out)
    assert [one["run"] for one in found] == ["quick", "slow"]
    assert set(wb.runs(root)[0]) <= set(found[0])  # the contract's keys
    file = tmp_path / "runs.csv"
    seen = command("runs", "--store", str(root), "--csv", str(file), "--where", "outcome=failed")
    assert "2 of 3 runs are not what was asked for" in seen.err
    with file.open(newline="") as lines:
        assert [one["run"] for one in csv.DictReader(lines)] == ["poor"]


def test_labels_and_deletion(command: Command, root: Path) -> None:
    where = ("--store", str(root))
    assert command("tag", "quick", "a", "b", *where).out == "quick  tags: a b\n"
    seen = command("tag", "quick", "c", "--remove", "a", *where, "--json")
    assert json.loads(seen.out)["tags"] == ["b", "c"]
    assert "note: first" in command("note", "quick", "first", *where).out
    listed = json.loads(command("runs", "--tag", "c", *where, "--json").out)
    assert [(one["run"], one["note"]) for one in listed] == [("quick", "first")]
    command("archive", "slow", "poor", *where)
    assert len(json.loads(command("runs", *where, "--json").out)) == 1
    assert len(json.loads(command("runs", "--all", *where, "--json").out)) == 3
    command("archive", "slow", "--undo", *where)
    freed = json.loads(command("delete", "poor", "quick", "--yes", *where, "--json").out)
    assert [one["run"] for one in freed] == ["poor", "quick"]
    assert all(one["bytes"] > 0 for one in freed)
    assert [one["run"] for one in wb.runs(root)] == ["slow"]

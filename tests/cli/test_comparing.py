"""``workbench compare``, ``runs`` with conditions, ``tag``, ``note``, ``archive``, ``delete``."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.cli.conftest import Command
from tests.compare.made_runs import make_run
from workbench.observe.work_clock import recent_attempts
from workbench.store.layout import RunPaths


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


def test_the_steps_of_one_run_as_a_file(command: Command, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    seen = command("metrics", "quick", "--csv", str(file), "--store", str(root))
    assert (seen.code, seen.out) == (0, "")
    assert f"200 steps of 1 run written to {file}" in " ".join(seen.err.split())
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 201)]
    assert {row["run"] for row in rows} == {"quick"}


def test_what_a_fork_leaves_out_is_said(command: Command, root: Path) -> None:
    make_run(root, "fork", resumed_from={"run": "quick", "step": 40})
    options = ("--store", str(root))
    said = "fork began at step 40 of quick: its steps and tokens include those, its time, cost"
    assert said in command("compare", "quick", "fork", *options).out
    assert "began at step" not in command("compare", "quick", "slow", *options).out


def change_view(root: Path, run: str, **more: object) -> None:
    view = RunPaths(root / run).view
    view.write_text(json.dumps(json.loads(view.read_text()) | more))


def test_a_loss_that_is_no_number_is_said(command: Command, root: Path, tmp_path: Path) -> None:
    change_view(root, "poor", nonfinite_step=7)
    place = ("--store", str(root))
    row = "first NaN or infinite loss at step"
    assert row not in command("compare", "quick", "slow", *place).out
    assert row in command("compare", "quick", "poor", *place).out
    watched = command("attach", "poor", *place).out
    assert "First NaN or infinite loss at step 7" in watched
    assert f"workbench diagnose poor --store {root}" in watched
    for told in (watched, command("show", "poor", *place).out, command("runs", *place).out):
        assert "(first NaN or infinite at step 7)" in " ".join(told.split())
    assert "workbench diagnose poor" in watched
    for said in (command("show", "poor", *place).out, command("runs", *place).out):
        assert "(first NaN or infinite at step 7)" in " ".join(said.split())  # it may be over
    file = tmp_path / "runs.csv"
    command("runs", *place, "--csv", str(file))
    with file.open(newline="") as lines:
        steps = {one["run"]: one["nonfinite_step"] for one in csv.DictReader(lines)}
    assert steps == {"quick": "", "slow": "", "poor": "7"}


def test_columns_are_headed_by_ids(command: Command, root: Path) -> None:
    make_run(root, "quick-2", name="slow")
    seen = command("compare", "slow", "quick-2", "--store", str(root))
    assert ["slow", "quick-2"] in [line.split() for line in seen.out.splitlines()]


def test_without_a_price_it_says_so(command: Command, root: Path) -> None:
    for run in ("free", "gift"):
        make_run(root, run, usd_per_hour=None)
    seen = command("compare", "free", "gift", "--by", "usd", "--store", str(root))
    assert "The price of free, gift is unknown." in seen.out
    assert "WORKBENCH_USD_PER_HOUR" in seen.out


def test_show_says_what_people_and_resumes_said(command: Command, root: Path) -> None:
    begun = {"attempt": 1, "event": "start", "time": 1.7e9, "first_step": 0}
    ended = {"attempt": 1, "event": "end", "time": 1.7e9, "last_step": 491}
    again = begun | {"attempt": 2, "first_step": 491, "why": "resumed by hand"}
    attempts = [begun, ended, again | {"arguments": ["--minutes", "0.3"]}]
    change_view(root, "quick", attempts=attempts)
    place = ("--store", str(root))
    plain = command("show", "quick", *place).out
    assert not {"tags", "note", "report"} & {line.split()[0] for line in plain.splitlines()}
    RunPaths(root / "quick").report.write_text("<html></html>")
    command("tag", "quick", "good", *place)
    command("note", "quick", "the [red]first", *place)
    shown = command("show", "quick", *place, columns=300).out
    for words in (
        *("from attempt 2 on: --minutes 0.3", "good", "the [red]first", "report.html"),
        "from step 491 (no step repeated): resumed by hand",
    ):
        assert words in shown


def test_show_says_of_how_many_attempts_it_has_no_lines(command: Command, root: Path) -> None:
    lines = list[dict[str, Any]]()
    for attempt in range(1, 31):
        begun = {"attempt": attempt, "event": "start", "time": 1.7e9 + attempt, "first_step": 0}
        words = {"arguments": ["--minutes", "0.3"]} if attempt in {5, 8} else {}
        ended = {"attempt": attempt, "event": "end", "time": 1.7e9 + attempt, "last_step": 0}
        lines += [begun | words, ended]
    change_view(root, "quick", **recent_attempts(lines))
    shown = command("show", "quick", "--store", str(root), columns=300).out
    assert "the first 10 are not listed" in shown
    assert shown.count("from step 0") == 20
    assert "from attempt 5 on: --minutes 0.3" in shown


def test_stop_ends_its_sentences(command: Command, root: Path) -> None:
    said = command("stop", "quick", "--store", str(root)).out.splitlines()
    assert said == ["succeeded: Done.", "No process of the run remains."]


def test_an_ended_run_names_the_profile_it_has(command: Command, root: Path) -> None:
    place = ("--store", str(root))
    assert "--show" not in command("profile", "quick", *place).err
    (RunPaths(root / "quick").profiles / "step-00000006").mkdir(parents=True)
    assert "workbench profile quick --show" in command("profile", "quick", *place).err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "quick"), "2 to 10 different"),
        (("compare", "quick", "nobody"), "Unknown run 'nobody'"),
        (("compare", "quick", "slow", "--by", "zzz"), "Known: step, time, tokens, usd"),
        (("compare", "quick", "slow", "--parquet", "x.csv"), "ends in .parquet"),
        (("compare", "quick", "slow", "--csv", "x.parquet"), "Give --parquet x.parquet"),
        (("runs", "--parquet", "x.csv"), "ends in .parquet"),
        (("runs", "--csv", "x.parquet"), "Give --parquet x.parquet"),
        (("runs", "--where", "los<2"), "Did you mean loss"),
        (("runs", "--sort", "price"), "Unknown field of runs"),
        (("tag", "quick", "two words"), "is not a tag"),
        (("delete", "qui", "--yes"), "give its full id"),
        (("delete", "quick"), "Pass --yes"),
        (("metrics", "quick", "--csv", "x.csv", "--tail", "2"), "leave out --tail"),
        (("metrics", "quick", "--tail", "1k"), "Write it in full: 1000 or 1024."),
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
    assert "2 of 3 runs do not match the filter" in seen.err
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
    (gone,) = json.loads(command("delete", str(root / "slow"), "--yes", "--json").out)
    assert (gone["run"], wb.runs(root)) == ("slow", [])

"""The Compare face without a browser: options, what is ticked, labels, deletion, refusals."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Compare, RunDashboard, Runs

import workbench as wb
from tests.compare.made_runs import make_run
from tests.conftest import until
from workbench.compare.runs import compare
from workbench.store.labels import change_labels, read_labels


@pytest.fixture
def store(tmp_path: Path) -> wb.Store:
    root = tmp_path / "runs"
    for number in range(3):
        make_run(root, f"run-{number}", steps=60, slow=20 + 10 * number, age=number)
    change_labels(make_run(root, "old", steps=5), archived=True)
    return wb.Store(root)


def told(face: Compare, message: dict[str, Any]) -> dict[str, Any]:
    """What the face says to a message of the page."""
    sent: list[dict[str, Any]] = []
    face.send = lambda message, buffers=None: sent.append(message)
    face._on_message(face, message, [])
    until(lambda: sent, what=f"an answer to {message}")
    return sent[0]


def test_options(store: wb.Store) -> None:
    with pytest.raises(TypeError, match=r"Compare has no option 'run'; its options are .*runs"):
        Compare(store=store.root, run=["run-1"])
    with pytest.raises(wb.RunNotFoundError):
        Compare(store=store.root, runs=["nobody"])
    with pytest.raises(wb.UsageError, match="is not a condition"):
        Compare(store=store.root, where="loss")
    assert Compare(store=store.root.parent / "empty").rows == []


def test_runs_are_given_in_a_list_by_name_handle_or_row(store: wb.Store) -> None:
    handle = wb.attach("run-1", store.root)
    row = next(row for row in wb.runs(store.root) if row["run"] == "run-2")
    assert Compare(["run-0", handle, row], store=store.root).picked == ["run-0", "run-1", "run-2"]
    assert Compare("run-0", store=store.root).picked == ["run-0"]
    with pytest.raises(wb.UsageError, match="1 run given; give 2 to"):
        compare(store, "run-0")


@pytest.mark.parametrize("given", [["run-0", "run-1"], ("run-0",), {"run": "run-0"}, None, 7])
def test_one_run_is_no_list(store: wb.Store, given: Any) -> None:
    with pytest.raises(wb.UsageError, match="Give one run by its id"):
        wb.attach(given, store.root)
    if given and given != 7:
        with pytest.raises(wb.UsageError, match="Give one run by its id"):
            RunDashboard(given)


def test_a_curve_for_each_logged_name(tmp_path: Path) -> None:
    for run, better in (("a", 0.0), ("b", 0.5)):
        paths = make_run(tmp_path, run, steps=60, view=False)
        with paths.rank_said(0).open("w") as file:
            for step in (10, 25, 60):
                values = {"eval/loss": 3.0 - better - step / 100}
                said = {"step": step, "time": 1.7e9 + step / 2, "values": values}
                file.write(json.dumps(said) + "\n")
    face = Compare(store=tmp_path, runs=["a", "b"])
    assert face.comparison["logged"] == ["loss", "eval/loss"]
    assert len(face.comparison["curves"]["a"]["step"]) == 60
    told(face, {"type": "show", "name": "eval/loss"})
    curve = face.comparison["curves"]["b"]
    assert face.comparison["shown"] == "eval/loss"
    assert curve["loss"] == [2.4, 2.25, 1.9]
    assert curve["tokens"] == [10_240, 25_600, 61_440]
    assert curve["usd"] == pytest.approx([0.01, 0.025, 0.06])  # 7.2 $/h, half a second a step
    told(face, {"type": "show", "name": "of another store"})
    assert face.comparison["shown"] == "loss"


def test_ticked_runs_are_set_beside_each_other(store: wb.Store) -> None:
    face = Compare(store=store.root, runs=["run-0"])
    assert face.comparison == {}
    assert [row["run"] for row in face.rows] == ["run-2", "run-1", "run-0"]
    assert told(face, {"type": "pick", "runs": ["run-0", "run-1", "run-1"]})["bad"] is False
    assert face.picked == ["run-0", "run-1"]
    assert len(face.comparison["curves"]["run-1"]["loss"]) == 60
    assert face.comparison["reach"]["chosen"] == "highest last loss"
    told(face, {"type": "pick", "runs": ["run-0", "run-1"], "loss": 3.0})
    reach = face.comparison["reach"]
    assert reach["loss"] == 3.0
    assert reach["runs"]["run-0"]["step"] < reach["runs"]["run-1"]["step"]
    assert "run-0: loss 3.0 at step" in repr(face)
    face.close()


def test_a_run_that_went_on_is_listed_as_it_is_set_beside_the_others(store: wb.Store) -> None:
    face = Compare(store=store.root)
    view = store.find("run-1").view
    later = {"steps": 61, "nonfinite_step": 61, "loss_last": 272_366_347_508_252_670.0}
    view.write_text(json.dumps(json.loads(view.read_text()) | later))
    assert told(face, {"type": "pick", "runs": ["run-0", "run-1"]})["bad"] is False
    (row,) = (row for row in face.rows if row["run"] == "run-1")
    assert {name: row[name] for name in later} == later
    (steps,) = (one for one in face.comparison["results"] if one["what"] == "steps")
    assert steps["values"]["run-1"] == 61


def test_runs_that_are_not_there_are_named_and_nothing_changes(store: wb.Store) -> None:
    face = Compare(store=store.root, runs=["run-0", "run-1"])
    with pytest.raises(wb.RunNotFoundError, match=r"run-9.*Did you mean run-"):
        face.pick(["run-0", "run-9"], loss=3.0)
    with pytest.raises(wb.RunNotFoundError, match=r"No runs 'x', '\.\./y' in "):
        face.pick(["x", "run-2", "../y"])
    with pytest.raises(wb.RunNotFoundError, match=r"No runs 'x', 'y' in "):
        Compare(store=store.root, runs=["x", "y"])
    said = told(face, {"type": "pick", "runs": ["run-0", "old", "../x"]})
    assert (said["bad"], said["text"]) == (True, "Not listed here: 'old', '../x'. Press Refresh.")
    assert face.picked == ["run-0", "run-1"]
    face.pick(["old", "run-2"])  # by hand, also what the table does not show
    assert face.picked == ["old", "run-2"]
    for number in range(3, 11):
        make_run(store.root, f"run-{number}", steps=5)
    with pytest.raises(wb.UsageError, match="11 runs given"):
        face.pick([f"run-{number}" for number in range(11)])


def test_a_name_that_another_run_has_too_gives_way_to_the_id(store: wb.Store) -> None:
    make_run(store.root, "run-0-2", name="run-0", steps=60)  # run-0 is another run's id
    make_run(store.root, "again", name="mine", steps=60)
    compare = Compare(store=str(store.root), runs=["run-0-2", "again"])
    assert compare.comparison["names"] == {"run-0-2": "run-0-2", "again": "mine"}


def test_ten_long_runs_are_one_short_message(store: wb.Store) -> None:
    for number in range(3, 10):
        make_run(store.root, f"run-{number}", steps=700, ranks=1)
    face = Compare(store=store.root, runs=[f"run-{number}" for number in range(10)])
    text = json.dumps(face.comparison, allow_nan=False)
    assert len(face.comparison["curves"]) == 10
    assert len(text) < 200_000
    assert math.isclose(face.comparison["curves"]["run-9"]["step"][-1], 700)
    face.close()


def test_the_list_is_filtered_and_sorted_by_what_the_command_takes(store: wb.Store) -> None:
    face = Compare(store=store.root, where="loss<2.5")
    assert [row["run"] for row in face.rows] == ["run-1", "run-0"]
    assert told(face, {"type": "list", "where": "lss<2"})["bad"] is True
    assert face.listed["where"] == "loss<2.5"  # as it was
    told(face, {"type": "list", "where": "", "archived": True, "sort": "loss_last"})
    assert [row["run"] for row in face.rows] == ["run-0", "run-1", "run-2", "old"]
    assert (face.listed["found"], face.listed["of"]) == (4, 4)
    face.close()


def test_labels_are_written_and_shown(store: wb.Store) -> None:
    face = Compare(store=store.root)
    told(face, {"type": "label", "run": "run-1", "tags": "lr base"})
    told(face, {"type": "label", "run": "run-1", "tags": "base", "note": "<b>kept</b>"})
    assert read_labels(store.find("run-1")).tags == ("base",)
    assert next(row for row in face.rows if row["run"] == "run-1")["note"] == "<b>kept</b>"
    assert "is archived" in told(face, {"type": "label", "run": "run-1", "archived": True})["text"]
    assert [row["run"] for row in face.rows] == ["run-2", "run-0"]
    assert told(face, {"type": "label", "run": "run-0", "tags": "no/[way]"})["bad"] is True
    assert told(face, {"type": "label", "run": "run-1", "archived": False})["bad"] is True  # hidden
    face.close()


def test_deleting_says_what_it_frees_and_takes_only_what_is_listed(store: wb.Store) -> None:
    face = Compare(store=store.root, runs=["run-0", "run-1", "run-2"])
    said = told(face, {"type": "size", "run": "run-1"})["text"]
    assert said.startswith("Press again to delete run-1 permanently: ")
    assert store.find("run-1").directory.exists()
    for run in ("../run-1", "old", None, "run"):
        assert told(face, {"type": "delete", "run": run})["bad"] is True
    assert "is deleted" in told(face, {"type": "delete", "run": "run-1"})["text"]
    assert face.picked == ["run-0", "run-2"]
    assert list(face.comparison["curves"]) == ["run-0", "run-2"]
    assert set(store.ids()) == {"run-2", "run-0", "old"}
    face.close()


def test_runs_sends_what_every_axis_needs(store: wb.Store) -> None:
    table = Runs(store=store.root)
    sent: list[dict[str, Any]] = []
    table.send = lambda message, buffers=None: sent.append(message)
    table._on_message(table, {"type": "series", "run": "run-0"}, [])
    view = sent[0]["view"]
    assert {len(column) for column in view["series"].values()} == {60}
    assert view["usd_per_hour"] == 7.2
    table.close()


def test_why_nothing_is_compared_stays_to_be_read(store: wb.Store) -> None:
    face = Compare(store=store.root, runs=["run-0", "run-1"])
    shutil.rmtree(store.find("run-1").directory)
    said = told(face, {"type": "pick", "runs": ["run-0", "run-1"]})
    assert said["bad"]
    assert "run-1" in said["text"]

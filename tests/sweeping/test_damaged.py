"""A sweep whose files were edited by hand, are of a later version, or that is asked too early."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="the extra sweep is not installed")

from tests.security.payloads import MARKUP, TERMINAL
from tests.sweeping.plans import plan, sweep_of_results
from tests.sweeping.test_controller import World, controlled
from workbench.cli.sweep import list_sweeps
from workbench.errors import StoreError, UsageError
from workbench.store.processes import identify
from workbench.sweeping import find
from workbench.sweeping.files import SweepFiles
from workbench.sweeping.host import RunNow
from workbench.sweeping.page import write_page
from workbench.sweeping.plan import SweepPlan
from workbench.sweeping.study import Trials


@pytest.mark.parametrize(
    "change",
    [
        {"created_at": 10**400},
        {"created_at": None},
        {"trials": "6"},
        {"trials": 0},
        {"direction": 5},
        {"metric": None},
        {"stop": "median"},
        {"first_look": 0},
        {"parallel": -1},
        {"id": ["abc"]},
        {"parameters": [{"name": "lr"}]},
        {"parameters": [None]},
        {"parameters": [{"name": "lr", "option": "--lr", "tried": True, "values": []}]},
    ],
)
def test_a_plan_that_cannot_be_is_no_plan(change: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        SweepPlan.read({**plan().document(), **change})


def test_what_a_later_version_added_is_left_out() -> None:
    document = plan(predicted={"hours": 2.0, "more": 1}).document()
    document["parameters"] = [{**about, "unit": "1/step"} for about in document["parameters"]]
    read = SweepPlan.read({**document, "budget": 5})
    assert read == replace(plan(), predicted={"hours": 2.0})


def test_a_damaged_plan_is_one_sentence_and_a_strange_prediction_none(tmp_path: Path) -> None:
    sweep_of_results(tmp_path, trials=1)
    place = SweepFiles(tmp_path, "lr").plan_file
    document = json.loads(place.read_text())
    place.write_text(json.dumps({**document, "predicted": {"hours": "long", "usd": 3.0}}))
    assert find("lr", tmp_path).plan.predicted == {"usd": 3.0}
    place.write_text(json.dumps({**document, "direction": None}))
    with pytest.raises(StoreError, match="not the plan of a sweep"):
        find("lr", tmp_path)


def test_values_that_the_plan_no_longer_lists_are_shown_as_the_journal_has_them(
    tmp_path: Path,
) -> None:
    sweep_of_results(tmp_path, trials=2)
    place = SweepFiles(tmp_path, "lr").plan_file
    place.write_text(place.read_text().replace('"1e-4"', '"5e-4"'))
    assert {row.values["lr"] for row in find("lr", tmp_path).trials()} <= {"0.0001", "3e-4"}


@pytest.mark.parametrize("strange", ['{"op_code": {}, "worker_id": "a"}', "values"])
def test_a_damaged_journal_leaves_its_sweep_out_of_the_list_alone(
    tmp_path: Path, strange: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_of_results(tmp_path, trials=2)
    sweep_of_results(tmp_path, trials=2, name="other", id="other")
    journal = SweepFiles(tmp_path, "lr").journal
    lines = journal.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if '"values":[' in line)
    spoilt = {**json.loads(lines[at]), "values": [[]]}
    lines[at] = json.dumps(spoilt) if strange == "values" else strange
    journal.write_text("\n".join([*lines, ""]))
    list_sweeps(store=str(tmp_path))
    shown = capsys.readouterr()
    assert "lr is left out" in shown.err
    assert "other" in shown.out


def test_the_texts_of_a_sweep_of_others_are_no_markup_on_its_page(tmp_path: Path) -> None:
    """It has scripts, and is opened from the disk."""
    pytest.importorskip("plotly", reason="the extra lab is not installed")
    sweep_of_results(tmp_path, trials=4)
    files, text = SweepFiles(tmp_path, "lr"), "".join(MARKUP)
    for path in (files.plan_file, files.journal):
        spoilt = path.read_text().replace('"lr"', json.dumps(f"lr{text}"))
        path.write_text(spoilt.replace('"3e-4"', json.dumps(f"3e-4{text}")))
    about = {**json.loads(files.plan_file.read_text()), "name": "lr", "metric": f"loss{text}"}
    files.plan_file.write_text(json.dumps(about))
    files.end.write_text(json.dumps({"outcome": text, "message": text, "at": 1.0}))
    sweep = find("lr", tmp_path)
    write_page(sweep, page := tmp_path / "page.html")
    shown = page.read_text()
    assert html.escape(text) in shown
    assert not [one for one in MARKUP if one.startswith("<") and one in shown]
    files.end.write_text(json.dumps({"outcome": TERMINAL[0], "message": [text], "at": "soon"}))
    assert sweep.state == "interrupted"  # nothing of it can be read


def test_a_date_can_be_the_seed(tmp_path: Path) -> None:
    for sampler in ("random", "tpe"):
        chosen = plan(seed=20_261_130, sampler=sampler)
        trial = Trials(tmp_path / sampler, chosen, writes=True).ask()
        assert trial is not None
        assert 0 <= float(trial.values["wd"]) <= 0.1


def test_a_sweep_that_is_still_being_stopped_is_not_said_to_be_resumed(tmp_path: Path) -> None:
    sweep_of_results(tmp_path, trials=1)
    files = SweepFiles(tmp_path, "lr")
    files.controller.write_text(json.dumps(identify(os.getpid())))
    files.stop.touch()
    with pytest.raises(UsageError, match="Wait for that: workbench sweep stop lr"):
        find("lr", tmp_path).resume()
    assert files.stop.exists()


def test_a_trial_that_was_still_stopping_when_its_sweep_went_on_goes_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller was killed between the request and the end of the run."""
    world = World()
    controlled(tmp_path, world).turn()
    world.state[0] = "running"
    now: Callable[[int], RunNow] = world.now
    monkeypatch.setattr(world, "now", lambda number: replace(now(number), stop_asked=number == 0))
    controller = controlled(tmp_path, world)
    controller.turn()
    world.state[0] = world.state[1] = "stopped"  # the other one by its user, meanwhile
    controller.turn()
    assert world.state[0] == "running"
    assert [trial.state for trial in controller._trials.every()][:2] == ["open", "failed"]

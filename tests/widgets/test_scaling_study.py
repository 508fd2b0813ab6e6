"""The face of the scaling study without a browser: what it starts, says, stops and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import ScalingStudy
from workbench_widgets.host import scaling_study

import workbench as wb
from tests.conftest import SCRIPTS, until
from workbench.compare.scaling_study import conclude
from workbench.compare.studies.step_split import StepSplit
from workbench.compare.studies.trial import TrialResult

HOSTILE = "<img src=x onerror=alert(1)>"


def result(ranks: int, **changes: object) -> TrialResult:
    wait = 0.002 * (ranks > 1)
    split = StepSplit(
        step=0.3 + 0.05 * ranks + wait,
        data=0.01,
        forward=0.1,
        waiting=wait,
        rest=0.19 + 0.05 * ranks,
    )
    given = {"label": f"weak {ranks}", "key": "k", "processes": ranks, "value": ranks, "run": "r"}
    given |= {"outcome": "good", "problem": None, "splits": (split,) * 20}
    return TrialResult(**{**given, **changes})


@pytest.fixture
def face(store: Path):
    widget = ScalingStudy(store=store, cpu=True)
    yield widget
    widget.close()
    widget.wait(240)


def test_before_anything_it_says_so(face: ScalingStudy) -> None:
    assert repr(face) == "ScalingStudy of gpt, 1,2 ranks: No measurements yet."
    assert face.fields["to"] == "4,8"


def test_unknown_options_are_refused(store: Path, face: ScalingStudy) -> None:
    with pytest.raises(TypeError, match=r"Did you mean 'sizes'\?"):
        ScalingStudy(size="1,2", store=store)
    with pytest.raises(TypeError, match="has no option 'ranks'"):
        face.start(ranks="1")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sizes": "one"}, "give whole numbers separated by commas"),
        ({"target": "no_such.py"}, "No script 'no_such.py'"),
        ({"sizes": "2,1", "steps": "2"}, "the first ones are warm-up"),
    ],
)
def test_what_cannot_be_is_said_in_the_form(face: ScalingStudy, fields, said) -> None:
    face._on_message(face, {"type": "start", "fields": {**fields, "unknown": "kept out"}}, None)
    assert face.wait(240)
    assert (face.state["bad"], face.state["busy"]) == (True, False)
    assert said in face.state["note"]
    assert "unknown" not in face.fields


def test_what_is_drawn_is_plain_and_says_what_is_predicted(face: ScalingStudy, monkeypatch) -> None:
    done = [("weak", result(1)), ("weak", result(2))]
    done.append(("weak", result(4, outcome="failed", problem=HOSTILE, splits=())))
    found = conclude("scale-1", "gpt", done, (4, 8), cpu=True)
    monkeypatch.setattr(scaling_study, "scale", lambda *_given, **_options: found)
    face.start()
    assert face.wait(240)
    (curve,) = json.loads(json.dumps(face.state))["curves"]
    assert [(one["ranks"], one["measured"]) for one in curve["points"]] == [
        *((1, True), (2, True)),
        *((4, False), (8, False)),
    ]
    for point in curve["points"][2:]:
        assert point["least"] < point["efficiency"] < point["most"]
    assert f"weak 4: failed, {HOSTILE}" in face.state["notes"]
    assert "predicted" in repr(face)
    assert face.study is found


@pytest.mark.full
@pytest.mark.slow
def test_it_runs_beside_the_kernel_and_stops(face: ScalingStudy, store: Path) -> None:
    pytest.importorskip("accelerate", reason="the train extra is not installed")
    script, arguments = str(SCRIPTS / "raw_ddp.py"), "--steps 100000 --step-seconds 0.02"
    face.start(target=script, arguments=arguments, sizes="1,2", steps="5000")
    with pytest.raises(wb.UsageError, match="still running"):
        face.start()
    until(lambda: "weak 1 ranks, step" in face.state["now"] and wb.runs(store), 60, "the run")
    until(lambda: (wb.runs(store)[0]["steps"] or 0) > 2, 90, "steps")
    face._on_message(face, {"type": "stop"}, None)
    assert face.wait(240)
    assert "finished trials are kept" in face.state["note"]
    assert [one["outcome"] for one in wb.runs(store)] == ["stopped"]

"""The faces of troubles without a browser: text forms, Resume, and FaultLab's refusals."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.pages.applied import views

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Checkpoints, FaultLab, RunDashboard
from workbench_widgets.faults import faults

import workbench as wb
from tests.conftest import until
from tests.widgets.sample_runs import SampleRun
from tests.widgets.sample_troubles import HOSTILE, TROUBLES, checkpoint, hang
from workbench.recipes import __file__ as recipes_file


class Resumable(SampleRun):
    """A run whose `resume` is watched; `answer` is what it returns or raises."""

    answer: Any = None

    def resume(self, checkpoint: str | None = None) -> Any:
        self.asked: list[str | None] = [*getattr(self, "asked", []), checkpoint]
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or self


@pytest.fixture
def run(tmp_path: Path) -> Resumable:
    sample = Resumable(tmp_path / "runs", "sample")
    sample.write(90, phase="ended", outcome="failed", **TROUBLES)
    return sample


def sent_by(face: Any) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    face.send = lambda message, buffers=None: sent.append(message)
    return sent


def test_the_text_forms_name_what_stands_and_what_is_whole(run: Resumable) -> None:
    lines = repr(RunDashboard(run)).splitlines()
    assert lines[1] == f"  error: {hang()['cause']}"
    assert len(lines) == 3  # the cleared one is not said
    assert repr(Checkpoints(run)).splitlines() == [
        "Checkpoints of 'sample' (4)",
        "  step 120  1.2 GiB  not verified yet",
        "  step 100  1.2 GiB  complete",
        "  step 80  1.2 GiB  broken: model.safetensors has 1,000 of 428,113 bytes",
        "  step 60  n/a  complete",
    ]


@pytest.mark.parametrize("face", [RunDashboard, Checkpoints])
def test_resume_is_passed_on_and_errors_come_back_as_text(face: Any, run: Resumable) -> None:
    widget = face(run)
    sent = sent_by(widget)
    widget._on_message(widget, {"type": "resume", "checkpoint": "step-00000100"}, None)
    until(lambda: sent, 10, "an answer")
    assert run.asked == ["step-00000100"]
    assert sent[0] == {"type": "resumed", "bad": False, "run": "sample", "text": "Resumed."}
    run.answer = SimpleNamespace(id="another")
    assert "open it in the list of runs" in widget.resume()["text"]
    run.answer = wb.UsageError(f"no whole checkpoint {HOSTILE}")
    widget._on_message(widget, {"type": "resume", "checkpoint": {"not": "a name"}}, None)
    until(lambda: [one for one in sent if one.get("bad")], 10, "the error")
    assert run.asked[-1] is None  # only a text names a checkpoint
    assert sent[-1]["text"] == f"Not resumed: no whole checkpoint {HOSTILE}"
    widget.close()


def test_two_presses_are_one_resumption(run: Resumable) -> None:
    held, freed = threading.Event(), threading.Event()

    def slowly(checkpoint: str | None = None) -> Resumable:
        held.set()
        freed.wait(240)
        return Resumable.resume(run, checkpoint)

    run.resume = slowly  # type: ignore[method-assign]
    widget = RunDashboard(run)
    sent = sent_by(widget)
    for _ in range(3):
        widget._on_message(widget, {"type": "resume", "checkpoint": None}, None)
        held.wait(240)
    freed.set()
    until(lambda: sent, 10, "an answer")
    assert run.asked == [None]
    widget.close()


def test_after_a_resume_snapshots_are_pushed_again(run: Resumable) -> None:
    widget = RunDashboard(run, transport="comm")
    sent = sent_by(widget)
    widget._on_message(widget, {"type": "subscribe"}, None)
    until(lambda: sent and views(sent)[-1]["phase"] == "ended", 10, "the last snapshot")
    assert widget.resume() == {"bad": False, "run": "sample", "text": "Resumed."}
    (run.directory / "exit.json").unlink()
    run.write(95, phase="running", checkpoints=[checkpoint(90)])
    until(lambda: views(sent)[-1]["steps"] == 95, 10, "the next one")
    widget.close()


def test_no_finding_is_in_the_saved_state(run: Resumable) -> None:
    run.write(90, findings=[hang(cause="token hf_verysecretvalue")])
    for face in (RunDashboard(run), Checkpoints(run)):
        assert "hf_verysecretvalue" not in json.dumps(face.get_state(), default=str)
        face.close()


def test_unknown_options_are_refused(run: Resumable, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"Checkpoints has no option 'stroe'"):
        Checkpoints(run, stroe=1)
    with pytest.raises(ValueError, match=r"give 0\.2 to 60"):
        Checkpoints(run, refresh_seconds=0)
    with pytest.raises(TypeError, match=r"Did you mean 'restarts'\?"):
        FaultLab(store=tmp_path, restart=1)


def test_the_lab_takes_a_runs_name_like_other_faces(run: Resumable, tmp_path: Path) -> None:
    lab = FaultLab(store=run.directory.parent, run=run.directory.name)
    assert lab.run is not None
    assert lab.run.directory == run.directory
    lab.close()
    with pytest.raises(wb.RunNotFoundError):
        FaultLab(store=tmp_path, run="nope")


def test_the_lab_says_what_it_needs_first(run: Resumable, tmp_path: Path) -> None:
    lab = FaultLab(store=tmp_path)
    assert repr(lab) == "FaultLab(not started)"
    assert all(button.disabled for button in lab.buttons.values())
    with pytest.raises(wb.UsageError, match="Start the training first"):
        lab.inject("nan")
    with pytest.raises(wb.UnknownNameError, match="straggler"):
        faults.inject(run, "stragler")
    (run.directory / "run.json").write_text(json.dumps({"run": "sample", "processes": 2}))
    with pytest.raises(wb.UsageError, match="is not training now"):
        faults.inject(wb.attach("sample", run.directory.parent), "nan")
    lab._say(HOSTILE, bad=True)
    assert (lab.note.text, lab.note.tone) == (HOSTILE, "bad")
    lab.close()


def test_a_run_that_starts_is_not_called_one_that_does_not_train(tmp_path: Path) -> None:
    starting = SampleRun(tmp_path, "one")
    starting.write(0, phase="starting")
    with pytest.raises(wb.UsageError, match="is starting: wait for its first steps"):
        faults.inject(wb.attach("one", tmp_path), "nan")


def test_every_fault_has_a_button_and_the_script_knows_those_it_is_told() -> None:
    assert [one for found in faults.groups().values() for one in found] == [*faults.FAULTS.values()]
    text = Path(recipes_file).with_name("fault_lab.py").read_text(encoding="utf-8")
    head = text.partition("\nimport checkpoint_files\n")[0]
    names: dict[str, Any] = {"__name__": "fault_lab"}
    exec(
        head.replace("from recipe_options import", "from workbench.recipes.recipe_options import"),
        names,
    )
    told = {name for name, one in faults.FAULTS.items() if one.number is None}
    assert told == set(names["FAULTS"])
    lasting = {name for name, one in faults.FAULTS.items() if one.lasting}
    assert lasting == set(names["LASTING"])

"""The button of the launch form that verifies a script on one rank and on several."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from workbench_widgets import Launcher
from workbench_widgets.answering import DOUBLE_CLICK_SECONDS
from workbench_widgets.launch.script_note import ScriptNote
from workbench_widgets.launch.script_notes import VERIFY

from tests.verify.cases import CASES, SCRIPTS
from tests.widgets.calculators import until

SCRIPT = str(SCRIPTS / "no_sampler.py")


def _form(store: Path, target: str, family: str = "ddp") -> Launcher:
    form = Launcher(store=store, target=target, cpu=True)
    form.picker.set(family=family)
    form.refresh()
    return form


def test_it_is_offered_for_several_ranks_of_a_script(store: Path) -> None:
    form = _form(store, SCRIPT)
    assert form.verify_note.layout.display == ""
    assert form.verify_note.line.value == VERIFY
    form.picker.set(family="single")
    form.refresh()
    assert form.verify_note.layout.display == "none"
    form.fields.target_menu.value = "gpt"
    form.picker.set(family="ddp")
    form.refresh()
    assert form.verify_note.start() is None
    form.close()


@pytest.mark.slow
@pytest.mark.full
def test_a_click_names_what_is_wrong_and_another_one_stops(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(next(one for one in CASES if one.script == "no_sampler").wrong())
    form = _form(store, str(script))
    note = form.verify_note
    note.button.click()
    until(lambda: "starting" in note.line.value, "the first run")
    time.sleep(DOUBLE_CLICK_SECONDS)
    note.button.click()
    until(lambda: not note.running, "the end", seconds=60)
    assert "nothing was kept" in note.line.value
    thread = note.start()
    assert thread is not None
    thread.join(240)
    assert note.line.value.startswith("same-data, step 1: ")
    assert "Use DistributedSampler" in note.line.value
    assert note.button.description == "Verify"
    form.close()


class _Slow(ScriptNote):
    """Done when it is told to."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        super().__init__("Do", "check", "Offer")

    def offered(self, request: Any) -> bool:
        return True

    def work(self, request: Any, on_progress: object) -> str:
        self.may_end.wait(60)
        return f"done: {request.script}"


def _asked(script: str) -> Any:
    return SimpleNamespace(module=None, script=script, arguments=())


def test_a_result_stands_under_the_script_that_it_is_of() -> None:
    note = _Slow()
    for other in (_asked("b.py"), None):
        note.show(_asked("a.py"))
        thread = note.start()
        assert thread is not None
        note.show(other)
        note.may_end.set()
        thread.join(60)
        assert note._request is other
        assert note.layout.display == ("" if other else "none")
        assert note.line.value != "done: a.py" or other is None

"""The panel of the queue and the picker of devices, without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import DevicePicker, QueuePanel

import workbench as wb
from tests.conftest import until
from workbench.queueing import Queue


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """Two runs wait in a paused queue of three slots."""
    made = Queue(tmp_path)
    made.set_slots(3)
    made.pause()
    for name in ("a", "b"):
        wb.launch("gpt", cpu=True, processes=2, store=tmp_path, name=name, queue=True)
    return made


def test_the_buttons_do_what_the_commands_do(queue: Queue, tmp_path: Path) -> None:
    panel = QueuePanel(store=tmp_path)

    def press(**message: object) -> None:
        before = (panel.shown, panel.problem)
        panel._on_message(panel, message, [])
        until(lambda: (panel.shown, panel.problem) != before, what=f"an answer to {message}")

    assert [one["run"] for one in panel.shown["jobs"]] == ["a", "b"]
    assert [one["name"] for one in panel.shown["devices"]] == ["0", "1", "2"]
    press(type="move", run="b", position=1)
    assert [one["run"] for one in panel.shown["jobs"]] == ["b", "a"]
    press(type="drop", run="a")
    assert [one.run for one in queue.jobs()] == ["b"]
    press(type="drop", run="../a")
    assert "Unknown queued run '../a'. Known: b." in panel.problem
    press(type="drop", run="b")
    until(lambda: not panel.problem and not panel.shown["jobs"])
    assert "slot 0: free" in repr(panel)
    panel.close()


def test_what_is_ticked_is_what_a_launch_takes(queue: Queue, tmp_path: Path) -> None:
    picker = DevicePicker(store=tmp_path)
    assert picker.value == ()
    picker._on_message(picker, {"type": "pick", "names": ["2", "0", "9"]}, [])
    assert picker.value == ("0", "2")
    assert wb.request("gpt", cpu=True, store=tmp_path, devices=picker.value).processes == 2
    picker._on_message(picker, {"type": "pick", "names": None}, [])
    assert picker.value == ()
    with pytest.raises(ValueError, match="Unknown device 'nope'"):
        DevicePicker(store=tmp_path, value=("nope",))
    with pytest.raises(TypeError, match="DevicePicker has no option"):
        DevicePicker(store=tmp_path, gpus=1)


def test_a_store_that_is_back_is_no_problem_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = QueuePanel(store=tmp_path)

    def gone(_: object) -> dict[str, object]:
        raise OSError("gone for a moment")

    with monkeypatch.context() as away:
        away.setattr(Queue, "document", gone)
        panel.reread()
        assert "gone for a moment" in panel.problem
    panel.reread()
    assert panel.problem == ""
    panel.problem = "what a button said"
    panel.reread()
    assert panel.problem == "what a button said"
    panel.close()

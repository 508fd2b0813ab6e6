"""Talk's face without a browser: a prompt, a stop, a killed model, what is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Talk

import workbench as wb
from tests.conftest import until
from tests.trained_model.made import exported_run
from workbench.errors import UsageError


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_it_answers_stops_and_starts_again(tmp_path: Path) -> None:
    widget = Talk(wb.Run(exported_run_paths(tmp_path)))
    settings = {"max_tokens": 5, "temperature": 0.0}
    widget._on_message(widget, {"type": "ask", "prompt": "def ", "settings": settings}, None)
    until(lambda: widget.shown["state"] == "idle", 60, "it answered")
    (answer,) = widget.shown["answers"]
    assert answer["side"] == "trained"
    assert "5 tokens" in answer["says"]
    assert "> def" in repr(widget)
    assert widget._talk is not None
    pid = widget._talk.pid
    widget.ask("again", max_tokens=1_000_000)
    until(lambda: widget.shown["answers"][0]["text"], 60, "it began")
    widget._on_message(widget, {"type": "stop"}, None)
    until(lambda: widget.shown["state"] == "idle", 60, "it stopped")
    assert "stopped" in widget.shown["answers"][0]["says"]
    assert widget._talk.pid == pid  # the model stays loaded
    widget.ask("again", max_tokens=1_000_000)
    until(lambda: widget.shown["answers"][0]["text"], 60, "it began")
    os.kill(pid, signal.SIGKILL)
    until(lambda: widget.shown["state"] == "failed", 60, "it is told")
    assert "SIGKILL" in widget.shown["says"]
    widget.ask("x", **settings)
    until(lambda: widget.shown["state"] == "idle", 60, "another process answers")
    pid = widget._talk.pid
    widget.close()
    assert not alive(pid)


def test_what_it_refuses(tmp_path: Path) -> None:
    run = wb.Run(exported_run_paths(tmp_path))
    with pytest.raises(TypeError, match="promt"):
        Talk(run, promt="x")
    with pytest.raises(UsageError, match="no checkpoint of step 9"):
        Talk(run, step=9)
    widget = Talk(run)
    for settings, expected in (
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"beams": 2}, "beams"),
        ({"prompt": "b"}, "prompt"),
    ):
        widget._on_message(widget, {"type": "ask", "prompt": "a", "settings": settings}, None)
        assert widget.shown["state"] == "failed"
        assert expected in widget.shown["says"]
    assert widget._talk is None  # nothing was started
    widget.close()


def exported_run_paths(tmp_path: Path):
    from workbench.store.layout import RunPaths

    return RunPaths(exported_run(tmp_path))

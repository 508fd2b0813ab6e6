"""The Profile face without a browser: text form, refusals, a trace from its button."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Profile, RunDashboard

import workbench as wb
from tests.compare.test_profile import span, write
from tests.conftest import until
from tests.widgets.sample_runs import SampleRun


class Sample(SampleRun):
    """Nothing lives behind it."""

    @property
    def status(self) -> object:
        return wb.Run(wb.Store(self.directory.parent).find(self.directory.name)).status


@pytest.fixture
def run(tmp_path: Path) -> Sample:
    sample = Sample(tmp_path / "runs", "made")
    sample.write(90, phase="ended", outcome="succeeded")
    return sample


def test_its_text_form_and_what_the_page_gets(run: Sample) -> None:
    assert repr(Profile(run)).startswith("Profile of 'made': none yet")
    write(run.directory.parent, 0, [span("cpu_op", "aten::mm", 0, 75)], [100])
    write(run.directory.parent, 1, [span("cpu_op", "aten::<b>mm", 0, 50)], [100])
    face = Profile(run)
    assert repr(face).splitlines() == [
        "Profile of 'made', steps 11 to 11, mean of a step",
        "  rank 0: 100 ms a step: compute 75 ms (75%), idle 25 ms (25%)",
        "  rank 1: 100 ms a step: compute 50 ms (50%), idle 50 ms (50%)",
        "  No rank waits for another rank more than 1 % of a step.",
    ]
    names = [f"rank-{rank}.trace.json.gz" for rank in (0, 1)]
    assert face.profile["files"] == ["merged.trace.json.gz", *names]
    assert [one["name"] for one in face.profile["operations"]] == ["aten::mm", "aten::<b>mm"]
    assert not face.status["live"]
    json.dumps(face.get_state(), default=str, allow_nan=False)
    face.close()


def test_what_cannot_be_is_refused_and_what_fails_is_said(run: Sample) -> None:
    with pytest.raises(TypeError, match="Profile has no option 'step'"):
        Profile(run, step=3)
    with pytest.raises(wb.UsageError, match="1 to 100"):
        Profile(run, steps=0)
    paths = write(run.directory.parent, 0, [], [10])
    (paths.profiles / "step-00000011" / "rank-0.trace.json.gz").write_bytes(b"no gzip")
    face = Profile(run)
    assert face.status["bad"]
    assert "is not a readable trace" in face.status["text"]
    face._on_message(face, {"type": "profile"}, None)
    until(lambda: "has ended" in face.status["text"], 20, "the refusal")
    face.close()


@pytest.mark.full
@pytest.mark.slow
def test_both_buttons_trace_a_living_run(start: Callable[..., wb.Run]) -> None:
    pytest.importorskip("accelerate", reason="the train extra is not installed")
    run = start("raw_ddp.py", ("--steps", "100000", "--step-seconds", "0.05"), processes=2)
    run.wait(120, steps=3)
    dashboard = RunDashboard(run)
    sent: list[dict[str, object]] = []
    dashboard.send = lambda message, buffers=None: sent.append(message)
    dashboard._on_message(dashboard, {"type": "profile"}, None)
    until(lambda: sent and not sent[-1]["busy"], 120, "the answer")
    assert str(sent[-1]["text"]).endswith("Full profile: Profile(run)")
    face = Profile(run, steps=2)
    first = face.profile["steps"]
    assert len(first) == 5
    face.trace()
    assert len(face.profile["steps"]) == 2
    assert min(face.profile["steps"]) > max(first)
    assert face.status["live"]
    for one in (face, dashboard):
        one.close()

"""The calibration's face without a browser: what it shows, presses, cancels, refusals."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Calibration, CostCalculator
from workbench_widgets.host import calibration as face
from workbench_widgets.job_form import JobForm

from tests.conftest import until
from tests.estimate.sample_stack import measured
from tests.estimate.test_calibration import calibrated, on_gpus
from workbench.describe.detection import detect_host
from workbench.store import calibrations, stack_calibrations


def keep(store: Path, **more: Any) -> Any:
    """This host's calibration, as if it had been measured."""
    host = detect_host()
    key = calibrations.host_key(host, cpu=True)
    made = calibrated(key=key, host=host.name, device_name=host.cpu_name, **more)
    calibrations.write_calibration(store, key, made.document())
    return made


def test_it_opens_with_what_was_kept(tmp_path: Path) -> None:
    never = Calibration(store=tmp_path, cpu=True)
    assert never.result is None
    assert "not calibrated yet" in repr(never)
    made = keep(tmp_path)
    widget = Calibration(store=tmp_path, cpu=True)
    assert widget.result == made
    assert made.date in repr(widget)
    rows = {row["name"]: row for row in widget.shown["rows"]}
    assert rows["matmul fp32"]["share"] == 1.0  # the best of its kind, for want of a catalog
    assert rows["launch"]["share"] is None
    assert rows["matmul fp32"]["catalog"] == "n/a"
    assert not widget.shown["compared"]
    bundle: Any = widget._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"] == repr(widget)


def test_a_gpu_stands_beside_the_catalog() -> None:
    shown = face.view(on_gpus(slow_clock=0.5))
    rows = {row["name"]: row for row in shown["rows"]}
    assert shown["compared"]
    assert 0.5 < rows["matmul bf16"]["share"] < 1.5
    assert rows["matmul bf16"]["catalog"] != "n/a"
    assert "throttled" in shown["troubles"][0]["what"]


def test_a_press_measures_for_real_and_a_cancel_ends_it(tmp_path: Path) -> None:
    """Real probes: cancelled as soon as they start; nothing is kept, and another press works."""
    made = keep(tmp_path)
    widget = Calibration(store=tmp_path, cpu=True)
    for _ in range(2):
        widget._on_message(widget, {"type": "calibrate"}, None)
    until(lambda: widget.shown["state"] == "running", 30, "it runs")
    threads = [one for one in threading.enumerate() if one.name == "workbench-calibration"]
    assert len(threads) == 1  # two presses are one measurement
    assert widget.shown["rows"]  # the earlier figures stay on the page
    widget._on_message(widget, {"type": "cancel"}, None)
    until(lambda: widget.shown["state"] == "idle", 60, "it ended")
    threads[0].join(240)
    assert widget.shown["says"] == "Cancelled; nothing was saved."
    assert widget.result == made
    assert [one.suffix for one in calibrations.folder(tmp_path).iterdir()] == [".json"]
    widget.close()


def test_what_goes_wrong_is_said_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widget = Calibration(store=tmp_path, cpu=True, seconds=1)  # refused by the engine itself
    widget.start()
    until(lambda: widget.shown["state"] == "failed", 30, "the refusal")
    assert "Give at least 5 s" in widget.shown["says"]
    found = dataclasses.replace(calibrated(), host="measured")

    def at_once(*_given: Any, **_named: Any) -> Any:
        return found

    monkeypatch.setattr(face, "calibrate", at_once)
    widget.start()
    until(lambda: widget.shown["title"].startswith("measured"), 30, "the result")
    assert widget.result is found
    widget.close()


def test_a_measured_stack_corrects_the_calculators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path))
    form = JobForm.from_options({"model": "llama-3-8b", "gpu": "h100", "trainer": "torchtitan"})
    assert form.job().workload.calibration is None
    stack_calibrations.keep(tmp_path, measured(step_ratio=0.7))
    parts = CostCalculator(model="llama-3-8b", gpu="h100", trainer="torchtitan").figure["step"]
    (part,) = [one for one in parts["parts"] if one["name"] == "stack calibration"]
    assert part["share"] < 0
    assert form.workload().calibration is not None
    assert "measured: run-a (" in repr(Calibration(store=tmp_path))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Did you mean 'store'\?"):
        Calibration(stroe=1)

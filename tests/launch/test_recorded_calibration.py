"""The measurement that a launch's prediction counts is recorded, and counts in what follows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.estimate.sample_stack import measured
from workbench.compare.differences import configuration
from workbench.errors import UsageError
from workbench.estimate.stack_factor import facts_of
from workbench.launching.prepare.acceptance import accept
from workbench.launching.resume import resume as resume_module
from workbench.launching.resume.branch import rerun_request
from workbench.launching.start.start import prepare
from workbench.store import calibrations, stack_calibrations
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

WORDS = ["--layers", "2", "--hidden", "64", "--seq-len", "64", "--steps", "60", "--eval-every", "0"]
File = Callable[..., tuple[RunPaths, Any]]


@pytest.fixture
def file(tmp_path: Path) -> File:
    """Makes a run that is never started, beside a measurement of its stack."""

    def made(**options: Any) -> wb.Request:
        how: dict[str, Any] = {"cpu": True, "processes": 1, "store": tmp_path}
        return wb.request("gpt", WORDS, **how | options)

    workload = made().workload
    assert workload is not None
    facts = facts_of(stack_calibrations.of_trainer(None, "gpt"), workload, "cpu")
    memory = {"peak_bytes": 4e9, "predicted_bytes": 2e9, "tensors_bytes": 1e9, "states_bytes": 5e8}
    of_it: dict[str, Any] = {"gpu": None, "step_ratio": None, **memory, **facts._asdict()}
    stack_calibrations.keep(tmp_path, measured("mine", **of_it))

    def prepared(**options: Any) -> tuple[RunPaths, Any]:
        paths, _ = prepare(made(**options))
        return paths, read_run(paths)

    return prepared


@pytest.mark.parametrize(
    ("options", "name", "counts"),
    [
        ({"calibration": "none"}, "none", False),
        ({"calibration": "mine"}, "mine", True),
        ({}, "all", True),
    ],
)
def test_a_rerun_counts_what_the_launch_counted(
    file: File, options: dict[str, Any], name: str, *, counts: bool
) -> None:
    paths, run = file(**options)
    assert (run.calibration, configuration(run.document())["calibration"]) == (name, name)
    assert ("stack calibration" in run.predicted["memory"]["parts"]) is counts
    request, _ = rerun_request(paths)
    assert request.predicted is not None
    assert request.options.calibration == name
    assert ("stack calibration" in request.predicted.parts) is counts


def test_a_measurement_that_is_gone_keeps_no_run_from_starting(file: File) -> None:
    paths, _ = file(calibration="mine")
    for kept in calibrations.folder(paths.directory.parent).iterdir():
        kept.unlink()
    request, _ = rerun_request(paths)
    assert request.options.calibration == "all"
    assert "The measurement 'mine'" in request.warnings[0]


def test_a_resume_with_another_one_stays_the_same_run(
    old_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = list[RunRecord]()

    def spawned(_paths: Any, run: RunRecord, *_: Any, **_more: Any) -> None:
        resumed.append(run)

    monkeypatch.setattr(resume_module, "_spawned", spawned)
    paths = RunPaths(old_store / "stopped")
    accept(paths)
    resume_module.resume(paths, calibration="none")
    assert [run.calibration for run in resumed] == ["none"]
    with pytest.raises(UsageError, match="nothing was measured"):
        resume_module.resume(paths, calibration="other")

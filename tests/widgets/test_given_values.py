"""A face takes what the function of Python takes, and says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from workbench_widgets import (
    DevicePicker,
    Export,
    Launcher,
    MemoryCalculator,
    RunDashboard,
    ScalingStudy,
)

import workbench as wb


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n")
    return str(path)


def test_arguments_may_be_a_list(script: str, tmp_path: Path) -> None:
    """The list's own text, with its brackets, became the exported command."""
    words = ["--lr", 3e-4, "--out", "a b"]
    exported = Export(script, store=tmp_path, arguments=words).export
    assert exported is not None
    assert exported.job.arguments == ("--lr", "0.0003", "--out", "a b")
    launcher = Launcher(store=tmp_path, target=script, arguments=words)
    assert launcher.fields.arguments.value == "--lr 0.0003 --out 'a b'"
    study = ScalingStudy(script, words, store=tmp_path, cpu=True)
    assert study.fields["arguments"] == "--lr 0.0003 --out 'a b'"


def test_devices_may_be_numbers(tmp_path: Path) -> None:
    """They were unknown, with themselves as the nearest ones."""
    assert DevicePicker(store=tmp_path, value=[0]).value == ("0",)
    assert DevicePicker(store=tmp_path, value="0").value == ("0",)


def test_a_strategy_says_the_number_of_gpus() -> None:
    strategy = wb.Strategy.parse("fsdp", 8).with_options(recompute="full")
    shown = MemoryCalculator(model="gpt2", gpu="h100", strategy=strategy).estimate
    assert shown == wb.training_memory("gpt2", gpu="h100", strategy=strategy)


def test_no_run_is_refused_in_a_sentence() -> None:
    with pytest.raises(wb.UsageError, match="Give one run by its id"):
        RunDashboard(None)


def test_a_job_is_exported_by_python_and_the_form_says_so(tmp_path: Path) -> None:
    """Its text was looked up as a path, which was too long."""
    with pytest.raises(wb.UsageError, match=r"wb.export\(job, 'slurm'\)"):
        Export(wb.Job.of("gpt2", gpu="h100"), store=tmp_path)

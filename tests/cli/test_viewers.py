"""The end of a viewer is the viewer's alone; only who waits for a launch passes SIGTERM on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import workbench as wb
from workbench.cli import live, tables, waiting
from workbench.observe.prediction_error.terms import STEP, PredictionError, PredictionTerm
from workbench.store import processes
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths


@pytest.fixture
def living(tmp_path: Path) -> Iterator[RunPaths]:
    """A run whose supervisor seems to be at work."""
    process = subprocess.Popen(["sleep", "600"])
    paths = wb.Store(tmp_path).create("living")
    write_json_atomic(paths.run, {"run": "living", "name": "living", "created_at": 1.0})
    state = {"phase": "running", "supervisor": processes.identify(process.pid), "ranks": {}}
    write_json_atomic(paths.state, state)
    yield paths
    process.kill()
    process.wait()


def test_sigterm_ends_a_viewer_at_once_and_asks_nothing_of_the_run(living: RunPaths) -> None:
    command = [sys.executable, "-m", "workbench.cli", "attach", "living"]
    store = str(living.directory.parent)
    viewer = subprocess.Popen([*command, "--store", store], stdout=subprocess.PIPE, text=True)
    assert viewer.stdout is not None
    assert "running" in viewer.stdout.readline()
    viewer.send_signal(signal.SIGTERM)
    assert viewer.wait(240) == -signal.SIGTERM
    viewer.stdout.close()
    assert list(living.control.iterdir()) == []


def test_who_waits_for_a_launch_passes_sigterm_on_once(
    living: RunPaths, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def follow(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == before  # a second one ends this process

    monkeypatch.setattr(waiting, "follow", follow)
    waiting.stay(wb.Run(living), quiet=False, passes_on_sigterm=True)
    assert (living.control / "preempt").exists()
    assert "passed on to the run" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("eta", "said"), [(3.0, "left 3 s"), (0.0, "the script is finishing")])
def test_no_time_is_left_when_a_script_still_works_after_its_last_step(
    eta: float, said: str
) -> None:
    """Say, at its final validation."""
    view = {"ended_at": None, "eta_seconds": eta, "elapsed_seconds": 9.0, "steps": 4}
    console = Console(width=160)
    with console.capture() as captured:
        console.print(live._progress(view))
    assert said in captured.get()
    assert "left 0" not in captured.get()


@pytest.mark.parametrize(
    ("total", "outcome", "share"),
    [
        (1000, "failed", 0.01),
        (10, "succeeded", 1.0),
        (5, "stopped", 1.0),
        (None, "succeeded", 1.0),
        (None, "failed", None),
    ],
)
def test_the_bar_of_an_ended_run_is_as_long_as_it_came(
    total: int | None, outcome: str, share: float | None
) -> None:
    """It was full whenever a run had ended, also of one that failed at its tenth step."""
    view = {"ended_at": 9.0, "steps": 10, "steps_total": total, "outcome": outcome}
    assert live._share_done(view) == share


def test_a_line_of_a_run_has_what_is_known_and_no_last_sample_of_an_ended_one() -> None:
    host = {"series": {"cpu_percent": [50.0], "run_rss_bytes": [2**20]}}
    first = live.one_line({"seq": 1, "phase": "starting", "steps": 0}, "starting")
    assert first == "starting  step 0"
    view = {"seq": 2, "steps": 9, "loss_last": 1.5, "elapsed_seconds": 9.0, "host": host}
    running = live.one_line({**view, "phase": "running"}, "running")
    assert "memory 1 MiB" in running
    ended = live.one_line({**view, "phase": "ended"}, "succeeded")
    assert ended == "succeeded  step 9  loss 1.5  elapsed 9 s"


def test_a_run_whose_name_is_its_id_is_named_once(living: RunPaths) -> None:
    table = tables.summary_table(wb.attach("living", living.directory.parent).summary())
    console = Console(width=160)
    with console.capture() as captured:
        console.print(table)
    assert captured.get().splitlines()[0].split() == ["run", "living"]


def test_the_elapsed_time_is_the_runs_own_and_not_since_its_first_start(living: RunPaths) -> None:
    """Of a run that was interrupted, or stood still between two attempts."""
    summary = wb.attach("living", living.directory.parent).summary()
    console = Console(width=160)
    with console.capture() as captured:
        console.print(
            tables.summary_table({**summary, "started_at": 1.7e9, "elapsed_seconds": 20.5})
        )
    assert ["elapsed", "20.5", "s"] in [line.split() for line in captured.get().splitlines()]


def test_an_early_measurement_stands_beside_the_prediction() -> None:
    term = PredictionTerm(what=STEP, group="time", unit="s", predicted=0.129)
    gap = PredictionError(rows=(term,))
    assert tables._comparison(gap, STEP, "160 ms (median)") == "160 ms (median), 129 ms predicted"
    assert tables._comparison(gap, STEP) == "not measured, 129 ms predicted"
    assert tables._comparison(PredictionError(), STEP, "160 ms (median)") == "160 ms (median)"

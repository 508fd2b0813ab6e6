"""Real sweeps: the recipe gpt on CPU through queue, dispatcher, supervisors and Optuna's journal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="the extra sweep is not installed")

import workbench as wb
from tests.cli.conftest import Command, command  # noqa: F401
from tests.conftest import until
from workbench.store import processes
from workbench.store.files import read_json
from workbench.sweeping import Sweep, find, sweeps

ARGUMENTS = ["--size", "2", "--micro-batch", "2", "--seq-len", "32"]


@pytest.fixture
def sweeps_end(store: Path) -> Iterator[None]:
    """No controller outlives its test."""
    yield
    for one in sweeps(store):
        process = read_json(one.directory / "controller.json")
        if process is not None and processes.is_alive(process):
            os.kill(process["pid"], signal.SIGKILL)


def kill_everything(made: Sweep, store: Path) -> None:
    """Controller, dispatcher, supervisors, watchers, launchers and ranks."""
    places = [made.directory / "controller.json", store / ".queue" / "dispatcher.json"]
    for process in filter(None, map(read_json, places)):
        processes.send_signal(process, signal.SIGKILL)
    for run in wb.Store(store).ids():
        directory = store / run
        for _ in range(3):
            state = read_json(directory / "state.json") or {}
            marker = (read_json(directory / "run.json") or {})["marker"]
            for pid in _of(directory):
                os.kill(pid, signal.SIGKILL)
            for process in [*processes.find_marked(marker), state.get("supervisor")]:
                if process:
                    processes.send_signal(process, signal.SIGKILL)


def _of(directory: Path) -> list[int]:
    """Watcher and supervisor: the run directory is an argument of theirs."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(directory).encode() in words and b"-m" in words:
                found.append(int(entry.name))
    return found


@pytest.mark.full
@pytest.mark.usefixtures("sweeps_end")
@pytest.mark.slow
def test_a_sweep_goes_on_after_the_kill_of_everything(store: Path) -> None:
    made = wb.sweep(
        "gpt",
        [*ARGUMENTS, "--steps", "60"],
        grid={"lr": ["1e-3", "3e-3", "1e-2"]},
        cpu=True,
        processes=1,
        warm=True,
        store=store,
        name="lr",
        parallel=1,
    )
    until((store / "lr-trial-001" / "view.json").exists, 240)
    until(lambda: (made.run(1).view().get("steps") or 0) > 3, 240)
    kill_everything(made, store)
    until(lambda: made.state == "interrupted", 60)
    first = made.run(1)
    until(
        lambda: first.state == "interrupted", 60, lambda: f"{first.status} {_of(first.directory)}"
    )
    first = (store / "lr-trial-000" / "exit.json").read_bytes()
    assert find("lr", store).resume().wait(600) == "finished"
    assert [one.state for one in made.trials()] == ["finished"] * 3
    assert sorted(wb.Store(store).ids()) == [f"lr-trial-00{number}" for number in range(3)]
    assert (store / "lr-trial-000" / "exit.json").read_bytes() == first  # not trained again
    steps = [row["step"] for row in made.run(1).metrics()]
    assert steps == list(range(1, 61))  # one curve
    ends = [[row["loss"] for row in made.run(one).metrics()[-6:]] for one in range(3)]
    tenth = [sum(losses) / 6 for losses in ends]  # of the steps: the metric of a training loss
    assert made.best().value == pytest.approx(min(tenth), rel=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("sweeps_end")
def test_two_trials_of_a_recipe(store: Path, command: Command) -> None:  # noqa: F811
    words = ("--cpu", "--nproc", "1", "--warm", "--store", str(store), "--name", "lr")
    more = ("--grid", "lr=1e-3,1e-2", "--yes", "--json", "--", *ARGUMENTS, "--steps", "20")
    printed = json.loads(command("sweep", "gpt", *words, *more).out)
    assert (printed["sweep"], printed["direction"], printed["planned"]) == ("lr", "lower", 2)
    made = find("last", store)
    assert made.wait(300) == "finished"
    rows = made.trials()
    assert [(one.state, one.run) for one in rows] == [
        ("finished", "lr-trial-000"),
        ("finished", "lr-trial-001"),
    ]
    runs = json.loads(command("runs", "--store", str(store), "--json").out)
    assert {(one["sweep"], one["trial"]) for one in runs} == {("lr", "lr=1e-3"), ("lr", "lr=1e-2")}
    page = store.parent / "page.html"
    assert command("sweep", "show", "lr", "--html", str(page), "--store", str(store)).code == 0
    text = page.read_text()
    assert text.count("Plotly.newPlot(") == 3
    assert "lr-trial-00" in text
    best = made.best()
    shown = json.loads(command("sweep", "best", "lr", "--store", str(store), "--json").out)
    assert shown["number"] == best.number
    assert shown["command"][:3] == ["workbench", "rerun", best.run]
    compared = wb.Store(store)
    from workbench.compare.runs import compare

    differing = {
        one["what"]: one["values"]
        for one in compare(compared, ["lr-trial-000", "lr-trial-001"]).configuration
    }
    assert differing["argument --lr"] == {"lr-trial-000": "1e-3", "lr-trial-001": "1e-2"}

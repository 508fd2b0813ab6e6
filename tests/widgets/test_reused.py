"""The launch form is set to what a run was launched with, and resumes it with what is changed."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipywidgets", reason="pip install -e '.[dev,lab]'")

from workbench_widgets import Launcher
from workbench_widgets.launch.launch_form import OPTIONS, value_of
from workbench_widgets.launch.reused import resume_keywords

import workbench as wb
from tests.conftest import SCRIPTS, TINY_GPT, until
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.resume.settings import RunSettings
from workbench.recover import Recovery
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

VALUES: dict[str, tuple[Any, ...]] = {
    "name": ("third try", "x"),
    "capture": (False,),
    "warm": (True,),
    "share": (True,),
    "wrap": ("Block",),
    "environment": ({"A": "1"}, {"A": "x y", "B": "it's $HOME"}),
    "trackers": (("tensorboard",), ("mlflow", "tensorboard")),
    "notify": (("none",), ("ops", "me")),
    "mirror": ("/mnt/copies",),
    "grid_gco2e_per_kwh": (38.5,),
}
RECOVERY: dict[str, tuple[Any, ...]] = {
    "restarts": (3,),
    "backoff_seconds": (30.0,),
    "restart_on_hang": (False,),
    "grace_seconds": (45.0,),
    "preemption": ("aws",),
    "idle_minutes": (2.5,),
    "max_hours": (8.0,),
    "max_usd": (120.0,),
    "rollback_on": (("nan",), ("nan", "spike")),
}
STRATEGY = wb.Strategy.parse("fsdp", 2).with_options(recompute="full", state_dict="full")


def settings(seed: int, store: Path) -> RunSettings:
    """Of a run with a few options chosen by chance."""
    chance = random.Random(seed)

    def some(values: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {name: chance.choice(values[name]) for name in chance.sample(list(values), 4)}

    options = LaunchOptions(
        strategy=STRATEGY,
        processes=2,
        cpu=True,
        store=wb.Store(store),
        recovery=Recovery(**some(RECOVERY)),
        **some(VALUES),
    )
    return RunSettings(
        paths=RunPaths(store / "old"),
        run=RunRecord(run="old"),
        target=chance.choice(("gpt", str(SCRIPTS / "plain_loop.py"))),
        arguments=("--steps", "3", "--name", "it's two words"),
        options=options,
        folder=Path.cwd(),
    )


def test_the_form_says_every_option_of_a_run(tmp_path: Path) -> None:
    """Set and read again, nothing is another: no option is forgotten."""
    assert set(VALUES) | set(RECOVERY) <= set(OPTIONS)
    assert {one.name for one in fields(Recovery)} <= set(OPTIONS)
    form = Launcher(store=tmp_path, cpu=True)
    for seed in range(60):
        of_run = settings(seed, tmp_path)
        form.fields.take(of_run)
        keywords = form.fields.request_keywords()
        assert keywords.pop("target") == of_run.target
        assert tuple(keywords.pop("arguments")) == of_run.arguments
        read = LaunchOptions.from_keywords(keywords)
        for name in OPTIONS:
            assert value_of(read, name) == value_of(of_run.options, name), (seed, name)
        again = form.fields.request_keywords()
        assert resume_keywords(of_run, again, STRATEGY) == {}, seed
    form.close()


def test_only_what_was_changed_is_changed(tmp_path: Path) -> None:
    form = Launcher(store=tmp_path, cpu=True)
    of_run = settings(1, tmp_path)
    of_run = dataclasses.replace(
        of_run,
        target="gpt",
        options=dataclasses.replace(of_run.options, environment={"A": "1"}, recovery=Recovery()),
    )
    form.fields.take(of_run)
    form.fields.options["environment"].value = "A=1 B=2"
    form.fields.options["restarts"].value = 4
    form.fields.arguments.value = "--steps 9"
    expected = {
        "environment": {"A": "1", "B": "2"},
        "recovery": {"restarts": 4},
        "arguments": ("--steps", "9"),
        "drop": ("*",),
        "strategy": wb.Strategy.parse("ddp", 2),
    }
    keywords = form.fields.request_keywords()
    assert resume_keywords(of_run, keywords, wb.Strategy.parse("ddp", 2)) == expected
    form.fields.options["environment"].value = "B=2"
    with pytest.raises(wb.UsageError, match="keeps its environment A"):
        resume_keywords(of_run, form.fields.request_keywords(), STRATEGY)
    form.fields.target_menu.value = "finetune"
    with pytest.raises(wb.UsageError, match="another script than old, which ran gpt"):
        resume_keywords(of_run, form.fields.request_keywords(), STRATEGY)
    form.close()


@pytest.mark.slow
def test_a_run_goes_on_with_another_strategy_and_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    store = tmp_path / "runs"
    shape = [*TINY_GPT, "--checkpoint-every", "2"]
    run = wb.launch("gpt", ["--steps", "4", *shape], processes=2, cpu=True, warm=True, store=store)
    assert run.wait(180) == "succeeded", run.status
    form = Launcher(store=store, cpu=True)
    assert form.reused.layout.display == "none"
    form.reuse(run.id)
    assert form.reused.layout.display == ""
    assert form.fields.arguments.value == f"--steps 4 {' '.join(shape)}"
    assert form.picker.strategy == wb.Strategy.parse("ddp", 2)
    assert "Not resumable: gpt-ddp2 has finished" in form.reused.line.text
    assert form.reused.button.disabled
    form.fields.arguments.set({"--steps": "6"})
    until(lambda: "from step 4, in the same run" in form.reused.line.text)
    form.picker.set(strategy="fsdp", processes=2)
    until(lambda: "from step 4, in a new run" in form.reused.line.text)
    form.reused.button.click()
    until(lambda: form.run is not None)
    assert form.reused.layout.display == "none"
    resumed = form.run
    assert resumed.wait(180) == "succeeded", resumed.status
    record = wb.attach(resumed.id, store)
    assert (record.status.outcome, record.id) == ("succeeded", "gpt-fsdp2")
    assert [line["step"] for line in record.metrics()][-1] == 6
    form.close()


def test_a_run_of_several_machines_is_resumed_in_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_run = settings(2, tmp_path)
    of_run = dataclasses.replace(of_run, options=dataclasses.replace(of_run.options, nodes=2))
    monkeypatch.setattr("workbench_widgets.launch.launcher.settings_of", lambda _paths: of_run)
    form = Launcher(store=tmp_path, cpu=True)
    before = form.fields.request_keywords()
    with pytest.raises(wb.UsageError, match="runs on 2 machines"):
        form.reuse(wb.Run(of_run.paths))
    assert form.fields.request_keywords() == before
    form.close()

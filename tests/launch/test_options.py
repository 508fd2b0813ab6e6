"""The options of a launch are declared once: every face, the record and resume have all of them."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench import recipes
from workbench.cli.commands import load
from workbench.cli.describing import keywords
from workbench.describe import ImplementationAssumptions, Strategy, Workload
from workbench.describe.option import declared, flattened
from workbench.describe.placement import Placement
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.options import IN_PLACE, NAMES, LaunchOptions
from workbench.launching.resume.run_options import (
    changed,
    explicit_changes,
    options_of,
    stays_in_place,
)
from workbench.launching.run import Run
from workbench.launching.start.start import prepare
from workbench.recover.policy import Recovery
from workbench.store.layout import RunPaths
from workbench.store.record import read_record
from workbench.store.run_record import RunRecord

FULL = LaunchOptions(
    strategy="fsdp",
    processes=2,
    cpu=True,
    name="mine",
    wrap="Layer",
    port=0,
    environment={"DATA": "/data", "PYTHONPATH": "/mine"},
    recovery=Recovery(restarts=3, grace_seconds=7.0, on_end=("true", "x y")),
    trackers=("tensorboard",),
    devices=("0",),
    share=True,
    options={"recompute": "full", "state_dict": "full", "offload": ("optimizer", "parameters")},
)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run with every option, prepared and not started."""
    return of(FULL, tmp_path)


def of(options: LaunchOptions, folder: Path, *more: str) -> RunPaths:
    placed = replace(options, store=folder / "runs")
    return prepare(build_request("gpt", ["--steps", "9", *more], placed))[0]


def test_python_has_every_option_as_a_keyword() -> None:
    for function in (wb.launch, wb.request):
        names = list(inspect.signature(function).parameters)
        assert names == ["target", "arguments", *NAMES]
        assert "recompute" in (function.__doc__ or "")
    again = list(inspect.signature(Run.resume).parameters)
    assert set(NAMES) - set(again) == {"store", "cluster", "queue", "priority"}


@pytest.mark.parametrize("command", ["launch", "resume"])
def test_the_command_line_has_every_option(command: str) -> None:
    flags = {flag for one in load(command).params for flag in one.opts}
    assert {one.flag for _, one in flattened(LaunchOptions).values()} <= flags
    assert {"--recompute", "--offload", "--state-dict", "--restarts", "--env"} <= flags


def test_an_unknown_keyword_is_refused_with_the_nearest() -> None:
    with pytest.raises(wb.UsageError, match="strategy"):
        wb.request("gpt", stratgy="fsdp")  # pyright: ignore[reportCallIssue]


def test_the_record_gives_back_what_was_launched(run: RunPaths) -> None:
    found = options_of(run, read_record(run))
    strategy = Strategy.parse("fsdp", 2).with_options(**FULL.options)
    for name in set(NAMES) - {"strategy", "options", "store", "cluster"}:
        assert getattr(found, name) == getattr(FULL, name), name
    assert found.strategy == strategy


@pytest.mark.parametrize("name", [None, "gpt-fsdp2-big", "gpt", "gpt3-of-mine"])
def test_a_name_that_was_given_is_kept_and_one_that_was_made_is_made_again(
    name: str | None, tmp_path: Path
) -> None:
    paths = of(replace(FULL, name=name), tmp_path)
    assert options_of(paths, read_record(paths)).name == name


def test_a_record_of_an_earlier_version_gives_the_same(run: RunPaths) -> None:
    old = json.loads(run.run.read_text())
    for name in ("wrap", "port", "extra_environment"):
        del old[name]
    old["recipe"], old["script"] = None, str(run.directory / "mine.py")
    found = options_of(run, RunRecord.of(old))
    assert (found.wrap, found.environment) == (FULL.wrap, FULL.environment)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"processes": 4}, {"recompute": "full", "state_dict": "full"}),
        ({"strategy": "fsdp-grad-op"}, {"recompute": "full", "state_dict": "full"}),
        ({"options": {"recompute": "none"}}, {"recompute": "none", "state_dict": "full"}),
        (
            {"processes": 4, "options": {"offload": ()}},
            {"recompute": "full", "offload": (), "state_dict": "full"},
        ),
    ],
)
def test_what_is_not_changed_is_kept(
    run: RunPaths, change: dict[str, Any], options: dict[str, Any]
) -> None:
    about = read_record(run)
    found, dropped = changed(about, options_of(run, about), explicit_changes(change))
    assert not dropped
    assert isinstance(found.strategy, Strategy)
    assert found.strategy.options() | options == found.strategy.options()
    assert found.strategy.world_size == change.get("processes", 2) == found.processes
    for name in ("wrap", "environment", "recovery", "trackers", "cpu", "name"):
        assert getattr(found, name) == getattr(FULL, name), name


def test_what_the_new_strategy_does_not_have_is_dropped_with_a_sentence(run: RunPaths) -> None:
    about = read_record(run)
    found, dropped = changed(about, options_of(run, about), {"strategy": "tp"})
    assert isinstance(found.strategy, Strategy)
    assert (found.strategy.tp, found.strategy.recompute) == (2, "full")
    assert len(dropped) == 2
    assert any(one.startswith("--state-dict full is dropped for tp: ") for one in dropped)
    assert any(one.startswith("--offload optimizer,parameters is dropped") for one in dropped)


def test_what_is_given_and_does_not_fit_is_refused(run: RunPaths) -> None:
    about = read_record(run)
    with pytest.raises(wb.UsageError, match="option of FSDP"):
        changed(
            about, options_of(run, about), {"strategy": "tp", "options": {"state_dict": "full"}}
        )


def test_options_that_belong_together_are_kept_together(tmp_path: Path) -> None:
    both = {"schedule": "interleaved", "virtual_stages": 2}
    run = of(
        LaunchOptions(strategy="pp", processes=2, cpu=True, options=both),
        tmp_path,
        "--size",
        "4",
        "--accumulate",
        "2",
    )
    about = read_record(run)
    found, dropped = changed(about, options_of(run, about), {"strategy": "pp2-dp2"})
    assert isinstance(found.strategy, Strategy)
    assert found.strategy.options() | both == found.strategy.options()
    assert not dropped
    _, dropped = changed(about, options_of(run, about), {"strategy": "ddp"})
    assert len(dropped) == 2


def test_recovery_and_environment_change_in_part(run: RunPaths) -> None:
    about = read_record(run)
    change = explicit_changes({"recovery": {"restarts": 5}, "environment": {"MORE": "1"}})
    assert stays_in_place(change)
    found, _ = changed(about, options_of(run, about), change)
    assert found.recovery == Recovery(restarts=5, grace_seconds=7.0, on_end=("true", "x y"))
    assert found.environment == {**FULL.environment, "MORE": "1"}
    assert not stays_in_place({"cpu": True})
    places = {"recovery", "environment", "trackers", "notify", "mirror", "capture", "port", "warm"}
    assert places | {"calibration", "devices", "share", "grid_gco2e_per_kwh"} == IN_PLACE


def test_nothing_given_is_no_change() -> None:
    assert explicit_changes(keywords(LaunchOptions, dict.fromkeys(flattened(LaunchOptions)))) == {}
    assert explicit_changes(keywords(LaunchOptions, {"comm_hook": "none"})) == {
        "options": {"comm_hook": None}
    }
    with pytest.raises(wb.UsageError, match="stays in its store"):
        explicit_changes({"store": "there"})


def test_every_declared_default_is_one_that_is_allowed() -> None:
    for kind in (Strategy, Recovery, LaunchOptions, Workload, ImplementationAssumptions, Placement):
        for one in declared(kind).values():
            words = one.default if one.option.split == "commas" else (one.default,)
            assert not one.option.choices or {*words} <= {*one.option.choices, None}, one.name
            assert one.help.endswith((".", "]")), one.name


@pytest.mark.parametrize("address", ["s3://bucket/x", "gs://b", "hf://datasets/a", "abfs://c@d/e"])
def test_an_object_store_is_refused_wherever_a_folder_is_meant(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"store": tmp_path, "cpu": True}
    for words in (["--checkpoint-dir", address], [f"--checkpoint-dir={address}"]):
        with pytest.raises(wb.UsageError, match=r"object.store"):
            wb.request("gpt", words, **place)
    with pytest.raises(wb.UsageError, match=r"object.store"):
        wb.request("lora", ["--model", address], **place)
    with pytest.raises(wb.UsageError, match=r"object.store"):
        wb.request("gpt", store=address)
    for words in (["--checkpoint-dir", address], ["--resume", address]):
        with pytest.raises(wb.UsageError, match=r"object.store"):  # as the script itself says it
            recipes.shape(words, recipe="gpt")
    monkeypatch.setenv("WORKBENCH_STORE", address)
    with pytest.raises(wb.UsageError, match=r"object.store"):
        wb.Store()

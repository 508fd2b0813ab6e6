"""The keys of `--json`: those that `--help` names are those that each command prints."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.compare.made_runs import make_run
from workbench.cli import (
    branching,
    calibrating,
    generating,
    launch,
    lessons,
    nodes,
    notifying,
    prices,
    profiling,
    queue,
    scaling,
    started,
    sweep,
    ui,
)
from workbench.cli.commands import COMMANDS, load
from workbench.cli.json_keys import FORMS
from workbench.compare.profile.values import Profile
from workbench.compare.scaling_study import ScalingStudy
from workbench.compare.studies.compression import Compression
from workbench.compare.studies.tuning import Tuning
from workbench.launching.steering import Answer
from workbench.launching.warm.server import Server
from workbench.queueing import Queue
from workbench.recover.checkpoints import Checkpoint
from workbench.storage.pull import PullResult
from workbench.store.findings import Finding
from workbench.sweeping import Sweep
from workbench.trained_model.exported import ExportedModel
from workbench.training_data.pictures import PictureReport
from workbench.verifying.verify import Verification

WITHOUT_JSON = {"logs", "attach", "track", "node", "mcp", "completion"}
QUICK = {
    "runs": ("runs",),
    "show": ("show", "a"),
    "metrics": ("metrics", "a"),
    "metrics --list": ("metrics", "a", "--list"),
    "metrics --samples": ("metrics", "a", "--samples"),
    "stop": ("stop", "a"),
    "adopt": ("adopt", "a"),
    "checkpoints": ("checkpoints", "a"),
    "rehearse": (
        *("rehearse", "--model", "llama-3.2-1b", "--gpu", "l40s", "--gpus", "2"),
        *("--strategy", "ddp", "--steps", "20", "--usd-per-hour", "2"),
    ),
    "diagnose": ("diagnose", "a"),
    "replay": ("replay", "a"),
    "compare": ("compare", "a", "b"),
    "tag": ("tag", "a", "x"),
    "note": ("note", "a", "x"),
    "archive": ("archive", "a"),
    "delete": ("delete", "a", "--yes"),
    "export": ("export", "gpt", "--to", "slurm"),
    "export --why": ("export", "--why"),
    "launch --dry-run": ("launch", "gpt", "--cpu", "--dry-run"),
    "launch SCRIPT -- --help": ("launch", "gpt", "--json", "--", "--help"),
    "doctor": ("doctor",),
    "queue list": ("queue", "list"),
    "queue pause": ("queue", "pause"),
    "queue start": ("queue", "start"),
    "queue slots": ("queue", "slots", "2"),
    "sweep list": ("sweep", "list"),
    "push": ("push", "a", "memory://json-keys"),
}
WITHOUT_STORE = {
    "models": ("models",),
    "gpus": ("gpus",),
    "prices": ("prices",),
    "memory": ("memory", "--model", "llama-3-8b", "--gpu", "h100"),
    "memory --inference": ("memory", "--model", "llama-3-8b", "--gpu", "h100", "--inference"),
    "cost": ("cost", "--model", "llama-3-8b", "--gpu", "h100", "--tokens", "1B", "--gpus", "8"),
    "export --trainer": ("export", "--trainer", "torchtune", "--model", "llama-3-8b"),
    "advise": ("advise", "--model", "llama-3-8b", "--gpus", "8"),
    "plan": ("plan", "--model", "llama-3-8b", "--tokens", "1B", "--max-gpus", "8"),
}
LITERAL: dict[str, tuple[tuple[Any, str], ...]] = {
    "lessons": ((lessons, "lessons"),),
    "launch": ((launch, "_start"),),
    **dict.fromkeys(("set", "look", "checkpoint", "evaluate"), ((Answer, "document"),)),
    "resume": ((started, "show_started"),),
    "rerun": ((started, "show_started"), (branching, "rerun")),
    "fork": ((started, "show_started"), (branching, "fork")),
    "generate": ((generating, "generate"),),
    "submit": ((nodes, "_submit"),),
    "ui": ((ui, "ui"),),
    "submit --dry-run": ((nodes, "_show_script"),),
    "calibrate": ((calibrating, "document"),),
    "calibrate --from": ((calibrating, "stack_document"),),
    "queue move": ((Queue, "document"),),
    "queue drop": ((queue, "drop"),),
    "sweep start": ((Sweep, "document"),),
    "sweep start --dry-run": ((sweep, "_dry_document"),),
    "sweep show": ((Sweep, "document"),),
    "sweep stop": ((Sweep, "document"),),
    "sweep resume": ((Sweep, "document"),),
    "data FOLDER": ((PictureReport, "document"),),
    "verify": ((Verification, "document"),),
    "scale": ((ScalingStudy, "document"), (scaling, "scale")),
    "study batch-size": ((Tuning, "document"),),
    "study accumulate": ((Tuning, "document"),),
    "study workers": ((Tuning, "document"),),
    "study compression": ((Compression, "document"),),
    "profile": ((Profile, "document"), (profiling, "profile")),
    "prices --refresh": ((prices, "prices_command"),),
    **{f"notify {part}": ((notifying, "_row"),) for part in ("add", "list", "remove", "test")},
}
"""What is too dear to run here: what writes it names the keys in its source."""
ELSEWHERE = {
    "demo",
    "measure",
    "data",
    "launch --wait",
    "resume --dry-run",
    "resume --wait",
    "rerun --wait",
    "fork --wait",
    "submit --wait",
    "export-model",
    "sweep best",
    "pull",
}
"""A form made of two others, or of `show`'s; tests/measure and test_data.py look at their own."""


def literal_keys(place: Any, name: str) -> set[str]:
    """Keys of the dictionaries that a function writes down, without those of elements and parts."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(place)))
    (function,) = (
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == name
    )
    inner = {
        id(part)
        for one in ast.walk(function)
        if isinstance(one, ast.Dict | ast.ListComp)
        for part in ast.walk(one)
        if part is not one
    }
    return {
        key.value
        for one in ast.walk(function)
        if isinstance(one, ast.Dict) and id(one) not in inner
        for key in one.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def check(form: str, printed: Any) -> None:
    array = isinstance(printed, list)
    assert array == FORMS[form].array, form
    for one in printed if array else [printed]:
        assert set(one) == set(FORMS[form].keys), form


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for run in ("a", "b"):
        make_run(tmp_path / "runs", run, steps=20)
    for name in ("a", "b"):
        said = tmp_path / "runs" / name / "metrics" / "rank-0.said.jsonl"
        said.write_text(
            '{"time": 1.0, "step": 1, "eval_loss": 2.0, "prompt": "a", "answer": "b"}\n'
        )
    return tmp_path / "runs"


@pytest.mark.parametrize("form", QUICK)
def test_a_run_s_command_prints_what_its_help_says(
    form: str, command: Command, store: Path
) -> None:
    words = QUICK[form]
    if "--json" not in words:
        words = (*words, "--json", *(() if form == "export --why" else ("--store", str(store))))
    printed = json.loads(command(*words).out)
    check(form, printed)
    assert printed or form in {"checkpoints", "diagnose", "sweep list"}


@pytest.mark.parametrize("form", WITHOUT_STORE)
def test_an_estimate_prints_what_its_help_says(form: str, command: Command) -> None:
    check(form, json.loads(command(*WITHOUT_STORE[form], "--json").out))


@pytest.mark.parametrize("form", LITERAL)
def test_what_is_dear_to_run_writes_what_its_help_says(form: str) -> None:
    written = {key for place in LITERAL[form] for key in literal_keys(*place)}
    assert written == set(FORMS[form].keys)


def test_values_print_their_fields() -> None:
    fields = set(Finding.__dataclass_fields__)
    assert fields | {"id", "next_command"} == set(FORMS["diagnose"].keys)
    fields = {*Checkpoint.__dataclass_fields__, "name"} - {"manifest"}
    assert fields == set(FORMS["checkpoints"].keys)
    assert {*ExportedModel.__dataclass_fields__, "push"} == set(FORMS["export-model"].keys)
    assert set(PullResult.__dataclass_fields__) == set(FORMS["pull"].keys)
    for form in ("warm start", "warm status", "warm stop"):
        assert literal_keys(Server, "_status") - {"read"} == set(FORMS[form].keys)


def test_every_command_with_json_has_its_keys_in_its_help(command: Command) -> None:
    commands: dict[str, Any] = {}
    for name in COMMANDS:
        made = load(name)
        parts = getattr(made, "commands", None)
        commands |= (
            {f"{name} {part}": one for part, one in parts.items()} if parts else {name: made}
        )
    with_json = {
        name
        for name, one in commands.items()
        if any("--json" in parameter.opts for parameter in one.params)
    }
    assert with_json == {name for name in FORMS if name in commands}
    assert commands.keys() - with_json == WITHOUT_JSON
    tested = {*QUICK, *WITHOUT_STORE, *LITERAL, *ELSEWHERE}
    assert FORMS.keys() - tested == {"warm start", "warm status", "warm stop"}
    told = " ".join(command("show", "--help").out.split())
    assert "show --json: one object with run, name, state, outcome" in told

"""One question, asked in Python, on the command line and of each form: one `Job`, one answer.

300 seeded questions each about an estimate, a launch and an export, some of them impossible: every
face describes the same job, or refuses with the same sentence.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
import typer
from workbench_widgets.cost.choice import CostChoice
from workbench_widgets.job_form import JobForm
from workbench_widgets.launch.export_choice import ExportChoice
from workbench_widgets.planner.choice import WORK, PlannerChoice
from workbench_widgets.strategy.choice import OFFLOADS, StrategyChoice
from workbench_widgets.strategy.preview import look

import workbench as wb
from workbench.cli import exporting as export_command
from workbench.cli import launch as launch_command
from workbench.cli import memory as memory_command
from workbench.cli.commands import load
from workbench.describe.job import Job, options
from workbench.describe.option import declared, flattened
from workbench.engines.export_request import ExportRequest
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.options import LaunchOptions

# 300 in all: a third in `make test`, the others in the full suite.
SEEDS = [
    pytest.param(range(100), id="a third"),
    pytest.param(range(100, 300), id="the others", marks=pytest.mark.full),
]
MODELS = ("gpt2", "llama-3-8b", "llama-3.2-1b", "mixtral-8x7b", "qwen2.5-7b", "no-such-model")
SIZES = {"gpus": (1, 2, 4, 8, 16, 0, 4000), "nodes": (1, 1, 1, 2)}
STRATEGIES = (None, "single", "ddp", "fsdp", "fsdp-grad-op", "zero1", "zero3", "tp", "pp", "fsdpp")
VALUES: dict[str, tuple[Any, ...]] = {
    "micro_batch": (1, 2, 8, 0),
    "seq_len": (128, 1024, 2048, 8192, -1),
    "accumulate": (1, 4, 0),
    "precision": ("fp32", "bf16", "fp16", "fp8", "bf16-pure", "bf17"),
    "optimizer": ("adamw", "adamw-8bit", "sgd", "adamm"),
    "lora_rank": (0, 8, -8),
    "lora_targets": (("q", "v"), ("q", "k", "v", "o", "gate", "up", "down")),
    "quantization": ("none", "nf4", "nf5"),
    "attention": ("sdpa", "eager", "flesh"),
    "loss": ("full", "chunked", "fused"),
    "kernels": ("transformers", "fused", "megatron", "tvm"),
    "offload": tuple(OFFLOADS.values()),
    "recompute": ("none", "full", "selective"),
    "expandable_segments": (True, False),
    "optimizer_in_backward": (True, False),
}


def question(seed: int) -> tuple[str, dict[str, Any]]:
    """A model, and some options by name; most of them possible."""
    chance = random.Random(seed)
    values: dict[str, Any] = {"gpu": chance.choice(("h100", "a100", "rtx-4090", "t4"))}
    for name, sizes in SIZES.items():
        if chance.random() < 0.7:
            values[name] = chance.choice(sizes)
    strategy = chance.choice(STRATEGIES)
    if strategy == "single":
        values |= {"strategy": strategy, "gpus": 1, "nodes": 1}
    elif strategy is not None:
        values |= {"strategy": strategy, "gpus": values.get("gpus", 2)}
    for name in chance.sample(list(VALUES), chance.randrange(5)):
        values[name] = chance.choice(VALUES[name])
    if not values.get("lora_rank"):
        values.pop("lora_targets", None)  # a form hides it; typed, it is refused
    return chance.choice(MODELS), values


def answer(ask: Any) -> Any:
    """The job, without the notes and the name that a face may add; or the sentence against it."""
    try:
        job = ask()
    except wb.UsageError as error:
        return str(error)
    return job.workload, job.strategy, job.cluster


def figures(job: Job) -> list[Any]:
    """Memory and time as a `Job` and as three values get them, or the sentences against it."""
    found: list[Any] = []
    for estimate in (wb.training_memory, wb.step_time):
        try:
            found.append(estimate(job))
            assert estimate(job.workload, job.strategy, job.cluster) == found[-1]
        except wb.UsageError as error:
            found.append(str(error))
    return found


def on_the_command_line(model: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Job:
    """What ``workbench memory`` makes of the same words."""
    words = ["--model", model]
    for name, value in values.items():
        one = options()[name]
        if one.is_switch:
            words += [one.flag] if value else []
        else:
            words += [one.flag, ",".join(value) if isinstance(value, tuple) else str(value)]
    described: list[Job] = []

    def keep(job: Job, _headroom: float) -> Any:
        described.append(job)
        raise typer.Exit

    monkeypatch.setattr(memory_command, "answer", keep)
    command = load("memory")
    with contextlib.suppress(typer.Exit):
        command.main(words, standalone_mode=False)
    return described[0]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_every_face_answers_alike(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    for seed in seeds:
        model, values = question(seed)
        controls = {"model": model, **values}
        expected = answer(lambda: Job.of(model, **values))  # noqa: B023  (called at once)
        refused += isinstance(expected, str)
        faces = {
            "command line": lambda: on_the_command_line(model, values, monkeypatch),  # noqa: B023
            "MemoryCalculator": lambda: JobForm.from_options(controls).job(),  # noqa: B023
            "CostCalculator": lambda: CostChoice.from_options(controls).job(),  # noqa: B023
        }
        for face, ask in faces.items():
            assert answer(ask) == expected, (face, seed, model, values)
        if not isinstance(expected, str):
            own = {name: value for name, value in controls.items() if name in WORK}
            planned = PlannerChoice.from_options(own | {"tokens": "1B"}).question().workload
            part = {name: value for name, value in values.items() if name in WORK}
            assert planned == Job.of(model, gpu="h100", **part).workload, (seed, model, values)
            assert figures(Job.of(model, **values)) == figures(JobForm.from_options(controls).job())
    assert len(seeds) / 5 < refused < len(seeds) * 4 / 5


ARGUMENTS = ("--size", "2", "--seq-len", "64", "--steps", "3")
LAUNCHED = (
    *(None, "single", "ddp", "fsdp", "fsdp-grad-op", "zero1", "tp", "pp", "cp", "dp2-tp2"),
    *("fsdp2-tp2", "pp2-dp2", "hsdp", "fsdpp"),
)
LAUNCH_OPTIONS: dict[str, tuple[Any, ...]] = {
    "recompute": ("none", "full", "selective", "ful"),
    "comm_hook": ("bf16", "powersgd"),
    "bucket_views": (True,),
    "state_dict": ("full", "sharded"),
    "schedule": ("gpipe", "naive", "2f2b"),
    "virtual_stages": (2, 0),
    "cp_method": ("ulysses",),
    "sync_every_micro_batch": (True, False),
    "sequence_parallel": (True,),
}


def launch_question(seed: int) -> dict[str, Any]:
    """A strategy, a number of ranks and options of the strategy, each where it is given."""
    chance = random.Random(seed)
    asked = {"strategy": chance.choice(LAUNCHED), "processes": chance.choice((None, 1, 2, 4, 0))}
    names = chance.sample(list(LAUNCH_OPTIONS), chance.choice((0, 0, 1, 2)))
    options = {name: chance.choice(LAUNCH_OPTIONS[name]) for name in names}
    return {**{name: one for name, one in asked.items() if one is not None}, "options": options}


def checked(ask: Any) -> Any:
    """The job that would be launched and its predicted memory, or the sentence against it."""
    try:
        request = ask()
    except wb.UsageError as error:
        return str(error)
    return request.job, request.predicted


def typed(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> wb.Request:
    """What ``workbench launch`` makes of the same words."""
    words = ["gpt", "--cpu"]
    names = {"strategy": asked.get("strategy"), "processes": asked.get("processes")}
    known = flattened(LaunchOptions)
    for name, value in {**names, **asked["options"]}.items():
        one = known[name][1]
        if value is False and one.option.off_flag:
            words.append(f"--{one.option.off_flag}")
        elif value is not None:
            words += [one.flag] if value is True else [one.flag, str(value)]
    found: list[wb.Request] = []

    def keep(script: str, arguments: list[str], options: LaunchOptions) -> None:
        found.append(build_request(script, arguments, options))
        raise typer.Exit

    monkeypatch.setattr(launch_command, "build_request", keep)
    with contextlib.suppress(typer.Exit):
        load("launch").main([*words, "--", *ARGUMENTS], standalone_mode=False)
    return found[0]


def picked(asked: dict[str, Any]) -> Any:
    """What the strategy picker makes of it; None where a control that was moved has no effect."""
    words = {None: "default", True: "yes", False: "no"}
    controls = {
        name: words[value] if name == "sync_every_micro_batch" else value
        for name, value in asked["options"].items()
    }
    given = {name: asked[name] for name in ("strategy", "processes") if name in asked}
    is_one = given.get("strategy") == "single" and given.get("processes", 1) != 1
    choice = StrategyChoice.from_options(given | controls)
    if is_one or set(controls) & set(choice.hidden()):
        return None
    found = look({"target": "gpt", "arguments": list(ARGUMENTS), "cpu": True}, choice)
    if found.request is None:
        raise wb.UsageError(found.problem)
    return found.request


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_every_face_launches_alike(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = compared = 0
    for seed in seeds:
        asked = launch_question(seed)
        expected = checked(lambda: wb.request("gpt", ARGUMENTS, cpu=True, **asked))  # noqa: B023
        refused += isinstance(expected, str)
        assert checked(lambda: typed(asked, monkeypatch)) == expected, (seed, asked)  # noqa: B023
        if not isinstance(expected, str):
            job, predicted = expected
            assert checked(lambda: wb.request(job)) == (job, predicted), (seed, asked)  # noqa: B023
        if asked.get("processes") != 0:  # which the picker has no control for
            found = picker_answer(asked)
            compared += found is not None
            assert found is None or ended(found) == ended(expected), (seed, asked, found)
    assert len(seeds) / 6 < refused < len(seeds) * 5 / 6
    assert compared > len(seeds) / 3


def ended(answer: Any) -> Any:
    """With the full stop that a recipe's own sentence lacks and the picker adds."""
    return f"{answer.rstrip('.')}." if isinstance(answer, str) else answer


def picker_answer(asked: dict[str, Any]) -> Any:
    try:
        request = picked(asked)
    except wb.UsageError as error:
        return str(error)
    return None if request is None else (request.job, request.predicted)


READ_EXPORT = export_command._request
EXPORTS: dict[str, tuple[Any, ...]] = {
    "nodes": (1, 2, 0),
    "processes_per_node": (1, 4, 8),
    "gpu": ("h100", "a100", "h1000"),
    "strategy": ("ddp", "fsdp", "zero2", "dp2-tp2", "pp", "fsdpp"),
    "provider": ("aws", "nebius", "nowhere"),
    "spot": (True,),
    "restarts": (2, 0, -1),
    "max_hours": (12.5, 0.0),
    "idle_minutes": (15, 0),
    "checkpoint_uri": ("s3://bucket/x",),
}


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_every_face_exports_alike(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    for seed in seeds:
        chance = random.Random(seed)
        names = chance.sample(list(EXPORTS), chance.randrange(5))
        asked = {name: chance.choice(EXPORTS[name]) for name in names}
        expected = exported(lambda: ExportRequest.of("gpt", asked))  # noqa: B023
        refused += isinstance(expected, str)
        controls = {
            ("checkpoints" if name == "checkpoint_uri" else name): asked[name] for name in asked
        }
        faces = {
            "command line": lambda: typed_export(asked, monkeypatch),  # noqa: B023
            "Export": lambda: ExportChoice.from_options(controls).request(),  # noqa: B023
        }
        for face, ask in faces.items():
            assert exported(ask) == expected, (face, seed, asked)
    assert len(seeds) / 6 < refused < len(seeds) * 5 / 6


def exported(ask: Any) -> Any:
    try:
        return ask().engine_job()
    except wb.UsageError as error:
        return str(error)


def typed_export(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> ExportRequest:
    """What ``workbench export`` makes of the same words."""
    words = ["gpt", "--to", "skypilot"]
    for name, value in asked.items():
        flag = declared(ExportRequest)[name].flag
        words += [flag] if value is True else [flag, str(value)]
    found: list[ExportRequest] = []

    def keep(command: Any) -> None:
        found.append(READ_EXPORT(command))
        raise typer.Exit

    monkeypatch.setattr(export_command, "_request", keep)
    with contextlib.suppress(typer.Exit):
        load("export").main(words, standalone_mode=False)
    return found[0]

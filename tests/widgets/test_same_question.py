"""One question, asked in Python, on the command line and of each calculator: one `Job`, one answer.

300 seeded questions, some of them impossible: every face describes the same job, or refuses with
the same sentence.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
import typer
from workbench_widgets.cost.choice import CostChoice
from workbench_widgets.memory.choice import LORA_TARGETS, OFFLOADS, MemoryChoice
from workbench_widgets.planner.choice import WORK, PlannerChoice

import workbench as wb
from workbench.cli import memory as memory_command
from workbench.cli.commands import load
from workbench.describe.job import Job, options

QUESTIONS = 300
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
    "lora_targets": tuple(LORA_TARGETS.values()),
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


def as_controls(values: dict[str, Any]) -> dict[str, Any]:
    """The same in the words of the calculators' controls."""
    tables = {"lora_targets": LORA_TARGETS, "offload": OFFLOADS}
    return {
        name: next(word for word, one in tables[name].items() if one == value)
        if name in tables
        else value
        for name, value in values.items()
    }


@pytest.mark.slow
def test_every_face_answers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    for seed in range(QUESTIONS):
        model, values = question(seed)
        controls = {"model": model, **as_controls(values)}
        expected = answer(lambda: Job.of(model, **values))  # noqa: B023  (called at once)
        refused += isinstance(expected, str)
        faces = {
            "command line": lambda: on_the_command_line(model, values, monkeypatch),  # noqa: B023
            "MemoryCalculator": lambda: MemoryChoice.from_options(controls).job(),  # noqa: B023
            "CostCalculator": lambda: CostChoice.from_options(controls).job.job(),  # noqa: B023, PLW0108
        }
        for face, ask in faces.items():
            assert answer(ask) == expected, (face, seed, model, values)
        if not isinstance(expected, str):
            own = {name: value for name, value in controls.items() if name in WORK}
            planned = PlannerChoice.from_options(own | {"tokens": "1B"}).question().workload
            part = {name: value for name, value in values.items() if name in WORK}
            assert planned == Job.of(model, gpu="h100", **part).workload, (seed, model, values)
            assert figures(Job.of(model, **values)) == figures(
                MemoryChoice.from_options(controls).job()
            )
    assert QUESTIONS / 5 < refused < QUESTIONS * 4 / 5

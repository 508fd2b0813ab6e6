"""What to type for a preset's strategy gives that strategy again: every trainer, five models."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

import workbench as wb
from workbench.cli.describing import as_options
from workbench.describe.option import declared
from workbench.describe.trainers import trainers

LAYOUTS = {
    "llama-3-8b": "fsdp",
    "gpt2": "ddp",
    "qwen2.5-7b": "zero3",
    "llama-3-70b": "fsdp4-pp2",
    "mixtral-8x7b": "tp2-fsdp4",
}


def typed(text: str) -> dict[str, Any]:
    """The options in a line of flags, as the command line reads them."""
    flags = {one.flag: (name, True) for name, one in declared(wb.Strategy).items()}
    for name, one in declared(wb.Strategy).items():
        flags[f"--{one.option.off_flag or 'no-' + one.flag.removeprefix('--')}"] = (name, False)
    values: dict[str, Any] = {}
    value: Any
    words = shlex.split(text)
    while words:
        word = words.pop(0)
        name, value = ("strategy", True) if word == "--strategy" else flags[word]
        if words and not words[0].startswith("--"):
            value = words.pop(0)
        values[name] = int(value) if str(value).isdecimal() else value
    return values


@pytest.mark.parametrize("name", list(trainers()))
@pytest.mark.parametrize("model", list(LAYOUTS))
def test_what_to_type_for_a_preset_gives_its_strategy(name: str, model: str) -> None:
    where = {"gpu": "h100", "gpus": 8}
    job = wb.Job.of(model, **where, strategy=LAYOUTS[model], trainer=name)
    again = wb.Job.of(model, **where, **typed(as_options(job.strategy)), trainer=name)
    assert (again.strategy, again.workload) == (job.strategy, job.workload)
    plain = wb.Job.of(model, **where, **typed(as_options(job.strategy)))
    assert plain.strategy == job.strategy

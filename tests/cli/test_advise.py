"""``workbench advise``: the rules in a terminal and as JSON."""

from __future__ import annotations

import json

from tests.cli.conftest import Command
from workbench.cli.advising import USUAL_GPU

JOB = ("advise", "--model", "llama-3-8b", "--gpus", "8")


def test_each_rule_says_whether_it_holds_and_what_to_do(command: Command) -> None:
    words = (*JOB, "--gpu", "a100", "--strategy", "ddp", "--lr", "3e-4", "--lr-batch", "0.5M")
    found = {one["rule"]: one for one in json.loads(command(*words, "--json").out)}
    assert found["ddp-or-fsdp"]["holds"] is False
    assert found["ddp-or-fsdp"]["next"] == "--strategy fsdp"
    assert found["all-reduce-time"]["holds"] is None
    assert found["learning-rate"]["numbers"]["rule"] == "sqrt"
    assert found["more-gpus"]["numbers"]["hours_on_one_gpu"] is None
    text = command(*words).out
    for name, one in found.items():
        assert f"{name}  " in text
        mark = {True: "✓", False: "!", None: "·"}[one["holds"]]
        assert f"{mark} {name}" in text
    assert "Next: --strategy fsdp" in text


def test_without_a_gpu_one_is_assumed_and_named(command: Command) -> None:
    done = command(*JOB)
    assert f"no --gpu was given: {USUAL_GPU} is assumed" in done.err
    assert "H100" in done.out
    assert json.loads(command(*JOB, "--json").out)


def test_tokens_and_a_deadline_are_weighed(command: Command) -> None:
    words = (*JOB, "--gpu", "h100", "--tokens", "10B", "--deadline-hours", "24", "--json")
    first = json.loads(command(*words).out)[0]
    assert (first["rule"], first["holds"]) == ("more-gpus", False)
    assert first["numbers"]["gpus_for_the_deadline"] > 8


def test_the_time_between_checkpoints_follows_the_interruptions(command: Command) -> None:
    words = (*JOB, "--gpu", "h100", "--checkpoint-seconds", "60", "--interruption-hours", "8")
    found = {one["rule"]: one for one in json.loads(command(*words, "--json").out)}
    assert found["checkpoint-interval"]["verdict"] == "Save every 30 min 19 s."


def test_wrong_values_are_refused(command: Command) -> None:
    for words, why in (
        (("--loss", "0"), "loss must be above 0"),
        (("--lr", "-1"), "lr must be above 0"),
        (("--checkpoint-seconds", "60", "--interruption-hours", "0"), "interruption_hours must"),
        (("--deadline-hours", "inf"), "deadline_hours must be below 1e30, not inf"),
        (("--cpu",), "name a GPU"),
    ):
        done = command(*JOB, *words)
        assert done.code == 2
        assert why in done.err

"""What Python callers give in the place of a script, its arguments or a mapping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

import workbench as wb

ANY: Any = wb
JOB = wb.Job.of("gpt2")
H100 = wb.Cluster.rented("h100", 1)


def test_numbers_are_written_out(tmp_path: Path) -> None:
    how = {"cpu": True, "processes": 1, "store": tmp_path / "runs"}
    words = ["--steps", 5, "--lr", 3e-4]
    asked = ANY.request("gpt", words, **how)
    assert asked.arguments == ("--steps", "5", "--lr", "0.0003")
    assert asked.steps_total == 5


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ANY.request("gpt", "--steps 5"), "a list of words, as ['--steps', '5'], not"),
        (lambda: ANY.request("gpt", ["--steps", None]), "a list of words, as"),
        (lambda: ANY.request(5), "Give a recipe's name, the path of a script"),
        (lambda: ANY.request("gpt", processes="two", cpu=True), "a whole number, not 'two'"),
        (lambda: ANY.plan("llama-3-8b", tokens=1e9), "A plan is made for a Workload or a Job"),
        (
            lambda: ANY.plan(JOB, tokens=1e9, limits={}),
            "a Limits, as Limits(budget_usd=500), not {}",
        ),
        (lambda: ANY.plan(JOB, tokens=1e9, space={"most_tp": 2}), "a Space, as Space(most_tp=8)"),
        (lambda: ANY.plan(JOB, conditions=[], tokens=1e9), "a Conditions, as Conditions(), not []"),
        (lambda: ANY.plan(JOB, run={"tokens": 1}), "a RunPlan, as RunPlan(tokens=10**9), not {"),
        (lambda: ANY.plan_on(None, JOB, tokens=1e9), "cluster must be a Cluster, as Cluster.rent"),
        (lambda: ANY.plan_on(H100, JOB, tokens=1e9, space=[]), "a Space, as Space(most_tp=8), not"),
        (lambda: ANY.explain("13 GiB", JOB), "estimate must be what training_memory answers, not"),
        (lambda: ANY.start("gpt"), "request must be what wb.request makes, as wb.request('gpt')"),
        (lambda: ANY.scale(3), "target must be a recipe's name, the path of a script or a Job"),
        (lambda: ANY.measure(3), "script must be the path of a script, as 'train.py', not"),
        (lambda: ANY.read_strategy({}), "path must be the path of a config file, as 'accelerate."),
        (lambda: ANY.sweep("gpt", grid=[1]), 'grid maps options to values, as {"lr": '),
        (lambda: ANY.sweep("gpt", "--steps 5", grid={"lr": [1]}), "a list of words, as"),
        (lambda: ANY.export("nope", "slurm"), "No recipe or script 'nope', and no run: "),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(
    call: Callable[[], object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "runs"))
    with pytest.raises(wb.UsageError) as told:
        call()
    assert said in str(told.value)
    assert not (tmp_path / "runs").exists()

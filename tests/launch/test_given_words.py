"""What Python callers give in the place of a script, its arguments or a mapping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

import workbench as wb

ANY: Any = wb


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

"""Rounds of the soak follow from their seed; a few are played. All of them: make soak."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import soak, soak_plan


def test_a_round_follows_from_its_seed_alone_and_all_kinds_meet_all_strategies() -> None:
    plans = [soak_plan.Plan.draw(1, number) for number in range(200)]
    assert plans[17] == soak_plan.Plan.draw(1, 17)
    assert plans[17] != soak_plan.Plan.draw(2, 17)
    met = {(plan.strategy, plan.victims) for plan in plans}
    assert len(met) == len(soak_plan.STRATEGIES) * len(soak_plan.VICTIMS)
    assert {plan.damage for plan in plans} == set(soak_plan.DAMAGES)
    before_restarts = {plan.damage for plan in plans if plan.damages_restart}
    assert before_restarts == set(soak_plan.DAMAGES) - {"none"}


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)
def test_three_rounds(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", soak.__name__, "--rounds", "3", "--seed", "3"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, "--result", str(result)], cwd=root, capture_output=True, text=True, check=False
    )
    assert result.exists(), done.stdout + done.stderr
    assert json.loads(result.read_text())["failures"] == {}, done.stdout

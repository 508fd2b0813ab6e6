"""Locked predictions: the first number counts, and only what was locked before is scored."""

from __future__ import annotations

import doctest
import re
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import predictions as module
from workbench_widgets.predictions import Predictions

from tests.widgets.notebook_run import read
from workbench.errors import UsageError


def test_the_example() -> None:
    result = doctest.testmod(module)
    assert result.attempted == 4
    assert result.failed == 0


def test_the_score_counts_what_is_close() -> None:
    mine = Predictions()
    for question, number, answer in (("a", 125, 100), ("b", 126, 100), ("c", 0, 0), ("d", 1, 0)):
        mine.lock(question, number)
        mine.reveal(question, answer)
    assert repr(mine) == "2 of 4 predictions right within 25 %"  # a and c
    assert mine.reveal("b", 100) == "b: 100. You said 126: further off than 25 %."


def test_a_lock_holds() -> None:
    mine = Predictions()
    mine.lock("a", 3)
    assert mine.lock("a", 3) == "Locked: a: 3."  # the same cell, run again
    with pytest.raises(UsageError, match="locked at 3: the first number counts"):
        mine.lock("a", 4)
    mine.reveal("a", 10)
    with pytest.raises(UsageError, match="locked at 3"):
        mine.lock("a", 10)
    assert repr(mine) == "0 of 1 predictions right within 25 %"


@pytest.mark.parametrize("given", ["12", "12 GiB", [12], float("nan")])
def test_only_a_number_is_locked(given: Any) -> None:
    mine = Predictions()
    with pytest.raises(UsageError, match=re.escape(f"without its unit, not {given!r}")):
        mine.lock("GiB", given)
    assert mine.lock("GiB", 12) == "Locked: GiB: 12."


@pytest.mark.parametrize("name", ["16_number_formats", "17_asynchronous", "18_experts"])
def test_a_lesson_s_questions_can_be_run_again_without_being_opened(name: str) -> None:
    """The cell with the numbers does not renew what holds them: the first number counts."""
    code = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
    (asked,) = [source for source in code if "predictions.lock(" in source]
    (opened,) = [line for source in code for line in source.splitlines() if "Predictions()" in line]
    names: dict[str, Any] = {"Predictions": Predictions}
    exec(opened, names)
    exec(asked.replace("None)", "5)"), names)
    with pytest.raises(UsageError, match="the first number counts"):
        exec(asked.replace("None)", "6)"), names)


def test_what_was_not_predicted_is_not_scored_and_comes_too_late() -> None:
    mine = Predictions()
    assert mine.lock("a", None).startswith("Not predicted: a.")
    assert mine.reveal("a", 7) == "a: 7. Not predicted, not scored."
    with pytest.raises(UsageError, match="too late"):
        mine.lock("a", 7)
    assert repr(mine) == "0 of 0 predictions right within 25 %"

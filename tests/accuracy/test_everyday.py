"""The everyday questions are answered as everyday.md says."""

from __future__ import annotations

import pytest

from tests.accuracy.everyday import PAGE, reply
from tests.accuracy.everyday_questions import QUESTIONS, Question


@pytest.mark.parametrize("question", QUESTIONS, ids=[each.text for each in QUESTIONS])
def test_the_answer_is_within_its_tolerance(question: Question) -> None:
    answer = reply(question)
    assert answer.holds, (question.command, answer.value, question.known, answer.difference)


def test_the_page_has_every_question() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [each.text for each in QUESTIONS if f"| {each.text} | `{each.command}` |" not in page]
    assert not missing, "run python -m tests.accuracy.everyday --write"


def test_there_are_enough_and_most_are_right() -> None:
    assert len(QUESTIONS) >= 25
    assert sum(each.off is None for each in QUESTIONS) >= 0.7 * len(QUESTIONS)

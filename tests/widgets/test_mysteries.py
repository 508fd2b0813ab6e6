"""The mysteries of notebook 10: what was done is what the rules say, and answers are graded."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets.faults import mysteries

import workbench as wb
from tests.diagnose.mysteries import MADE, RECORDED
from workbench.diagnose.offline import diagnose_offline

ANSWERS = {name: one[-1] for name, one in {**RECORDED, **MADE}.items()}
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "10_when_it_breaks.ipynb"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, mysteries.Mystery]:
    return mysteries.sealed(tmp_path_factory.mktemp("mysteries"))


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_what_was_done_is_what_the_rules_say(
    cases: dict[str, mysteries.Mystery], name: str
) -> None:
    case = cases[name]
    assert mysteries.answer_of(diagnose_offline(case.paths)) == ANSWERS[name]
    said = case.grade(ANSWERS[name])
    assert said.startswith(f"{name}: right.")
    assert len(said.splitlines()) >= 2


def test_they_are_of_different_kinds(cases: dict[str, mysteries.Mystery]) -> None:
    assert set(cases) == set(ANSWERS)
    assert {cause for _, _, cause in ANSWERS.values()} == set(mysteries.CAUSES)


@pytest.mark.parametrize(
    ("answer", "wrong", "hint"),
    [
        ((0, "backward", "unequal batches"), "rank", "waits least"),
        ((2, "optimizer", "unequal batches"), "phase", "same column of the others"),
        ((2, "backward", "slow rank"), "cause", "samples column"),
        ((None, "none", "nothing"), "rank, phase, cause", "waits least"),
    ],
)
def test_a_wrong_answer_gets_a_hint_and_no_finding(
    cases: dict[str, mysteries.Mystery], answer: Sequence[object], wrong: str, hint: str
) -> None:
    first, *more = cases["B"].grade(answer).splitlines()
    assert first == f"B: {wrong} wrong."
    assert hint in " ".join(more)
    assert "imbalanced" not in " ".join(more)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("forward", "rank, phase and cause"),
        ((1, "input"), "rank, phase and cause"),
        (("rank 1", "input", "slow rank"), "its number, or None"),
        ((1.0, "input", "slow rank"), "its number, or None"),
        ((1, "middle", "slow rank"), "input, forward"),
        ((1, "input", "gremlins"), "slow loader"),
    ],
)
def test_an_answer_of_another_form_says_what_to_give(
    cases: dict[str, mysteries.Mystery], answer: Sequence[object], says: str
) -> None:
    with pytest.raises(wb.UsageError, match=says):
        cases["A"].grade(answer)


def test_nothing_tells_the_answer(cases: dict[str, mysteries.Mystery]) -> None:
    """Neither the notebook's cells nor the names in the recordings."""
    text = " ".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
    assert not any(repr(one) in text or str(one)[1:-1] in text for one in ANSWERS.values())
    assert all(f'"{name}": None' in text for name in (*ANSWERS, "live"))
    sealed = lzma.decompress(mysteries.DATA.read_bytes()).decode()
    recorded = [run for _, run, _ in RECORDED.values()]
    assert not any(word in sealed for word in (*recorded, "uneven", *mysteries.CAUSES))
    for name, case in cases.items():
        assert case.evidence().startswith(f"{name}: ")
    assert mysteries.DATA.stat().st_size < 64_000


@pytest.mark.full
@pytest.mark.slow
def test_a_living_one_is_what_the_rules_say(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_STORE", str(store))
    for seed, cause in ((0, "slow loader"), (2, "slow rank")):
        case = mysteries.live(seed=seed)
        answer = mysteries.answer_of(diagnose_offline(case.paths))
        assert answer[2] == cause
        assert case.grade(answer).startswith("live: right.")
        assert "4 ranks" in case.evidence()

"""Scripts that are not ours: the predicted peak at another batch and layout, beside a ledger's."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.measure.cases import CASES
from tests.measure.harness import Case, ledger_bytes, measured, predicted_bytes

QUICK = {"plain_loop.py", "recommender.py"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case.script in QUICK else pytest.mark.full, id=case.script)
        for case in CASES
    ],
)
def test_the_predicted_peak_is_the_ledgers(case: Case, tmp_path: Path) -> None:
    predicted = predicted_bytes(measured(case, tmp_path, warm=True), case)
    assert predicted == pytest.approx(ledger_bytes(case, tmp_path / "check", warm=True), rel=0.1)

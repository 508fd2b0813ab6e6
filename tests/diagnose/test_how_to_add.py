"""CONTRIBUTING's way to add a finding, followed step by step, and the list that it asks for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench.diagnose
from tests.diagnose.sample import Replay, kinds, row
from workbench.diagnose import diagnoser, error_table, error_table_code
from workbench.diagnose.evidence import Evidence
from workbench.store.findings import Finding

FOLDER = Path(workbench.diagnose.__file__).parent
LISTED = set(re.findall(r"``([\w-]+)``", workbench.diagnose.__doc__ or ""))


def zero_learning_rate(evidence: Evidence) -> Iterator[Finding]:
    """Twenty steps at a learning rate of 0."""
    rates = [one.lr for one in evidence.latest(20)]
    if len(rates) == 20 and not any(rates):
        yield Finding(
            kind="zero-learning-rate",
            step=evidence.steps,
            confidence=0.9,
            evidence="The learning rate was 0 in the latest 20 steps.",
            cause="The schedule has ended, or was never stepped.",
            next="Compare the steps of the scheduler with those of the run.",
        )


def test_a_rule_that_is_added_fires_and_stays_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnoser, "RULES", (*diagnoser.RULES, zero_learning_rate))
    for name, rate in (("zero", 0.0), ("usual", 1e-3)):
        (tmp_path / name).mkdir()
        rows = [row(step, 3.0 - step / 1000, lr=rate) for step in range(1, 40)]
        expected = ["zero-learning-rate"] if rate == 0 else []
        assert kinds(Replay(tmp_path / name).rows(rows)) == expected


def test_every_kind_is_listed() -> None:
    """Those given as a word; ``xid-N`` is made of the driver's number."""
    given = {
        keyword.value.value
        for path in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "kind"
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
    }
    tables = (error_table.MEMORY, error_table.ENVIRONMENT, error_table.MACHINE)
    tables += (error_table.PROCESSES, error_table.HUB)
    tables += (error_table_code.TRAINING, error_table_code.FILES)
    given |= {known.kind for table in tables for known in table}
    assert len(given) > 60
    assert given - LISTED == set()

"""Scripts that nothing was tuned on: steps, unit and findings of real runs against the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import until
from tests.styles.cases import CASES, SCRIPTS, Case
from workbench.observe.summary import throughput

pytestmark = [pytest.mark.full, pytest.mark.slow]
_SECONDS = 300.0


def test_every_script_has_a_case() -> None:
    assert {case.script for case in CASES} == {path.stem for path in SCRIPTS.glob("*.py")}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.outcome], ids=lambda case: case.script
)
def test_a_run_says_what_is_true(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "runs"
    script = SCRIPTS / f"{case.script}.py"
    strategy = "single" if case.ranks == 1 else "ddp"
    run = wb.launch(
        script, strategy=strategy, processes=case.ranks, cpu=True, warm=True, store=store
    )
    try:
        until(lambda: not run.status.live, _SECONDS)
        summary = run.summary()
        assert summary["outcome"] == case.outcome
        assert case.steps in {None, summary["steps"]}
        rate = throughput(summary)
        assert (rate and rate[0].removesuffix("/s")) == case.unit
        standing = [found.kind for found in run.findings() if found.cleared_at is None]
        assert [kind for kind in standing if kind != "host-contention"] == list(case.kinds)
    finally:
        run.stop(now=True)

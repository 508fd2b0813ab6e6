"""Scripts that nothing was tuned on: steps, unit and findings of real runs against the truth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import until
from tests.styles.cases import CASES, SCRIPTS, Case
from workbench.measuring.measure import measure
from workbench.observe.summary import throughput
from workbench.verifying.verify import VerifyError, VerifyOptions, verify

pytestmark = [pytest.mark.full, pytest.mark.slow]
_SECONDS = 300.0
_NAMES = {"ids": lambda case: case.script}


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for all: runs of one home share a warm server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


def test_every_script_has_a_case() -> None:
    assert {case.script for case in CASES} == {path.stem for path in SCRIPTS.glob("*.py")}


def _of_a_busy_host(case: Case) -> set[str]:
    """What may be true here: a loader's worker that has no core keeps its rank waiting."""
    busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    return {"host-contention"} | ({"input-bound"} - set(case.kinds) if busy else set())


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.outcome], ids=lambda case: case.script
)
def test_a_run_says_what_is_true(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "runs"
    script = SCRIPTS / f"{case.script}.py"
    strategy = "single" if case.ranks == 1 else "ddp"
    run = wb.launch(
        script,
        case.arguments,
        strategy=strategy,
        processes=case.ranks,
        cpu=True,
        warm=True,
        store=store,
    )
    try:
        until(lambda: not run.status.live, _SECONDS)
        summary = run.summary()
        assert summary["outcome"] == case.outcome
        assert case.steps in {None, summary["steps"]}
        rate = throughput(summary)
        assert (rate and rate[0].removesuffix("/s")) == case.unit
        standing = [found.kind for found in run.findings() if found.cleared_at is None]
        busy = _of_a_busy_host(case)
        assert [kind for kind in standing if kind not in busy] == list(case.kinds)
    finally:
        run.stop(now=True)


@pytest.mark.parametrize("case", CASES, **_NAMES)
def test_verify_says_what_is_true(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = VerifyOptions(cpu=True)
    if case.verdicts is None:
        with pytest.raises(VerifyError, match="starts its ranks itself"):
            verify(SCRIPTS / f"{case.script}.py", options=options)
        return
    answer = verify(SCRIPTS / f"{case.script}.py", options=options)
    found = [verdict.kind for verdict in answer.verdicts if verdict.severity != "note"]
    assert found == list(case.verdicts)


@pytest.mark.parametrize("case", CASES, **_NAMES)
def test_measure_says_what_is_true(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script, store = SCRIPTS / f"{case.script}.py", tmp_path / "runs"
    workload = measure(script, cpu=True, store=store).workload
    found = (workload.model.parameters, workload.micro_batch, workload.accumulate)
    assert found == case.measured

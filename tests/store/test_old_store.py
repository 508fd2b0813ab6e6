"""A store that an earlier version wrote still opens, compares and resumes. See `tests.old_store`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import workbench as wb
from tests.conftest import until
from workbench.cli.entry import app
from workbench.errors import ForeignRunError
from workbench.launching.resume.run_options import options_of
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.starts import read_attempts


def printed(*words: str, root: Path) -> Any:
    done = CliRunner().invoke(app, [*words, "--store", str(root), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_an_old_store_is_listed(old_store: Path) -> None:
    rows = {row["run"]: row for row in printed("runs", root=old_store)}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "finished": "succeeded",
        "failed": "failed",
        "stopped": "stopped",
    }
    assert [rows[name]["steps"] for name in ("finished", "failed", "stopped")] == [6, 4, 18]
    assert rows["finished"]["loss_last"] == pytest.approx(5.5245, abs=1e-4)
    assert rows["stopped"]["strategy"] == "ddp"


def test_an_old_run_is_shown_with_its_prediction_and_its_findings(old_store: Path) -> None:
    shown = printed("show", "finished", root=old_store)
    assert shown["predicted"]["memory"]["parts"]["parameters"] == 19456
    assert shown["world_size"] == 2
    failed = printed("show", "failed", root=old_store)
    assert failed["failed_rank"] in {0, 1}
    assert "the data ended at step 5" in failed["message"]
    assert [one["kind"] for one in failed["findings"]] == ["rank-failed"]
    assert len(printed("metrics", "stopped", root=old_store)) == 18
    assert "the data ended" in wb.attach("failed", old_store).logs(rank=failed["failed_rank"])
    (checkpoint,) = printed("checkpoints", "stopped", root=old_store)
    assert (checkpoint["step"], checkpoint["problem"]) == (18, "")


def test_old_runs_are_compared(old_store: Path) -> None:
    found = printed("compare", "finished", "stopped", "failed", root=old_store)
    differs = {one["what"]: one["values"] for one in found["configuration"]}
    assert differs["argument --steps"] == {"finished": "6", "stopped": None, "failed": None}
    assert differs["workload accumulate"]["stopped"] == 64
    results = {one["what"]: one["values"] for one in found["results"]}
    assert results["steps"] == {"finished": 6, "stopped": 18, "failed": 4}


def test_an_old_record_says_what_it_was_launched_with(old_store: Path) -> None:
    run = wb.attach("stopped", old_store)
    options = options_of(RunPaths(run.directory), RunRecord.of(run.document))
    assert isinstance(options.strategy, wb.Strategy)
    assert (options.strategy.name, options.strategy.world_size) == ("ddp", 2)
    assert (options.processes, options.cpu, options.warm) == (2, True, False)


@pytest.mark.slow
def test_a_copied_old_run_is_resumed_once_it_is_adopted(old_store: Path) -> None:
    run = wb.attach("stopped", old_store)
    with pytest.raises(ForeignRunError, match="workbench adopt stopped"):
        run.resume()
    assert printed("adopt", "stopped", root=old_store)["accepted"]
    again = run.resume(arguments=["--steps", "20"], warm=True)
    assert again.id == "stopped"
    until(lambda: not again.status.live, what=lambda: again.logs(tail=20))
    assert again.outcome == "succeeded"
    assert again.document["steps_total"] == 20
    steps = [row["step"] for row in again.metrics()]
    assert steps == list(range(1, 21))
    starts = [one for one in read_attempts(RunPaths(again.directory)) if one["event"] == "start"]
    assert [one["first_step"] for one in starts] == [0, 18]


def test_an_old_run_gives_its_job_to_the_estimates(old_store: Path) -> None:
    runs = {wb.attach(name, old_store) for name in wb.Store(old_store).ids()}
    described = {run.document["name"]: run.job for run in runs}
    assert sum(job is None for job in described.values()) == 1
    for run in runs:
        if (job := run.job) is None:
            assert "line.py was launched without a job" in run.why_no_job()
            continue
        predicted = run.document["predicted"]["memory"]["parts"]
        assert wb.training_memory(job).parts.keys() == predicted.keys()
        assert wb.training_memory(job).parts["parameters"] == predicted["parameters"]

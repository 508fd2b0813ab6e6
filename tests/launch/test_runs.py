"""Real runs on 2 CPU processes: what is recorded, how they end, what they tell."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import SCRIPTS, until
from tests.faults.matrix import record
from tests.launch.ranks import printed
from workbench.compare import index
from workbench.observe.rows import kept_row
from workbench.store.layout import RunPaths
from workbench.store.processes import is_alive

pytestmark = pytest.mark.slow
Start = Callable[..., wb.Run]


def test_raw_ddp_is_observed_without_an_edit(start: Start) -> None:
    run = start("raw_ddp.py", ("--steps", "12"))
    assert run.wait(120) == "succeeded", run.status
    summary = run.summary()
    assert (summary["steps"], summary["world_size"], summary["exit_code"]) == (12, 2, 0)
    for rank in (0, 1):
        rows = run.metrics(rank)
        printed = [float(line.split()[-1]) for line in run.logs(rank).splitlines()]
        assert [row["step"] for row in rows] == list(range(1, 13))
        assert [round(row["loss"], 4) for row in rows] == printed  # rank N's log is rank N's
        assert rows[0]["lr"] == 0.05
    both = run.metrics()
    assert both[3]["loss"] == pytest.approx(
        (run.metrics(0)[3]["loss"] + run.metrics(1)[3]["loss"]) / 2
    )
    assert run.view()["steps"] == 12
    assert run.summary()["peak_memory_bytes"][1] > 100e6
    assert (run.directory / "report.html").stat().st_size > 4000
    state = json.loads((run.directory / "state.json").read_text())
    assert state["phase"] == "ended"
    assert not is_alive(state["supervisor"])  # nothing is written after `wait`
    assert set(state["ranks"]) == {"0", "1"}


def test_accelerate_accumulation_counts_optimizer_steps(start: Start) -> None:
    run = start("accelerate_loop.py", ("--steps", "6", "--accumulate", "3"))
    assert run.wait(120) == "succeeded", run.status
    rows = run.metrics(0)
    assert len(rows) == 6
    assert all(row["grad_norm"] > 0 and row["lr"] == 0.01 for row in rows)
    assert "done on 2 processes" in run.logs(0)


@pytest.mark.full
def test_bare_accelerate_gives_the_same_losses(start: Start) -> None:
    """The printed command, without the workbench, does the same training."""
    run = start("raw_ddp.py", ("--steps", "5"))
    run.wait(120)
    checked = wb.request(
        SCRIPTS / "raw_ddp.py", ["--steps", "5"], cpu=True, store=run.directory.parent, name=run.id
    )
    command = ["bash", "-c", checked.shell()]
    bare = printed(
        subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    )
    of_rank = re.findall(r"rank 1 step \d+ loss \d+\.\d{4}", bare)  # lines interleave there
    assert of_rank == run.logs(1).splitlines()


def test_an_exception_on_one_rank_is_named(start: Start) -> None:
    run = start("raw_ddp.py", ("--steps", "2000", "--raise-at", "4"))
    assert run.wait(120) == "failed"
    summary = run.summary()
    assert summary["failed_rank"] == 1
    assert summary["exit_code"] == 1
    assert "ValueError: boom at step 4" in summary["message"]
    assert "raw_ddp.py:" in summary["message"]
    assert summary["findings"][0]["rank"] == 1


def test_a_nonzero_exit_code_is_a_failure(start: Start) -> None:
    run = start("raw_ddp.py", ("--steps", "2000", "--exit-at", "4"))
    assert run.wait(120) == "failed"
    assert run.summary()["failed_rank"] == 1


def test_nan_is_recorded_with_its_step(start: Start) -> None:
    run = start("raw_ddp.py", ("--steps", "8", "--nan-at", "5"))
    assert run.wait(120) == "succeeded"
    view = run.view()
    assert view["nonfinite_step"] == 5
    assert math.isnan(run.metrics()[4]["loss"])
    text = (run.directory / "view.json").read_text()
    refused: list[str] = []
    json.loads(text, parse_constant=refused.append)
    assert refused == []  # strict JSON for the browser: no bare NaN or Infinity


def test_a_straggler_shows_in_backward_entry(start: Start) -> None:
    run = start("raw_ddp.py", ("--steps", "30", "--lag", "0.05"))
    assert run.wait(120) == "succeeded"
    late = [rank["late_seconds"] for rank in run.view()["ranks"]]
    assert late[1] - late[0] > 0.03


def test_exit_zero_without_a_step_is_no_success(start: Start) -> None:
    run = start("no_steps.py")
    assert run.wait(120) == "no-steps"
    assert "no optimizer step" in run.status.message
    record(36, "exit 0 without a step: no-steps")


def test_two_trainings_where_one_was_asked_for_are_reported(start: Start) -> None:
    run = start("two_trainings.py")
    until(lambda: "formed a group of 1" in (run.view().get("message") or ""), 60, "the warning")
    assert run.wait(120) == "succeeded"
    assert run.summary()["world_size"] == 1
    assert "2 processes were asked for" in run.status.message
    record(36, "two trainings instead of one: said")


def test_single_process(start: Start) -> None:
    run = start("accelerate_loop.py", ("--steps", "4"), strategy="single")
    assert run.wait(120) == "succeeded"
    assert run.summary()["steps"] == 4
    assert "done on 1 processes" in run.logs(0)
    paths = RunPaths(run.directory)
    until(lambda: kept_row(paths) is not None, 20, "row.json, which the supervisor writes last")
    kept = kept_row(paths)
    paths.row.unlink()
    assert index.table(wb.Store(run.directory.parent)) == [kept]  # as made from the files


def test_capture_can_be_left_out(start: Start) -> None:
    run = start("raw_ddp.py", ("--steps", "5"), capture=False)
    assert run.wait(120) == "succeeded"
    assert run.metrics() == []
    assert "rank 1 step 5" in run.logs(1)


def test_noisy_output_loses_nothing(start: Start) -> None:
    run = start("noisy.py", strategy="single")
    assert run.wait(180) == "succeeded", run.status
    text = run.logs(0)
    count = int(text.rstrip().splitlines()[-1].split()[1])
    assert count > 10_000
    assert text.count("flood line") == count
    assert text.count("e" * 1023) == 10 * 1024
    assert "latin-1: \ufffd\ufffd caf\ufffd" in text
    assert len(run.logs(0, tail=20)) < 4000
    assert (run.directory / "view.json").stat().st_size <= 64_000
    record(33, "bars, bytes that are no text, megabytes of stderr: tail exact, nothing fails")
    record(
        32,
        "a flood of more than 10,000 lines: every line kept, the view stays below 64 kB, training ends",
    )


def test_a_user_sitecustomize_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.OWN = 'kept'\n")
    script = tmp_path / "script.py"
    script.write_text("import builtins\nprint('own sitecustomize', builtins.OWN)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = wb.launch(script, strategy="single", cpu=True, store=tmp_path / "runs")
    run.wait(240)
    assert "own sitecustomize kept" in run.logs(0)


def test_ranks_of_a_launcher_around_us_are_not_mistaken_for_ours(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    run = start("raw_ddp.py", ("--steps", "4"))
    assert run.wait(120) == "succeeded", run.status
    assert [len(run.metrics(rank)) for rank in (0, 1)] == [4, 4]


def test_a_crash_is_a_crash_with_somebody_elses_excepthook(start: Start) -> None:
    run = start("rich_crash.py", strategy="single")
    assert run.wait(240) == "failed"
    summary = run.summary()
    assert summary["failed_rank"] == 0
    assert "ValueError: under another hook" in summary["message"]
    end = json.loads((run.directory / "metrics" / "rank-0.end.json").read_text())
    assert end["ok"] is False


def test_secrets_stay_out_of_the_run_directory(start: Start) -> None:
    secret = "hf_" + "Ab1" * 12
    run = start(
        "no_steps.py",
        ("--hub_token", "plain-secret-value", "--x", secret),
        strategy="single",
        environment={"MY_API_KEY": "another-secret-value"},
    )
    run.wait(240)
    for path in run.directory.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for value in (b"plain-secret-value", secret.encode(), b"another-secret-value"):
                assert value not in data, path


def test_launch_returns_at_once_and_from_a_shell(store: object) -> None:
    command = [sys.executable, "-m", "workbench.cli", "launch", "gpt", "--cpu", "--json"]
    command += ["--store", os.fspath(store), "--wait", "--", "--steps", "3", "--micro-batch", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["outcome"] == "succeeded"
    assert document["steps"] == 3
    predicted = document["predicted"]["memory"]["total_bytes"]
    assert 0.5 < max(document["peak_memory_bytes"]) / predicted < 2


ODD = ("$$", "$HOME", "${local_rank}", "$$$", "it's", "a\nb", "", "ü *", "--num_machines", "7")


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_rank_gets_the_arguments_as_they_are_written(
    ranks: int, store: Path, tmp_path: Path
) -> None:
    """torch's launcher reads some dollar signs as its own, and starts no rank that is alone."""
    script = tmp_path / "says.py"
    script.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]), flush=True)\n")
    run = wb.launch(script, ODD, processes=ranks, cpu=True, store=store, warm=True)
    run.wait(120)
    for rank in range(ranks):
        assert json.dumps(ODD) in run.logs(rank=rank)
    assert run.document["arguments"] == list(ODD)

"""Slurm for real: two virtual nodes on this machine, our batch script, requeued and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import until
from tests.engines.netns import workbench
from tests.engines.slurm_box import SlurmBox, why_not
from workbench.describe import Strategy
from workbench.engines import slurm, slurm_run
from workbench.engines.job import EngineJob
from workbench.store.layout import RunPaths

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
TINY = ("--size", "1", "--micro-batch", "2", "--seq-len", "32")
ENDLESS = (*TINY, "--steps", "100000", "--checkpoint-every", "10")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmBox]:
    """One Slurm for all tests of this file."""
    with (
        SlurmBox(tmp_path_factory.mktemp("slurm") / "box") as up,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", up.environment["SLURM_CONF"])
        yield up


def submit(box: SlurmBox, store: Path, *options: str, script: tuple[str, ...] = ENDLESS) -> wb.Run:
    """``workbench submit gpt`` on two nodes with two processes each."""
    where = ("--nodes", "2", "--nproc", "2", "--cpu", "--store", str(store), "--json")
    told = json.loads(box.run(*workbench("submit", "gpt", *where, *options, "--", *script)))
    assert told["engine"]["name"] == "slurm"
    return wb.Run(RunPaths(Path(told["dir"])))


def test_a_job_trains_on_two_nodes_is_requeued_and_resumes(box: SlurmBox, tmp_path: Path) -> None:
    run = submit(box, tmp_path / """it's "my" 100%j store""", "--hours", "1")

    def story() -> str:
        return box.story(run.directory)

    until(lambda: run.view()["steps"] >= 15 and run.checkpoints(), 180, story)
    assert run.view()["world_size"] == 4
    assert {row["rank"] for row in run.view()["ranks"]} == {0, 1, 2, 3}
    job = slurm_run.look(run)
    assert job is not None
    assert (job.state, job.nodes) == ("RUNNING", "n[1-2]")
    box.run("scancel", "--batch", "--signal=USR1", job.job_id)  # as at the end of the time limit
    until(lambda: run.outcome == "preempted", 120, story)
    first = run.view()["steps"]
    until(lambda: slurm_run.look(run).reason == "BeginTime", 60, story)
    # Slurm waits two minutes so that the job's new credential is not of the second in which the old
    # one was revoked ("Job credential revoked"); five seconds do.
    box.run("scontrol", "update", f"JobId={job.job_id}", "StartTime=now+5")
    until(lambda: run.view()["steps"] > first, 240, story)
    why = "started again by the engine"
    start = next(one for one in run.view()["attempts"] if one.get("why") == why)
    assert start["first_step"] == first
    steps = [row["step"] for row in run.metrics()]
    assert steps[: first + 1] == list(range(1, first + 2))  # one curve, without a gap
    run.request_stop()
    until(lambda: run.outcome == "stopped", 120, "stopped")
    until(lambda: not box.run("squeue", "-h").strip(), 60, "the job's end")


@pytest.fixture
def busy(box: SlurmBox) -> Iterator[None]:
    """Someone else's job has all nodes."""
    other = ("sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null")
    job_id = box.run(*other, "--wrap", "sleep 600").strip()
    until(lambda: "RUNNING" in box.run("scontrol", "show", "job", job_id), 60, "the other job")
    yield
    box.run("scancel", job_id)


@pytest.mark.usefixtures("busy")
def test_a_job_in_the_queue_is_seen_and_cancelled(box: SlurmBox, store: Path) -> None:
    run = submit(box, store)
    assert run.status.state == "starting"
    assert "queue of slurm as job" in str(run.status.message)
    job = slurm_run.look(run)
    assert job is not None
    assert job.waiting
    told = json.loads(box.run(*workbench("stop", run.id, "--store", str(store), "--json")))
    assert told == {"run": run.id, "outcome": "stopped", "processes_left": 0}
    until(lambda: slurm_run.look(run).state == "CANCELLED", 60, "out of the queue")


@pytest.mark.usefixtures("busy")
def test_a_job_that_slurm_lost_ends_its_run(box: SlurmBox, store: Path) -> None:
    run = submit(box, store)
    box.run("scancel", run.document["engine"]["job_id"])
    until(lambda: slurm_run.settle(run) and run.outcome == "interrupted", 60, "settled")
    assert "before the run began" in str(run.status.message)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nodes", "3", "--nproc", "1", "--cpu"), "configuration is not available"),
        (("--nodes", "1", "--nproc", "9", "--gpu", "h100-sxm"), "configuration is not available"),
        (("--nodes", "1", "--cpu", "--partition", "nosuch"), "invalid partition"),
        (("--nodes", "1", "--cpu", "--grace", "5"), "too short"),
        (("--nodes", "1", "--cpu", "--hours", "0.02"), "not shorter than the time limit"),
        (("--nodes", "1", "--cpu", "--partition", "a b"), "not a valid Slurm name"),
        (("--nodes", "1", "--cpu", "--to", "pbs"), "submit knows slurm"),
    ],
)
def test_bad_jobs_are_refused_before_a_run_is_made(
    box: SlurmBox, store: Path, options: tuple[str, ...], words: str
) -> None:
    done = subprocess.run(
        workbench("submit", "gpt", *options, "--store", str(store), "--", *TINY),
        env=box.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert wb.runs(store) == []


@pytest.mark.parametrize(("gpu", "words"), [("h100-sxm", "h100:2"), ("h200-sxm", "nvidia_h200:2")])
def test_gpus_are_asked_for_as_the_site_calls_them(
    box: SlurmBox, tmp_path: Path, gpu: str, words: str
) -> None:
    options = ("--nodes", "1", "--nproc", "2", "--cpus", "1", "--gpu", gpu, "--dry-run")
    text = box.run(*workbench("submit", "gpt", *options, "--store", str(tmp_path), "--", *TINY))
    assert f"#SBATCH --gpus-per-node={words}\n" in text
    script = tmp_path / "job.sbatch"
    script.write_text(text)
    box.run("sbatch", "--test-only", str(script))


def test_an_exported_script_trains_without_the_workbench(box: SlurmBox, tmp_path: Path) -> None:
    job = EngineJob(
        name="plain",
        script="gpt",
        arguments=(*TINY, "--steps", "5"),
        strategy=Strategy.parse("ddp", 2),
        nodes=2,
        processes_per_node=1,
        python=sys.executable,
        working_directory=tmp_path,
        max_hours=1.0,
    )
    script = tmp_path / "plain.sbatch"
    script.write_text(slurm.sbatch_text(job))
    box.run("sbatch", "--test-only", str(script))
    box.run("sbatch", "--wait", f"--output={tmp_path}/out.txt", str(script), check=False)
    text = (tmp_path / "out.txt").read_text()
    assert "step 5" in text.lower(), text[-3000:]

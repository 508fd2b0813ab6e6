"""Dollars and kWh of an exported job: counted by its start script, over all starts and machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import until
from tests.engines.sample_jobs import job
from workbench.engines import spending
from workbench.engines.export_request import export as export_what
from workbench.engines.exporting import export
from workbench.engines.job import EngineJob
from workbench.engines.refusals import ENGINES
from workbench.errors import UsageError

EIGHT = {"processes_per_node": 8, "gpu": "h100", "strategy": "ddp", "nodes": 2}
STORAGE = {
    **dict.fromkeys(("torchrun", "accelerate", "slurm"), "/shared"),
    "kubeflow": "pvc:c",
}
SLEEPS = f"{sys.executable} -c 'import time; time.sleep(60)'"
SAVES = "bash -c 'trap \"echo saved; exit 0\" TERM; while :; do sleep 0.1; done'"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "_EVERY_SECONDS", 1)
    monkeypatch.setattr(spending, "_GRACE_SECONDS", 5)


def limited(folder: Path, **given: float) -> EngineJob:
    """On two machines that share `folder`; an hour costs so much that a dollar is a second."""
    return job(**EIGHT, checkpoint_uri=str(folder), usd_per_hour=3600.0, **given)


def text_of(one: EngineJob, command: str, node: int = 0) -> str:
    return "set -euo pipefail\n" + spending.counted(one, command, node)


def started(folder: Path, text: str) -> subprocess.Popen[str]:
    """A machine whose nvidia-smi tells 1,500 W of two cards."""
    smi = folder / "bin" / "nvidia-smi"
    smi.parent.mkdir(exist_ok=True)
    smi.write_text("#!/bin/sh\nprintf '700.00\\n800.00\\n'\n")
    smi.chmod(0o755)
    return subprocess.Popen(
        ["bash", "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": f"{smi.parent}:{os.environ['PATH']}"},
    )


def ran(folder: Path, text: str) -> tuple[int, str]:
    process = started(folder, text)
    out, _ = process.communicate(timeout=240)
    return process.returncode, out


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_carries_them(engine: str) -> None:
    where = STORAGE.get(engine, "volume:v")
    one = job(**EIGHT, checkpoint_uri=where, usd_per_hour=50.0, max_usd=40.0, max_kwh=3.0)
    made = export(one, engine, address="10.0.0.1")
    text = "\n".join(made.files.values())
    assert "Its limit of $40.00 was reached (--max-usd)." in text
    assert '"$seconds" -ge 2880' in text  # 40 of 50 dollars an hour, in seconds
    assert '"$joules" -ge 5400000' in text  # each of two machines has a half
    assert any("--max-usd counts $50.00 an hour" in note for note in made.notes)
    assert any("nvidia-smi" in note for note in made.notes)
    without = export(job(**EIGHT, checkpoint_uri=where), engine, address="10.0.0.1")
    assert "nvidia-smi" not in "\n".join(without.files.values())


def test_dollars_end_the_training_which_may_save_and_count_over_all_starts(tmp_path: Path) -> None:
    one = limited(tmp_path, max_usd=3)
    code, out = ran(tmp_path, text_of(one, SAVES))
    assert (code, out) == (0, "saved\nIts limit of $3.00 was reached (--max-usd).\n")
    code, out = ran(tmp_path, text_of(one, "echo trained"))
    assert (code, out) == (0, "Its limit of $3.00 was reached (--max-usd).\n")
    higher = limited(tmp_path, max_usd=1000)
    assert ran(tmp_path, text_of(higher, "echo trained")) == (0, "trained\n")
    seconds, joules = (tmp_path / "gpt-ddp/spent/node-0").read_text().split()
    assert int(seconds) >= 3
    assert joules == "0"


def test_energy_ends_it_too_and_the_other_machine_hears_of_it(tmp_path: Path) -> None:
    one = limited(tmp_path, max_kwh=2 * 3 * 1500 / 3.6e6)  # three seconds of each machine's cards
    said = "was reached (--max-kwh).\n"
    first = started(tmp_path, text_of(one, SLEEPS, 0))
    until(lambda: list((tmp_path / "gpt-ddp/spent").glob("over-*")), 60, "the limit")
    # A peer that is gone ends the other machine's ranks with an error: no reason to start again.
    code, out = ran(tmp_path, text_of(one, "bash -c 'exit 1'", 1))
    assert code == 0
    assert out.endswith(said)
    out, _ = first.communicate(timeout=240)
    assert first.returncode == 0
    assert out.endswith(said)


def test_what_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = "bash -c 'trap \"\" TERM; while :; do sleep 0.1; done'"
    code, out = ran(tmp_path, text_of(limited(tmp_path, max_usd=1), deaf))
    assert code == 0
    assert out.endswith("Its limit of $1.00 was reached (--max-usd).\n")


def test_the_end_of_the_training_stays_its_own(tmp_path: Path) -> None:
    one = limited(tmp_path, max_usd=1000)
    assert ran(tmp_path, text_of(one, "bash -c 'exit 3'"))[0] == 3
    process = started(tmp_path, text_of(one, SAVES, 1))
    until((tmp_path / "gpt-ddp/spent/node-1").exists, 60, "the first count")
    process.send_signal(signal.SIGTERM)  # as an engine ends a machine
    began = time.monotonic()
    out, _ = process.communicate(timeout=240)
    assert out == "saved\n"
    assert time.monotonic() - began < 60
    assert process.returncode == 0


def test_energy_that_nobody_tells_is_refused_at_the_start(tmp_path: Path) -> None:
    one = limited(tmp_path, max_kwh=1)
    text = text_of(one, "echo trained")
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    if not Path("/dev/nvidiactl").exists():
        assert done.returncode == 1
        assert "whose power nvidia-smi tells" in done.stderr
        assert done.stdout == ""


def test_what_they_need_is_said() -> None:
    with pytest.raises(UsageError, match="--usd-per-hour"):
        job(**EIGHT, max_usd=5)
    with pytest.raises(UsageError, match="--max-hours"):
        job(processes_per_node=2, max_kwh=5)
    assert job(**EIGHT, max_usd=5, max_usd_per_hour=9).price == 9


def test_a_plan_brings_its_price() -> None:
    entry = {
        "gpus": 8, "nodes": 1, "strategy": "fsdp", "recompute": "none", "recompute_parts": [],
        "offload": [], "micro_batch": 1, "accumulate": 1, "seq_len": 256, "precision": "bf16",
        "gpu": "h100-sxm", "provider": "runpod", "region": "", "spot": False, "usd_per_hour": 20.0,
    }  # fmt: skip
    made = export_what("gpt", "skypilot", plan=entry, max_usd=10.0)
    assert '"$seconds" -ge 1800' in made.files["launch.sh"]

"""``workbench measure`` with real runs: what it keeps, and what it says where it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import workbench as wb
from tests.cli.conftest import Command, command
from tests.measure.harness import SCRIPTS, probe
from workbench.cli.json_keys import FORMS
from workbench.measuring import measure as measuring
from workbench.measuring.described import accumulation
from workbench.measuring.measure import ProbeError, measure
from workbench.store.measurements import FOLDER
from workbench.store.runs import Store

__all__ = ["command"]

SPAWNS = Path(__file__).parents[1] / "scripts" / "spawns.py"
ALWAYS_DDP = SPAWNS.with_name("always_ddp.py")
LOOP = str(SCRIPTS / "plain_loop.py")


@pytest.mark.slow
def test_a_measured_script_is_known_to_every_command(command: Command, tmp_path: Path) -> None:
    known = {"WORKBENCH_STORE": str(tmp_path / "runs")}
    before = command("launch", LOOP, "--dry-run", "--cpu", **known)
    assert "not measured yet: workbench measure " in before.out
    assert before.out.partition("workbench measure ")[2].split()[0].endswith("plain_loop.py")
    found = json.loads(command("measure", LOOP, "--cpu", "--json", **known).out)
    assert set(found) == set(FORMS["measure"].keys)
    assert found["batches"] == [16, 8]
    assert found["parameters"] == 596_042
    assert found["step_seconds"] > 0

    # 24 samples instead of 16, on two ranks: what the ledger of the same script counts.
    words = ("memory", "--like", LOOP, "--micro-batch", "24", "--strategy", "ddp", "--cpu")
    memory = json.loads(command(*words, "--gpus", "2", "--json", **known).out)
    assert memory["allocated_bytes"] == pytest.approx(18_323_888, rel=0.02)
    preview = ("launch", LOOP, "--dry-run", "--cpu", "--json", "--", "--batch-size", "24")
    shown = json.loads(command(*preview, **known).out)
    assert shown["predicted"]["allocated_bytes"] == memory["allocated_bytes"]
    assert shown["predicted_time"]["step_seconds"] > 0

    measured = wb.attach(found["run"], tmp_path / "runs")
    assert measured.document["part_of"] == "measure"
    assert measured.document["warm"], "it asks for a warm start: a cold one takes twice the time"
    run = command("memory", "--like", found["run"], "--gpu", "a100-80gb", "--json", **known)
    assert json.loads(run.out)["parameters"] == 596_042
    plans = ("plan", "--like", LOOP, "--gpu", "a100-80gb", "--max-gpus", "2", "--tokens")
    assert json.loads(command(*plans, "1e9", "--json", **known).out)["plans"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said", "log"),
    [
        ("import torch\nprint('only data')\n", "without an optimizer step", "only data"),
        ("raise ValueError('no such corpus')\n", "failed", "ValueError: no such corpus"),
    ],
    ids=["no steps", "fails"],
)
def test_a_script_that_cannot_be_measured_says_why(
    text: str, said: str, log: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    with pytest.raises(ProbeError, match=said) as caught:
        measure(script, cpu=True, store=tmp_path / "runs")
    assert log in caught.value.log
    assert not list((Store(tmp_path / "runs").root / "measured").glob("*"))


@pytest.mark.slow
def test_ctrl_c_ends_every_process_and_keeps_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('loading', flush=True)\ntime.sleep(600)\n")
    seen: list[str] = []

    def interrupt(text: str) -> None:
        seen.append(text)
        ranks = list((tmp_path / "runs").glob("*/logs/rank-0.log"))
        if any("loading" in one.read_text() for one in ranks):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(script, cpu=True, store=tmp_path / "runs", on_progress=interrupt)
    assert "loading data" in seen[0]
    (run,) = (wb.attach(path.name, store=tmp_path / "runs") for path in runs_in(tmp_path))
    assert not run.status.live
    assert not list((Store(tmp_path / "runs").root / "measured").glob("*"))


def runs_in(folder: Path) -> list[Path]:
    return [path.parent for path in (folder / "runs").glob("*/run.json")]


@pytest.mark.slow
def test_processes_that_a_script_starts_itself_are_measured(tmp_path: Path) -> None:
    """They leave in one step: none loses another in a collective, so the script ends well."""
    record = probe(SPAWNS, ("--world", "2", "--steps", "500"), tmp_path, warm=True)
    assert record["trained"]["elements"] == 5
    assert (tmp_path / "measured" / "rank-1.json").exists()
    lines = [(tmp_path / f"metrics/rank-{rank}.jsonl").read_text() for rank in range(2)]
    steps = [len(text.splitlines()) for text in lines]
    assert steps[0] == steps[1] < 500


def test_ranks_that_wait_for_one_that_has_measured_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_LEAVE_SECONDS", 0.1)
    monkeypatch.setattr(measuring, "_POLL_SECONDS", 0.01)
    stopped = list[bool]()
    run: Any = SimpleNamespace(
        id="r",
        directory=tmp_path,
        status=SimpleNamespace(live=True),
        stop=lambda *, now: stopped.append(now),
        view=dict,
    )
    for name in (f"{FOLDER}/rank-0.json", "metrics/starts-ranks"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    prober = measuring._Prober(
        "train.py", cpu=True, store=wb.Store(tmp_path), timeout=20, on_progress=lambda _: None
    )
    prober._await(run, "a step")
    assert stopped == [True]


@pytest.mark.slow
def test_several_networks_are_recorded_each(tmp_path: Path) -> None:
    record = probe("gan.py", (), tmp_path, warm=True)
    assert [rows[0]["trained"] for rows in record["roots"]] == [8_449, 10_432]
    assert sorted(one["elements"] for one in record["optimizers"]) == [8_449, 10_432]
    assert record["loader_batch"] == 32
    assert accumulation(record) == 1


@pytest.mark.slow
def test_the_files_that_a_module_imports_are_known(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "network.py").write_text("import torch\nmodel = torch.nn.Linear(8, 8)\n")
    (package / "train.py").write_text(
        "import torch\nfrom .network import model\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "while True:\n    model(torch.ones(4, 8)).mean().backward()\n    optimizer.step()\n"
    )
    record = probe("-m package.train", (), tmp_path, warm=True)
    assert set(record["files"]) == {"__init__.py", "network.py"}


@pytest.mark.slow
@pytest.mark.full
def test_a_script_that_always_makes_a_group_gets_one_of_its_own(tmp_path: Path) -> None:
    measured = measure(ALWAYS_DDP, cpu=True, store=tmp_path).workload.model.measured
    assert measured is not None
    assert measured.trained == 64 * 64 + 64

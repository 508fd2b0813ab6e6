"""A battery that is killed at any moment: its results so far are intact, and it goes on from there."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import until
from tests.gpu import killed_battery
from tests.gpu.battery.runner import results
from workbench.store import processes

ROOT = Path(__file__).parents[2]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def small_battery(out: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gpu.killed_battery", str(out), str(seconds)]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def lines(path: Path) -> list[str]:
    """Those that were written to their end."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def wait_for_rows(battery: subprocess.Popen[str], path: Path, count: int) -> None:
    until(lambda: len(lines(path)) >= count or battery.poll() is not None)


def living(out: Path) -> bool:
    return any(str(out) in line for line in processes.command_lines(killed_battery.WORD))


@pytest.mark.parametrize(
    ("number", "seed"),
    [
        *((number, 1) for number in SIGNALS),
        *(
            pytest.param(number, seed, marks=[pytest.mark.slow, pytest.mark.full])
            for number in SIGNALS
            for seed in range(2, 8)
        ),
    ],
)
def test_killed_at_random_moments_it_finishes(tmp_path: Path, number: int, seed: int) -> None:
    draw, path = random.Random(seed), tmp_path / "cpu.jsonl"
    for _ in range(2):
        before = lines(path)
        battery = small_battery(tmp_path, 0.05)
        wait_for_rows(battery, path, len(before) + draw.randint(0, 3))
        time.sleep(draw.random() / 8)
        battery.send_signal(number)
        battery.communicate()
        after = lines(path)
        assert after[: len(before)] == before
        assert [json.loads(line)["outcome"] for line in after] == ["passed"] * len(after)
    last = small_battery(tmp_path, 0.0)
    said, _ = last.communicate()
    assert last.returncode == 0, said
    rows = [json.loads(line) for line in lines(path)]
    assert lines(path)[: len(after)] == after
    assert sorted(row["case"] for row in rows) == [f"small-{n}" for n in range(8)]
    assert not living(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_it_started_ends_before_the_next_goes_on(tmp_path: Path, number: int) -> None:
    battery = small_battery(tmp_path, 600.0)
    until(lambda: living(tmp_path))
    battery.send_signal(number)
    battery.communicate()  # its lanes hold the pipe until they are gone
    assert results(tmp_path / "cpu.jsonl") == []
    again = small_battery(tmp_path, 0.0)
    said, _ = again.communicate()
    assert "finished" in said
    assert len(results(tmp_path / "cpu.jsonl")) == killed_battery.COUNT
    assert not living(tmp_path)


def test_a_lane_that_is_killed_takes_its_case_along(tmp_path: Path) -> None:
    battery = small_battery(tmp_path, 600.0)
    until(lambda: living(tmp_path))
    for lane in processes.descendants(battery.pid):
        fields = processes.stat_fields(lane["pid"])
        if fields is not None and int(fields[1]) == battery.pid:
            os.kill(lane["pid"], signal.SIGKILL)
    said, _ = battery.communicate()
    assert "finished" in said
    assert results(tmp_path / "cpu.jsonl") == []
    again = small_battery(tmp_path, 0.0)
    again.communicate()
    assert len(results(tmp_path / "cpu.jsonl")) == killed_battery.COUNT
    assert not living(tmp_path)


def test_two_do_not_measure_into_one_folder_at_once(tmp_path: Path) -> None:
    first = small_battery(tmp_path, 0.1)
    until(lambda: living(tmp_path))
    second = small_battery(tmp_path, 0.1)
    first.communicate()
    said, _ = second.communicate()
    assert "Waiting for another battery" in said
    rows = results(tmp_path / "cpu.jsonl")
    assert len(rows) == len({row["case"] for row in rows}) == killed_battery.COUNT

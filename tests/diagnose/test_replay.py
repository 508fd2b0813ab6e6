"""`workbench replay`: what was said when, from the files of a run alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, command  # noqa: F401  (the fixture)
from tests.diagnose.test_one_answer import nan
from tests.diagnose.test_recorded import RUNS, unpacked
from workbench.diagnose.offline import diagnose_offline, replayed


def test_the_moments_end_with_what_diagnose_says(tmp_path: Path) -> None:
    paths = unpacked(tmp_path, min(RUNS))
    nan(paths)
    moments = list(replayed(paths))
    assert moments[-1].ended
    assert moments[-1].findings == diagnose_offline(paths)
    steps = [row.step for moment in moments for row in moment.rows]
    assert steps == sorted(set(steps))
    assert all(moment.rows for moment in moments[:-1])


def test_until_a_step_nothing_later_is_known(tmp_path: Path, command: Command) -> None:  # noqa: F811
    paths = unpacked(tmp_path, min(RUNS))
    nan(paths)  # from step 31 on
    before = json.loads(command("replay", str(tmp_path), "--until", "30", "--json").out)
    assert (before["steps"], before["findings"]) == (30, [])
    assert before["view"]["steps"] == 30
    after = json.loads(command("replay", str(tmp_path), "--json").out)
    (said,) = after["said"]
    assert (said["kind"], said["step"]) == ("nan-loss", 31)
    assert 31 <= said["said_at_step"] < after["steps"]
    assert after["view"]["nonfinite_step"] == 31


def test_it_is_paced_by_the_recorded_clock(tmp_path: Path, command: Command) -> None:  # noqa: F811
    unpacked(tmp_path, min(RUNS))
    told = command("replay", str(tmp_path), "--speed", "100000").out
    assert "findings at the end: none" in told


@pytest.mark.parametrize("speed", ["0", "-1"])
def test_a_speed_is_above_nought(speed: str, tmp_path: Path, command: Command) -> None:  # noqa: F811
    unpacked(tmp_path, min(RUNS))
    refused = command("replay", str(tmp_path), "--speed", speed)
    assert refused.code != 0
    assert "above 0" in refused.err

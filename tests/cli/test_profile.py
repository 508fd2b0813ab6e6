"""``workbench profile`` as typed: a new run, a living one, an ended one, and NVIDIA's tools.

There is no Nsight Systems here: a script of its name stands for it, so what is tested of --nsys is
the command line, and that the run under it starts, is traced and stops.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="the train extra is not installed")

import workbench as wb
from tests.cli.conftest import Command
from tests.conftest import SCRIPTS
from workbench.compare.profile.vendor_tools import dcgm_means, dcgm_sampled, nsys_wrapper

SCRIPT = str(SCRIPTS / "raw_ddp.py")
STAND_IN = """#!/bin/sh
echo "$@" > {said}
while [ "${{1#-}}" != "$1" ] || [ "$1" = profile ]; do shift; done
exec "$@"
"""
DCGMI = """#!/bin/sh
echo "$@" > {said}
echo '#Entity  SMACT  SMOCC'
echo 'GPU 0    0.900  0.250'
echo 'GPU 0    0.700  N/A'
exec sleep 60
"""


def stand_in(folder: Path, name: str, text: str, patch: pytest.MonkeyPatch) -> Path:
    """A program of that name, first on PATH; returns where it writes its arguments."""
    folder.mkdir()
    program, said = folder / name, folder / "said"
    program.write_text(text.format(said=said))
    program.chmod(0o755)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return said


def test_without_nsight_systems_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(wb.HostError, match="Install NVIDIA's package nsight-systems"):
        nsys_wrapper()
    with dcgm_sampled() as means:
        pass
    assert means == {}


def test_dcgms_samples_become_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = stand_in(tmp_path / "bin", "dcgmi", DCGMI, monkeypatch)
    with dcgm_sampled() as means:
        while not said.exists() or not said.read_text():
            pass
    assert said.read_text().startswith("dmon -e 1002,1003,")
    assert set(means) <= {"0"}  # it may have been ended before it printed
    assert dcgm_means("GPU 0 0.9 0.25\nGPU 0 0.7 N/A\nGPU 1 N/A N/A\nGPU 1") == {
        "0": {"sm_active": pytest.approx(0.8), "sm_occupancy": 0.25}
    }


def test_arguments_that_cannot_be(command: Command, store: Path) -> None:
    found = command("profile", "no-such-run", "--nsys", "--store", str(store))
    assert found.code == 2
    assert "is read as a run" in found.err
    assert command("profile", "no-such-run", "--store", str(store)).code == 2
    for wish in ("0", "five", "1:3"):
        found = command("launch", SCRIPT, "--cpu", "--dry-run", "--profile", wish)
        assert found.code == 2, wish


@pytest.mark.full
@pytest.mark.slow
def test_from_a_script_to_the_tables(
    command: Command, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stand_in(tmp_path / "bin", "nsys", STAND_IN, monkeypatch)
    found = command(
        "profile", SCRIPT, "--cpu", "--nproc", "2", "--steps", "2", "--nsys", "--json",
        "--store", str(store), "--", "--steps", "100000", "--step-seconds", "0.05",
    )  # fmt: skip
    assert found.code == 0, found.err
    document = json.loads(found.out)
    assert document["steps"] == [6, 7]
    assert [one["rank"] for one in document["ranks"]] == [0, 1]
    assert Path(document["merged"]).exists()
    assert document["state"] == "running"
    words = said.read_text().split()
    assert words[0] == "profile"
    assert f"--output={store / document['run'] / 'nsys'}" in words
    assert "accelerate.commands.launch" in words
    run = document["run"]
    shown = command("profile", run, "--steps", "3", "--stop", "--store", str(store))
    assert shown.code == 0, shown.err
    for text in ("exposed comm.", "own time/step", "https://ui.perfetto.dev", "mean of a step"):
        assert text in shown.out
    again = command("profile", run, "--store", str(store))
    assert again.code == 2
    assert "has ended" in again.err
    latest = command("profile", run, "--show", "--json", "--store", str(store))
    assert len(json.loads(latest.out)["steps"]) == 3

"""What torch's own analyser of flight records says of a slow rank and of one that is missing."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.full]
SCRIPT = Path(__file__).parent.parent / "scripts" / "flight_dumps.py"
ANALYSER = "torch.distributed.flight_recorder.fr_trace"


def dumped(folder: Path, mode: str) -> None:
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    subprocess.run(
        [sys.executable, "-m", *launcher, SCRIPT, folder, mode],
        check=True, timeout=240, capture_output=True,
    )  # fmt: skip
    for mark in folder.glob("dumped_*"):
        mark.unlink()


def analysed(folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", ANALYSER, folder, "-p", "rank_"]
    return subprocess.run(words, timeout=120, capture_output=True, text=True, check=False)


def name_the_group(folder: Path) -> None:
    """gloo's dumps have its group under no name, and the analyser looks for it by its name."""
    for path in folder.glob("rank_*"):
        record = pickle.loads(path.read_bytes())
        record["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        path.write_bytes(pickle.dumps(record))


@pytest.mark.parametrize(("mode", "named"), [("slow", False), ("hang", True)])
def test_it_names_a_missing_rank_and_no_slow_one(tmp_path: Path, mode: str, *, named: bool) -> None:
    dumped(tmp_path, mode)
    failed = analysed(tmp_path)
    assert failed.returncode != 0
    assert "KeyError: ('0', 0)" in failed.stderr
    name_the_group(tmp_path)
    told = analysed(tmp_path)
    assert told.returncode == 0, told.stderr
    assert ("missing ranks: {1}" in told.stdout + told.stderr) == named

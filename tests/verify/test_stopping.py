"""`workbench verify` that is ended by Ctrl-C or by SIGTERM, and what it says of how it ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import until

SCRIPT = """
import pathlib, time, torch
model = torch.nn.Linear(2, 1)
torch.optim.SGD(model.parameters(), 0.1)
pathlib.Path("begun").touch()
time.sleep(300)
"""
ENDS = [
    (signal.SIGTERM, 143),
    pytest.param(signal.SIGINT, 130, marks=pytest.mark.full),
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), ENDS)
def test_nothing_is_left(number: signal.Signals, code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "workbench.cli", "verify", "train.py", "--cpu"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
    )
    until((tmp_path / "begun").exists, 120, "the script begins")
    assert list(folder.glob("workbench-verify-*"))
    process.send_signal(number)
    _, said = process.communicate()
    assert (process.returncode, list(folder.glob("workbench-verify-*"))) == (code, [])
    assert "nothing was kept and all processes have ended" in said

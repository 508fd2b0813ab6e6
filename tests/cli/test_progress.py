"""A long search on a real terminal: how far it is, stdout untouched, one sentence on Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

# Progress is shown from the first moment on: the machine's speed decides nothing here.
START = "import workbench.cli.progress as p; p.PATIENCE = 0.0; import workbench.cli as c; c.main()"
LONG = ("plan", "--tokens", "100B", "--seq-len", "4096")
SAID = b"offers looked at"


def told(model: str, most: int, out: Path, *, stop: bool) -> tuple[int, bytes]:
    """Exit code and what a terminal on stderr shows; `stop` = Ctrl-C once it shows progress."""
    near, far = pty.openpty()
    command = [sys.executable, "-c", START, *LONG]
    command += ["--model", model, "--max-gpus", str(most), "--json"]
    text = b""
    with (
        out.open("wb") as file,
        subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=file, stderr=far) as run,
    ):
        os.close(far)
        while True:
            try:
                text += os.read(near, 4096)
            except OSError:  # the other end is closed
                break
            if stop and SAID in text:
                run.send_signal(signal.SIGINT)
                stop = False
    os.close(near)
    return run.returncode, text


def test_a_terminal_is_told_how_far_the_search_is(tmp_path: Path) -> None:
    code, text = told("llama-3-70b", 32, tmp_path / "out", stop=False)
    assert SAID in text
    assert code == 0
    assert json.loads((tmp_path / "out").read_text())["combinations"] > 30_000


def test_what_cannot_say_how_far_it_is_says_what_it_does() -> None:
    """The block ends once the line has been seen."""
    near, far = pty.openpty()
    block = "import workbench.cli.progress as p; p.PATIENCE = 0.0\nwith p.busy('checking'): input()"
    with subprocess.Popen([sys.executable, "-c", block], stdin=subprocess.PIPE, stderr=far) as run:
        os.close(far)
        text = b""
        while b"checking" not in text:
            text += os.read(near, 4096)
        run.communicate(b"\n")
    os.close(near)
    assert run.returncode == 0


def test_ctrl_c_ends_with_one_sentence(tmp_path: Path) -> None:
    code, text = told("deepseek-v3", 64, tmp_path / "out", stop=True)
    assert code == 1
    assert (tmp_path / "out").read_bytes() == b""
    assert b"Stopped before the search finished: no plans." in text
    assert b"Traceback" not in text

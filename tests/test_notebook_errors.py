"""What a notebook shows of an error of ours: the caller's lines and the message, none of our frames."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("IPython", reason="pip install -e '.[dev,lab]'")

from IPython.core.interactiveshell import InteractiveShell

CELL = """import helper
import workbench as wb

def go(name):
    return wb.launch(name,
                     cpu=True)

helper.call(go, "tain.py")
"""
HELPER = "import contextlib\n\ndef call(what, name):\n    with contextlib.nullcontext():\n        what(name)\n"


def test_a_cell_shows_its_own_lines_and_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("helper.py").write_text(HELPER)
    Path("train.py").write_text("")
    shell = InteractiveShell()
    assert isinstance(shell.run_cell(CELL).error_in_exec, ValueError)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        'Cell line 8: helper.call(go, "tain.py")',
        f"{tmp_path}/helper.py:5: what(name)",
        "Cell line 5: return wb.launch(name,",
    ]
    assert "UsageError" in lines[3]
    assert "No script 'tain.py'" in lines[3]
    assert "Did you mean train.py?" in lines[3]
    assert len(lines) == 4


def test_other_errors_keep_their_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    shell.run_cell("import workbench as wb\nwb.Strategy.parse('ddp', 'two')")
    shown = capsys.readouterr().out
    assert "TypeError" in shown
    assert "strategy.py" in shown

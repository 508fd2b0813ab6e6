"""Commands run in this process: a shell's view of them, without a shell's start-up time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.cli.app import run_app

Command = Callable[..., SimpleNamespace]
"""Arguments of ``workbench`` -> code, out, err."""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run ``workbench ARGUMENTS`` and return what a shell would see."""

    def run_command(*arguments: str, columns: int = 100) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["workbench", *arguments])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as end:
            run_app()
        seen = capsys.readouterr()
        code = end.value.code
        return SimpleNamespace(code=0 if code is None else code, out=seen.out, err=seen.err)

    return run_command


@pytest.fixture
def no_prices_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither kept live answers nor an own price file of the host may change a test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WORKBENCH_PRICES", "WORKBENCH_USD_PER_HOUR"):
        monkeypatch.delenv(name, raising=False)

"""Commands run in this process: a shell's view of them, without a shell's start-up time."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.cli.entry import run_app

Command = Callable[..., SimpleNamespace]
"""Arguments of ``workbench`` -> code, out, err."""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run ``workbench ARGUMENTS`` and return what a shell would see."""

    def run_command(
        *arguments: str, columns: int = 100, cwd: Path | None = None, **environment: str
    ) -> SimpleNamespace:
        with monkeypatch.context() as patch, warnings_on_stderr(patch):
            patch.setattr(sys, "argv", ["workbench", *arguments])
            patch.setenv("COLUMNS", str(columns))
            for name, value in environment.items():
                patch.setenv(name, value)
            if cwd is not None:
                patch.chdir(cwd)
            capsys.readouterr()
            with pytest.raises(SystemExit) as end:
                run_app()
        seen = capsys.readouterr()
        code = end.value.code
        return SimpleNamespace(code=0 if code is None else code, out=seen.out, err=seen.err)

    return run_command


@contextlib.contextmanager
def warnings_on_stderr(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python's own way with warnings, which pytest replaces; `run_app` sets their format."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object
    ) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))

    patch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        patch.setattr(warnings, "showwarning", show)
        yield


@pytest.fixture
def no_prices_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither kept live answers nor an own price file of the host may change a test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WORKBENCH_PRICES", "WORKBENCH_USD_PER_HOUR"):
        monkeypatch.delenv(name, raising=False)

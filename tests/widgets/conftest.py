"""Every face of a test is closed with it; prices of no user."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import until


@pytest.fixture(autouse=True)
def closed_faces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what the test has opened; a face that is closed leaves no thread behind.

    What shared fixtures have opened stays: they are set up before this one. `monkeypatch`, too, and
    so it is undone later: a thread that still looks must not meet variables that change.
    """
    if importlib.util.find_spec("ipywidgets") is None:
        yield
        return
    from ipywidgets.widgets.widget import _instances

    before, threads = set(_instances), set(threading.enumerate())
    yield
    for name in set(_instances) - before:
        if name in _instances:  # closed by the one that holds it
            _instances[name].close()

    def left() -> list[str]:
        new = set(threading.enumerate()) - threads
        return sorted(one.name for one in new if one.name.startswith("workbench-"))

    until(lambda: not left(), 30, lambda: f"the end of {left()}")


@pytest.fixture
def embedded_prices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No live answers and no own prices of whoever runs the tests; a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WORKBENCH_PRICES", raising=False)
    monkeypatch.chdir(tmp_path)

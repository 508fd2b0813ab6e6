"""Fixtures that the tests of the money faces share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def embedded_prices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No live answers and no own prices of whoever runs the tests; a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WORKBENCH_PRICES", raising=False)
    monkeypatch.chdir(tmp_path)

"""Ranks under the capture hook, started by hand and always ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.ranks import Ranks


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    started: list[Ranks] = []

    def start(script: str, *arguments: str, ranks: int = 1, **more: str) -> Ranks:
        started.append(Ranks(tmp_path / "run", script, *arguments, ranks=ranks, **more))
        return started[-1]

    yield start
    for ranks in started:
        ranks.end()

"""A graceful stop of a script that has a handler of SIGTERM and no checkpoint that we know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.ranks import Ranks


@pytest.mark.parametrize("how", ["saves", "never"])
def test_its_own_handler_is_called_before_it_is_left(
    begin: Callable[..., Ranks], tmp_path: Path, how: str
) -> None:
    control = tmp_path / "run" / "control"
    control.mkdir(parents=True)
    (control / "stop-at").write_text("20")
    ranks = begin("saves_on_sigterm.py", how)
    assert ranks.wait() == [0]
    assert ranks.log().count("asked to end") == 1
    assert (ranks.folder / "own.pt").exists() is (how == "saves")
    end = ranks.document("end")
    assert end["ok"]
    assert end["stopped_at"] == end["steps"]

"""A rank that leaves its process group: its steps are written, and torch does not wait for ever."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.launch.ranks import Ranks
from workbench.launching.capture import leaving
from workbench.launching.capture.recorder import Recorder
from workbench.observe.pulse import read_pulse


class Group:
    """torch.distributed, as far as it is asked."""

    def __init__(self, told: list[str]) -> None:
        self.told, self.ready = told, True

    def is_initialized(self) -> bool:
        return self.ready

    def destroy_process_group(self, group: Any = None) -> None:
        self.told.append("destroyed")
        self.ready = group is not None


def test_steps_are_written_and_threads_rest_before_the_group_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics").mkdir()
    recorder, told = Recorder(str(tmp_path), 0), []
    monkeypatch.setattr(recorder, "flush", lambda: told.append("written"))
    monkeypatch.setattr(leaving, "let_gloo_rest", lambda: told.append("rested"))
    module = Group(told)
    leaving.patch(recorder, module)
    module.destroy_process_group("a subgroup")
    assert read_pulse(tmp_path / "metrics" / "rank-0.pulse").phase == "starting"
    module.destroy_process_group()
    assert told == ["written", "rested", "destroyed"] * 2
    assert read_pulse(tmp_path / "metrics" / "rank-0.pulse").phase == "ended"


def test_threads_that_run_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, waits, waited_once_more = [(b"R", b"5")], [(b"S", b"6")], [(b"S", b"7")]
    looks = [runs, runs, waits, waited_once_more, waited_once_more, runs]
    monkeypatch.setattr(leaving, "_gloo_threads", lambda: looks.pop(0))
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None)
    monkeypatch.setattr(leaving, "time", clock)
    leaving.let_gloo_rest()
    assert looks == [runs]


@pytest.mark.slow
@pytest.mark.full
def test_no_rank_stays_where_a_function_frees_its_model_last(tmp_path: Path) -> None:
    """Without the wait about one round in thirty never ends."""
    ranks = Ranks(tmp_path / "run", "leaves_group.py", "--rounds", "100", ranks=2)
    try:
        assert ranks.wait() == [0, 0]
    finally:
        ranks.end()
    assert len(ranks.lines(0)) == len(ranks.lines(1)) == 300

"""A thousand ranks: what a look of the supervisor costs, over the files that they write."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from tests.cpu_budget import over_budget
from tests.diagnose.many_ranks import SLOW, looks
from workbench.store.layout import RunPaths


@pytest.mark.parametrize(
    ("ranks", "most"),
    [(128, 0.5), pytest.param(1024, 1.0, marks=[pytest.mark.slow, pytest.mark.full])],
)
def test_a_look_takes_less_than_a_second_and_names_the_slow_rank(
    tmp_path: Path, ranks: int, most: float
) -> None:
    took, found, diagnoser = looks(RunPaths(tmp_path), ranks, 4 if ranks < 1024 else 90)
    assert not over_budget(median(took), most), took
    assert ("straggler", SLOW) in [(one.kind, one.rank) for one in found]
    assert diagnoser.problems == {}

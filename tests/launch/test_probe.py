"""What the probe of a measured script counts and times: its own work, not what is beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.launch.ranks import Ranks, end_processes
from workbench.measuring.described import QUIET_SHARE, _quiet, _step_seconds
from workbench.measuring.measure import VARIABLE

BUSY = "import os\nwhile os.getppid() == {}: pass"


@pytest.fixture
def other_work() -> Iterator[None]:
    """Two processes per core that do nothing but compute."""
    busy = [sys.executable, "-c", BUSY.format(os.getpid())]
    started = [subprocess.Popen(busy) for _ in range(2 * len(os.sched_getaffinity(0)))]
    yield
    end_processes(started)


@pytest.mark.full
@pytest.mark.usefixtures("other_work")
def test_two_threads_that_wait_for_each_other_are_not_a_slow_step(
    begin: Callable[..., Ranks],
) -> None:
    request = json.dumps({"seconds": 0.3, "quiet": QUIET_SHARE, "batch": None})
    ranks = begin("small_steps.py", **{VARIABLE: request, "OMP_NUM_THREADS": "2"})
    assert ranks.wait() == [0]
    record = json.loads((ranks.folder / "measured" / "rank-0.json").read_text())
    assert record["threads"] == 2
    assert _quiet(record) or record["one_thread_seconds"]
    assert 0 < _step_seconds(record) <= 3 * min(record["step_seconds"])


def test_ddp_s_copies_of_the_gradients_are_not_counted_on_one_rank(
    begin: Callable[..., Ranks],
) -> None:
    """They are the layout's: an estimate adds them where there are ranks to exchange with."""
    request = json.dumps({"seconds": 0.0, "quiet": QUIET_SHARE, "batch": None})
    ranks = begin("always_ddp.py", **{VARIABLE: request})
    assert ranks.wait() == [0]
    record = json.loads((ranks.folder / "measured" / "rank-0.json").read_text())
    assert max(record["gradient_bytes"]) == 4 * (64 * 64 + 64)
    assert max(record["other_bytes"]) < 4 * 64 * 64  # a few activations of 4 samples

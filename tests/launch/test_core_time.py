"""What kept a rank from computing: counters of the kernel, of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import until
from tests.cpu_budget import over_budget
from tests.diagnose.grid import GROUPS, can_limit
from workbench.launching.capture.core_time import CoreTime

_CHILD = """
import sys, time
from workbench.launching.capture.core_time import CoreTime
core_time = CoreTime()
for _ in sys.stdin:
    core_time.look(time.time())
    print(core_time.looks[-1][1], flush=True)
"""


def test_a_thread_counts_its_own_time_on_a_core() -> None:
    core_time = CoreTime()
    assert not core_time.look(0.0)
    for step in (1, 2):
        core_time.backward()
        begun = time.thread_time()
        while time.thread_time() - begun < 0.05:
            pass
        core_time.optimizing()
        core_time.step(step)
    assert core_time.look(1.0)
    (_, *_), (step, entered, _, optimizing, _, end, _) = core_time.steps
    assert step == 2
    assert optimizing - entered >= 40_000  # the kernel adds up when the thread is switched
    assert end >= optimizing


def test_a_step_reads_three_counters_and_nothing_else() -> None:
    core_time = CoreTime()
    begun, steps = time.thread_time(), 500
    for step in range(steps):
        core_time.backward()
        core_time.optimizing()
        core_time.step(step)
    each = (time.thread_time() - begun) / steps
    assert not over_budget(each, 0.005 * 0.02), (
        f"{1e6 * each:.0f} µs of a step of 20 ms"
    )  # measured 8 µs


_BURNS = """
import os, sys, time
from pathlib import Path
from workbench.launching.capture.core_time import CoreTime
core_time = CoreTime()
core_time.look(0.0)
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
core_time.look(0.0)
before, begun = core_time.looks[-1][2], time.process_time()
while time.process_time() - begun < 0.04:  # eight periods of the quota, however busy the host is
    pass
core_time.look(1.0)
after = core_time.looks[-1][2]
Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
Path(sys.argv[1]).rmdir()
core_time.look(2.0)
print(before, after, core_time.looks[-1][2])
"""


@pytest.mark.skipif(not can_limit(), reason="needs the right to make a cgroup")
def test_the_quota_of_a_cgroup_that_it_was_moved_to_is_seen() -> None:
    folder = GROUPS / f"workbench-test-{os.getpid()}"
    folder.mkdir()
    try:
        for name, text in (("cpu.cfs_quota_us", "5000"), ("cpu.max", "5000 100000")):
            if (folder / name).exists():
                (folder / name).write_text(text)
        command = [sys.executable, "-c", _BURNS, str(folder), str(GROUPS)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        before, after, outside = map(int, printed.split())
    finally:
        if folder.exists():
            until(lambda: not (folder / "cgroup.procs").read_text())
            folder.rmdir()
    assert before < 10_000
    assert after > 200_000  # in each 100 ms it may compute 5
    assert outside == after


def test_stops_of_the_process_are_counted_exactly() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def looked() -> int:
        assert child.stdin is not None
        assert child.stdout is not None
        print(file=child.stdin, flush=True)
        return int(child.stdout.readline())

    def stopped() -> set[bool]:
        """Of its threads: each is stopped when it comes to a core, the first one alone is not all."""
        stats = Path(f"/proc/{child.pid}/task").glob("*/stat")
        return {one.read_text().rpartition(")")[2].split()[0] == "T" for one in stats}

    try:
        before = [looked(), looked()][-1]
        for _ in range(5):
            os.kill(child.pid, signal.SIGSTOP)
            until(lambda: stopped() == {True})
            os.kill(child.pid, signal.SIGCONT)
            until(lambda: stopped() == {False})
            looked()
        until(lambda: looked() - before >= 9)
        assert looked() - before <= 12
    finally:
        child.kill()
        child.communicate()

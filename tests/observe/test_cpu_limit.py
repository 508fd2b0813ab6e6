"""What a cgroup's CPU limit refuses: read from real groups, and told of a real run of one process."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import workbench as wb
from tests.conftest import until
from tests.diagnose.grid import GROUPS, can_limit
from workbench.observe import cpu_limit
from workbench.observe.cpu_limit import CpuLimit

limits = pytest.mark.skipif(not can_limit(), reason="cgroups cannot be made here")


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup with a tenth of a core; what is in it is killed at the end."""
    folder = GROUPS / f"workbench-limit-{os.getpid()}"
    folder.mkdir()
    for name, value in (("cpu.cfs_quota_us", "10000"), ("cpu.max", "10000 100000")):
        if (folder / name).exists():
            (folder / name).write_text(value)
    yield folder
    until(lambda: not (folder / "cgroup.procs").read_text(), 20)
    folder.rmdir()


@limits
def test_a_process_below_a_limit_is_refused_most_of_what_it_asks_for(group: Path) -> None:
    inner = group / "inner"  # with no limit of its own
    inner.mkdir()
    busy = subprocess.Popen([sys.executable, "-c", "while 1: pass"])
    try:
        (inner / "cgroup.procs").write_text(str(busy.pid))
        limit = CpuLimit()
        assert limit.refused_share(busy.pid) is None  # the first look
        time.sleep(0.6)
        assert 0.3 < (limit.refused_share(busy.pid) or 0.0) <= 1.0
        free = CpuLimit()
        assert [free.refused_share(os.getpid()) for _ in range(2)] == [None, None]
    finally:
        busy.kill()
        busy.wait()
        inner.rmdir()


@pytest.mark.parametrize(
    ("limit_files", "refused"),
    [
        ({"cpu.max": "200000 100000"}, "nr_periods 9\nthrottled_usec {micros}\n"),
        (
            {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"},
            "nr_periods 9\nthrottled_time {micros}000\n",
        ),
    ],
    ids=["cgroup-2", "cgroup-1"],
)
def test_both_kinds_of_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_files: dict[str, str], refused: str
) -> None:
    clock = itertools.count(100.0)
    monkeypatch.setattr(cpu_limit, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(cpu_limit, "_groups", lambda _pid: [tmp_path])
    for name, text in limit_files.items():
        (tmp_path / name).write_text(text)
    limit, stat = CpuLimit(), tmp_path / "cpu.stat"
    stat.write_text(refused.format(micros=0))
    assert limit.refused_share(1) is None
    stat.write_text(refused.format(micros=6_000_000))  # beside two cores for a second
    assert limit.refused_share(1) == 0.75
    assert limit.refused_share(1) == 0.0
    stat.write_text("damaged")
    assert limit.refused_share(1) is None
    for name, text in limit_files.items():
        (tmp_path / name).write_text(text.replace("200000", "-1" if "quota" in name else "max"))
    stat.write_text(refused.format(micros=9_000_000))
    assert [limit.refused_share(1) for _ in range(2)] == [None, None]


SCRIPT = """
import os, threading, time
import torch
with open({group!r} + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
end = time.monotonic() + 300
while time.monotonic() < end:
    model(torch.randn(64, 64)).pow(2).mean().backward()
    optimizer.step()
"""


@limits
@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_run_of_one_process_under_a_limit_is_told_of_it(
    tmp_path: Path, store: Path, group: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(group=str(group)))
    run = wb.launch(script, store=store, processes=1, cpu=True, warm=True)
    until(lambda: [one for one in run.findings() if one.kind == "cpu-limit"], 240)
    (found,) = [one for one in run.findings() if one.kind == "cpu-limit"]
    assert "of the processor time that the run asked for" in found.evidence
    run.stop()

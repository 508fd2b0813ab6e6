"""What a rank answers while it trains: pulse, stacks, collectives, SIGTERM and the stop."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import until
from tests.launch.ranks import Ranks
from workbench.diagnose.hang.stacks import answer, request_stacks
from workbench.launching.capture import control_requests, pulse
from workbench.store import processes, schema
from workbench.store.layout import RunPaths

pytestmark = pytest.mark.slow
Begin = Callable[..., Ranks]


def beat(ranks: Ranks, rank: int = 0) -> tuple[int, int, str]:
    """Beats, steps and phase of a rank's pulse."""
    content = (ranks.folder / "metrics" / f"rank-{rank}.pulse").read_bytes()
    magic, beats, steps, phase, _wall, steady = struct.unpack(schema.PULSE_FORMAT, content)
    assert magic == schema.PULSE_MAGIC
    assert 0 <= time.monotonic() - steady < 200
    return beats, steps, schema.PULSE_PHASES[phase]


def test_the_hook_and_the_schema_agree() -> None:
    assert pulse.FORMAT.format == schema.PULSE_FORMAT
    assert pulse.MAGIC == schema.PULSE_MAGIC
    phases = (pulse.STARTING, pulse.FORWARD, pulse.BACKWARD, pulse.SAVING, pulse.ENDED)
    assert phases == tuple(range(len(schema.PULSE_PHASES)))
    assert control_requests.STACK_SIGNAL == schema.STACK_SIGNAL


def test_a_training_rank_answers(begin: Begin) -> None:
    ranks = begin(
        "loops.py", "ddp", "--steps", "10000", "--step-seconds", "0.05", ranks=2,
        WORKBENCH_FIRST_STEP="100",
    )  # fmt: skip
    until(lambda: len(ranks.lines()) >= 3, 90, "three steps")
    assert ranks.lines()[0]["step"] == 101
    beats, steps, phase = beat(ranks)
    assert phase in {"forward", "backward"}
    assert steps > 100
    assert beats > 3

    ranks.processes[1].send_signal(schema.STACK_SIGNAL)
    stack = ranks.folder / "metrics" / "rank-1.stack"
    until(lambda: "in ddp" in stack.read_text(), 10, "the stack")
    paths = RunPaths(ranks.folder)
    offsets = request_stacks(paths, (0, 1))  # by file: the rank's own thread answers
    for rank in (0, 1):
        until(lambda rank=rank: answer(paths, rank, offsets[rank]), 10, "the stack again")
        found = answer(paths, rank, offsets[rank])
        assert found is not None
        assert "ddp" in {frame.function for frame in found.frames}

    (ranks.folder / "control" / "dump").touch()
    trace = ranks.folder / "metrics" / "rank-0.trace.json"
    until(trace.exists, 10, "the trace")
    entries = json.loads(trace.read_text())["entries"]
    assert any("allreduce" in one["profiling_name"].replace("_", "") for one in entries)

    # A notice to make room: asked for a stop step, trained on.
    for process in ranks.processes:
        process.send_signal(signal.SIGTERM)
    until((ranks.folder / "control" / "preempt").exists, 10, "the request")
    reached = ranks.lines()[-1]["step"]
    until(lambda: ranks.lines()[-1]["step"] > reached + 2, 20, "training goes on")
    stop_at = ranks.lines()[-1]["step"] + 40
    (ranks.folder / "control" / "stop-at").write_text(str(stop_at))
    assert ranks.wait() == [0, 0]
    for rank in (0, 1):
        assert ranks.lines(rank)[-1]["step"] == stop_at
        assert ranks.document("end", rank)["stopped_at"] == stop_at
        assert beat(ranks, rank)[1:] == (stop_at, "ended")


def test_a_rank_without_a_backward_pass_stops_at_the_agreed_step(begin: Begin) -> None:
    ranks = begin("loops.py", "by-hand", "--steps", "100000", "--step-seconds", "0.02")
    until(lambda: len(ranks.lines()) >= 3, 60, "three steps")
    stop_at = ranks.lines()[-1]["step"] + 100
    (ranks.folder / "control" / "stop-at").write_text(str(stop_at))
    assert ranks.wait() == [0]
    assert ranks.document("end")["stopped_at"] == ranks.lines()[-1]["step"] == stop_at


def test_sigterm_ends_a_rank_that_is_to_end_or_that_nobody_watches(begin: Begin) -> None:
    ranks = begin("loops.py", "said", "--steps", "100000", "--step-seconds", "0.05")
    until(lambda: len(ranks.lines()) >= 2, 60, "two steps")
    (ranks.folder / "control" / "terminating").touch()
    ranks.processes[0].send_signal(signal.SIGTERM)
    assert ranks.wait(240) == [-signal.SIGTERM]
    assert not (ranks.folder / "control" / "preempt").exists()
    # That file is of an attempt that is over; in the next one no one names a stop step.
    before = len(ranks.lines())
    ranks = begin("loops.py", "said", "--steps", "100000", "--step-seconds", "0.05")
    until(lambda: len(ranks.lines()) > before, 60, "a step")
    ranks.processes[0].send_signal(signal.SIGTERM)
    time.sleep(2)
    assert ranks.processes[0].poll() is None
    assert ranks.wait(240) == [-signal.SIGTERM]


def test_a_rank_that_ended_well_is_not_lost(tmp_path: Path) -> None:
    """At a stop step one rank is gone first: the other may be saving, and is not to be ended."""
    (tmp_path / "metrics").mkdir()
    requests = control_requests.ControlRequests(str(tmp_path), 0, None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as peer:
        start, end = (tmp_path / "metrics" / f"rank-1.{kind}.json" for kind in ("start", "end"))
        process = processes.identify(peer.pid)
        record = {"process": process, "hostname": os.uname().nodename}
        start.write_text(json.dumps(record))
        assert not requests._peer_lost()
        peer.communicate(b"\n")
    assert requests._peer_lost()  # killed, for all that is known
    end.write_text(json.dumps({"ok": False}))
    assert requests._peer_lost()
    end.write_text(json.dumps({"ok": True}))
    assert not requests._peer_lost()
    os.utime(end, (1, 1))  # of an attempt before
    assert requests._peer_lost()
    # Of a rank on another machine, or in another container, only its end is known.
    for other in (
        {**record, "hostname": "another"},
        {**record, "process": {**record["process"], "boot_id": "another"}},
    ):
        start.write_text(json.dumps(other))
        os.utime(start, (2, 2))
        assert not requests._peer_lost()
        end.write_text(json.dumps({"ok": False}))
        assert requests._peer_lost()
        os.utime(end, (1, 1))

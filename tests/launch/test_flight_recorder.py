"""Torch's ring of collectives is not read while a rank ends: it would die of SIGSEGV."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.launching.capture import control_requests
from workbench.launching.capture.arrivals import Arrivals
from workbench.launching.capture.flight_recorder import SIZE_VARIABLES, FlightRecorder

pytest.importorskip("torch")
from torch._C import _distributed_c10d

DUMP = "_dump_fr_trace_json"
LIMIT = 60.0  # seconds, for what never takes one


class SlowRing:
    """Torch's own function, held up until it is let go."""

    def __init__(self, dump: Callable[..., object]) -> None:
        self.dump, self.calls = dump, 0
        self.entered, self.let_go = threading.Event(), threading.Event()

    def __call__(self, **options: bool) -> object:
        self.calls += 1
        self.entered.set()
        assert self.let_go.wait(LIMIT)
        return self.dump(**options)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowRing:
    ring = SlowRing(getattr(_distributed_c10d, DUMP))
    monkeypatch.setattr(_distributed_c10d, DUMP, ring)
    return ring


def ended_after_a_read(slow: SlowRing, read: Callable[[], object], end: Callable[[], None]) -> None:
    """The end waits for the read that has begun."""
    reading = threading.Thread(target=read)
    reading.start()
    assert slow.entered.wait(LIMIT)
    over = threading.Event()
    ending = threading.Thread(target=lambda: (end(), over.set()))
    ending.start()
    assert not over.wait(0.05)
    slow.let_go.set()
    for thread in (reading, ending):
        thread.join(LIMIT)
    assert over.is_set()


def test_the_answer_to_a_request(tmp_path: Path, slow: SlowRing) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "control").mkdir()
    requests = control_requests.ControlRequests(str(tmp_path), 0, None)
    (tmp_path / "control" / "dump").touch()
    ended_after_a_read(slow, requests._answer, requests._ring.end)
    trace = tmp_path / "metrics" / "rank-0.trace.json"
    assert b"version" in trace.read_bytes()
    trace.unlink()
    calls = slow.calls
    (tmp_path / "control" / "dump").unlink()
    (tmp_path / "control" / "dump").touch()
    requests._answer()
    assert (slow.calls, trace.read_bytes()) == (calls, b'{"entries": null}')  # it still answers


@pytest.mark.parametrize(
    ("variables", "keeps"),
    [
        ({}, True),
        ({"TORCH_FR_BUFFER_SIZE": "512"}, True),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, False),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, False),
        ({"TORCH_FR_BUFFER_SIZE": "512", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, True),
        ({"TORCH_FR_BUFFER_SIZE": "none"}, False),
    ],
)
def test_whether_torch_keeps_collectives(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], *, keeps: bool
) -> None:
    for name in SIZE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert FlightRecorder().keeps is keeps


def test_an_older_torch_keeps_none_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SIZE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delattr(_distributed_c10d, DUMP)
    assert not FlightRecorder().keeps


def test_the_look_at_what_arrived(tmp_path: Path, slow: SlowRing) -> None:
    ring = FlightRecorder()
    arrivals = Arrivals(str(tmp_path), 0, ring)
    ended_after_a_read(slow, arrivals.look, arrivals.end)
    assert slow.calls == 2  # the end looks once more
    arrivals.look()
    assert (ring.dump(DUMP), slow.calls) == (b"", 2)

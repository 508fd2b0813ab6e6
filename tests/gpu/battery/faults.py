"""Faults that only a card has, each a real launched run: what is told, and what is left behind."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.battery.values import Case, Check, Report, Setup

if TYPE_CHECKING:
    from workbench.launching.run import Run

SCRIPT = Path(__file__).with_name("fault_script.py")
LEFT = "processes left"


def _start(setup: Setup, fault: str) -> Run:
    import workbench as wb

    arguments = ["--fault", fault, "--device", setup.device]
    return wb.launch(SCRIPT, arguments, strategy="single", **setup.launching)


def _until(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _rank_pid(run: Run) -> int | None:
    from workbench.store.files import read_json

    start = read_json(run.directory / "metrics" / "rank-0.start.json")
    return int(start["process"]["pid"]) if start else None


def _report(run: Run, *, outcome: str, words: tuple[str, ...], seconds: float) -> Report:
    """The outcome, and whether any finding or the message has one of `words`."""
    from workbench.store import processes

    run.wait(60)
    summary = run.summary()
    findings = summary["findings"]
    text = " ".join(str(one) for one in findings) + str(run.status.message)
    left = len(list(processes.find_marked(run.document["marker"])))
    return Report(
        measured={"summary": summary, "seconds": seconds},
        checks=(
            Check(name="outcome", value=summary["outcome"], equals=outcome),
            Check(name="named", value=any(word in text for word in words), equals=True),
            Check(name=LEFT, value=left, equals=0),
        ),
    )


def killed(setup: Setup) -> Report:
    """SIGKILL of the rank in mid-step."""
    run = _start(setup, "none")
    _until(lambda: len(run.metrics(0)) >= 3, 60)
    pid = _rank_pid(run)
    began = time.monotonic()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    return _report(
        run, outcome="failed", words=("SIGKILL", "killed"), seconds=time.monotonic() - began
    )


def hanging(setup: Setup) -> Report:
    """A kernel that does not end (a sleep on a CPU), then stop --now."""
    run = _start(setup, "hang")
    _until(lambda: len(run.metrics(0)) >= 3, 60)
    time.sleep(2.0)
    began = time.monotonic()
    answer = run.stop(now=True)
    return Report(
        measured={"answer": answer, "seconds": time.monotonic() - began},
        checks=(
            Check(name=LEFT, value=answer["processes_left"], equals=0),
            Check(name="seconds to stop", value=time.monotonic() - began, high=30.0),
        ),
    )


def fails(fault: str, words: tuple[str, ...], setup: Setup, outcome: str = "failed") -> Report:
    began = time.monotonic()
    run = _start(setup, fault)
    return _report(run, outcome=outcome, words=words, seconds=time.monotonic() - began)


FAILING: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("oom", ("out-of-memory", "out of memory", "Out of memory")),
    ("device-assert", ("device-side assert", "index", "cuda-error")),
    ("ecc", ("ECC", "ecc")),
    ("illegal-address", ("illegal memory access", "cuda-error", "SIG")),
)


def fault_cases() -> tuple[Case, ...]:
    single = [
        Case(name="fault-killed", group="faults", run=killed, limit_seconds=90),
        Case(name="fault-hang", group="faults", run=hanging, limit_seconds=90),
        Case(
            name="fault-nan",
            group="faults",
            run=functools.partial(fails, "nan", ("nan", "NaN"), outcome="succeeded"),
            limit_seconds=90,
        ),
    ]
    failing = [
        Case(
            name=f"fault-{fault}",
            group="faults",
            run=functools.partial(fails, fault, words),
            limit_seconds=90,
        )
        for fault, words in FAILING
    ]
    return (*single, *failing)

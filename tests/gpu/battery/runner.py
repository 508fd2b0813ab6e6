"""Runs cases one after the other in each lane, and keeps every result at once."""

from __future__ import annotations

import datetime as dt
import fcntl
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.gpu.battery import pod
from tests.gpu.battery.environment import nvidia_smi, versions
from tests.gpu.battery.leftovers import alone, die_with, end_left, finish, mark
from tests.gpu.battery.values import Case, NotAvailable, Report, Setup

FINAL = {"passed", "failed", "error", "skipped", "timeout"}
PRELOAD = ("torch", "torch.distributed", "accelerate", "transformers", "peft")
_LEAST_SECONDS = 5.0
_PATIENCE = 4  # times the limit of a case where no card is paid for: the machine may be shared
_WORTH_PRELOADING = 4  # cases
_TAIL_BYTES = 4000


def results(path: Path) -> list[dict[str, Any]]:
    """The rows kept so far; a torn line is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def remaining(cases: Iterable[Case], path: Path) -> list[Case]:
    """Those without a final result in the file."""
    done = {row["case"] for row in results(path) if row["outcome"] in FINAL}
    return [case for case in cases if case.name not in done]


def run_battery(
    cases: Sequence[Case], setup: Setup, *, seconds: float, preload: Sequence[str] = PRELOAD
) -> list[dict[str, Any]]:
    """Run what has no result yet until the time is over; returns all rows.

    Every lane is a child process, so that a crash of a case or lane never takes the others along.
    """
    setup.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with alone(setup.out):
        end_left(setup.out, sorted({case.lane for case in cases}))
        left = remaining(cases, setup.results)
        if len(left) > _WORTH_PRELOADING:
            _preload(preload)
        children = [
            _fork_lane(lane, [case for case in left if case.lane == lane], setup, deadline)
            for lane in sorted({case.lane for case in left})
        ]
        try:
            for pid in children:
                os.waitpid(pid, 0)
        except KeyboardInterrupt:
            for pid in children:
                os.kill(pid, signal.SIGTERM)
            raise
    return results(setup.results)


def _fork_lane(lane: str, cases: Sequence[Case], setup: Setup, deadline: float) -> int:
    """The pid of the child that runs them."""
    sys.stdout.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _run_lane(lane, cases, setup, deadline, parent)
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def _preload(names: Sequence[str]) -> None:
    """Load once what nearly every case needs. CUDA stays untouched: it does not survive a fork."""
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            __import__(name)


def _run_lane(lane: str, cases: Sequence[Case], setup: Setup, deadline: float, parent: int) -> None:
    current: list[int] = []

    def end(_number: int, _frame: object) -> None:
        for pid in current:
            _kill(pid)
        finish(setup.out, lane)
        os._exit(143)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C: the parent passes it on
    die_with(parent, signal.SIGTERM)
    mark(setup.out, lane)
    about = {
        "card": pod.card() if setup.simulated else nvidia_smi(),
        "versions": versions(),
        "requested_device": setup.device,
        "simulated": setup.simulated,
    }
    for case in cases:
        left = deadline - time.monotonic()
        if left < _LEAST_SECONDS:
            print(f"{case.name:28} not started: the time is over", flush=True)
            continue
        limit = case.limit_seconds * (1 if setup.on_gpu else _PATIENCE)
        row = _run_case(case, setup, min(limit, left), current)
        if row["outcome"] == "timeout" and left < limit:
            row["outcome"] = "cut"  # tried again when the battery continues
        row |= about
        _keep(setup.results, row)
        if row["outcome"] in {"timeout", "error", "cut"}:
            end_left(setup.out, [lane])
        print(line(row), flush=True)
    finish(setup.out, lane)


def _run_case(case: Case, setup: Setup, limit: float, current: list[int]) -> dict[str, Any]:
    today = dt.datetime.now(tz=dt.timezone.utc)
    row: dict[str, Any] = {"case": case.name, "group": case.group, "date": today.isoformat()}
    missing = [name for name in case.packages if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"{' and '.join(missing)} cannot be imported here"
        return row | {"outcome": "skipped", "reason": reason, "seconds": 0.0}
    log = setup.out / f"logs-{setup.kind}" / f"{case.name}.log"
    answer = log.with_suffix(".json")
    log.parent.mkdir(exist_ok=True)
    answer.unlink(missing_ok=True)
    began = time.monotonic()
    lane = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with(lane, signal.SIGKILL)
        _child(case, setup, log, answer)
    current[:] = [pid]
    ended = _wait(pid, limit)
    _kill(pid)  # what it left behind in its group
    current.clear()
    row["seconds"] = round(time.monotonic() - began, 2)
    if answer.is_file():
        row |= json.loads(answer.read_text())
    else:
        row["outcome"] = "error" if ended else "timeout"
        row["reason"] = f"no result within {limit:.0f} s" if not ended else "the process died"
    if row["outcome"] not in {"passed", "skipped"} and log.is_file():
        row["tail"] = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    return row


def _child(case: Case, setup: Setup, log: Path, answer: Path) -> None:
    """In the fork: run the case and write its answer; never returns."""
    try:
        os.setsid()
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - for the process' life
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if setup.simulated:
            pod.prepare()
        document = _outcome(case, setup)
        partial = answer.with_suffix(".partial")
        partial.write_text(json.dumps(document, default=str))
        partial.replace(answer)
    except BaseException:  # noqa: BLE001 - the process ends here whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _outcome(case: Case, setup: Setup) -> dict[str, Any]:
    try:
        report = case.run(setup)
    except NotAvailable as reason:
        return {"outcome": "skipped", "reason": str(reason)}
    except Exception as error:  # noqa: BLE001 - a result like any other
        traceback.print_exc()
        return {"outcome": "error", "reason": f"{type(error).__name__}: {error}"[:2000]}
    return _document(report)


def _document(report: Report) -> dict[str, Any]:
    checks = [check.document() for check in report.checks]
    return {
        "outcome": "passed" if all(check["ok"] for check in checks) else "failed",
        **{key: value for key, value in asdict(report).items() if key != "checks"},
        "checks": checks,
    }


def _wait(pid: int, seconds: float) -> bool:
    """Whether the child ended within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.05)
    _kill(pid)
    os.waitpid(pid, 0)
    return False


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _keep(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line; lanes take turns, and a torn line before it is ended first."""
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def line(row: Mapping[str, Any]) -> str:
    """One row for people."""
    wrong = [check for check in row.get("checks", ()) if not check["ok"]]
    why = row.get("reason") or "; ".join(
        f"{check['name']} = {_short(check['value'])}, wanted {_wanted(check)}" for check in wrong
    )
    kind = "simulated  " if row.get("simulated") else ""
    return f"{row['case']:28} {row['outcome']:8} {row.get('seconds', 0):7.1f} s  {kind}{why}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _wanted(check: Mapping[str, Any]) -> str:
    if check["equals"] is not None:
        return str(check["equals"])
    low, high = check["low"], check["high"]
    return " to ".join(str(one) for one in (low, high) if one is not None)

"""Breaking a training of one's own on purpose, for real: what FaultLab's buttons do."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workbench as wb
import workbench.recipes
from workbench.recover.policy import Recovery
from workbench.store import processes
from workbench.store.files import read_json, write_json_atomic

SCRIPT = Path(workbench.recipes.__file__).with_name("fault_lab.py")
_GROUPS = ("Numbers", "Slow", "Stuck", "Dead", "Disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to break a run."""

    name: str
    """How code asks for it."""
    title: str
    """The words on the button."""
    group: str
    """What it is about: one of `_GROUPS`."""
    look: str
    """What to look at once it has happened; ``{rank}`` is the rank it was done to."""
    number: signal.Signals | None = None
    """Sent to the rank from outside; None = the script does it when told."""
    lasting: bool = False
    """It continues until `heal`."""


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            name="nan",
            title="NaN on one rank",
            group="Numbers",
            look=(
                "One loss of rank {rank} was NaN. Averaging the gradients spreads it to all ranks "
                "in the same step: training cannot recover from it. The finding names the first "
                "rank."
            ),
        ),
        Fault(
            name="straggler",
            title="Slow rank",
            group="Slow",
            lasting=True,
            look=(
                "In the rank timeline the orange bar is rank {rank}, grey is the wait of the "
                "others. Step time grows on every rank equally, so it cannot show which rank is "
                "slow."
            ),
        ),
        Fault(
            name="slow-loader",
            title="Slow data on one rank",
            group="Slow",
            lasting=True,
            look=(
                "The same orange bar, but its hover text shows that rank {rank} waits for data: "
                "more loader workers help, another GPU does not."
            ),
        ),
        Fault(
            name="hang",
            title="Hang",
            group="Stuck",
            look=(
                "The run does not end and prints nothing. After about 15 s the finding names rank "
                "{rank} and its line of code; the others wait in the exchange."
            ),
        ),
        Fault(
            name="stopped",
            title="Frozen rank (SIGSTOP)",
            group="Stuck",
            number=signal.SIGSTOP,
            look=(
                "As with a hang there is no progress, but the table of ranks shows that the "
                "system stopped rank {rank}: the code is not the cause."
            ),
        ),
        Fault(
            name="killed",
            title="Killed rank (SIGKILL)",
            group="Dead",
            number=signal.SIGKILL,
            look=(
                "Within seconds the finding names rank {rank} and the signal; the log of the "
                "other rank shows only a closed connection."
            ),
        ),
        Fault(
            name="exception",
            title="Exception on one rank",
            group="Dead",
            look=(
                "The finding shows the first error with its line, on rank {rank}. The errors of "
                "the others follow from it."
            ),
        ),
        Fault(
            name="out-of-memory",
            title="Out of memory",
            group="Dead",
            look=(
                "The finding shows how much memory rank {rank} requested and what lowers the "
                "need. The run is not restarted: the same would happen again."
            ),
        ),
        Fault(
            name="disk-full",
            title="Full disk in a checkpoint",
            group="Disk",
            look=(
                "The next checkpoint fails and ends the run. The run is not restarted: the disk "
                "is still full. The previous checkpoint is complete: free space, then press "
                "Resume."
            ),
        ),
    )
}


def groups() -> dict[str, list[Fault]]:
    """The faults by what they are about."""
    return {name: [fault for fault in FAULTS.values() if fault.group == name] for name in _GROUPS}


def start(
    *,
    store: str | Path | None = None,
    steps: int = 3000,
    step_ms: float = 40.0,
    checkpoint_every: int = 50,
    restarts: int = 2,
    name: str = "fault lab",
    ranks: int = 2,
) -> wb.Run:
    """Start the training that is to be broken: `ranks` CPU processes, some 20 steps a second."""
    options = {"steps": steps, "step-ms": step_ms, "checkpoint-every": checkpoint_every}
    return wb.launch(
        SCRIPT,
        [word for flag, value in options.items() for word in (f"--{flag}", str(value))],
        strategy="ddp",
        processes=ranks,
        cpu=True,
        warm=True,
        store=store,
        name=name,
        recovery=Recovery(restarts=restarts, backoff_seconds=1.0),
    )


def inject(run: Any, name: str, *, rank: int = 1, ms: float = 100.0) -> str:
    """Do it; returns what to look at.

    Raises:
        UnknownNameError: no such fault.
        UsageError: the run does not train, or has no such rank.
    """
    if name not in FAULTS:
        raise wb.UnknownNameError.near("fault", name, list(FAULTS))
    fault = FAULTS[name]
    state = read_json(Path(run.directory) / "state.json") or {}
    if not run.status.live:
        raise wb.UsageError(f"{run.id} is not training now. Start or resume it first.")
    if not run.view()["steps"]:
        raise wb.UsageError(f"{run.id} is starting: wait for its first steps.")
    if name == "disk-full":
        rank = 0  # the rank that writes
    process = (state.get("ranks") or {}).get(str(rank))
    if process is None:
        raise wb.UsageError(f"{run.id} does not have rank {rank}.")
    if fault.number is not None:
        processes.send_signal(process, fault.number)
    else:
        order = {"fault": name, "rank": rank, "ms": ms}
        write_json_atomic(_file(run), order)
    return fault.look.format(rank=rank)


def heal(run: Any) -> None:
    """End a lasting fault, and let stopped ranks continue."""
    _file(run).unlink(missing_ok=True)
    state = read_json(Path(run.directory) / "state.json") or {}
    for process in (state.get("ranks") or {}).values():
        if processes.is_stopped(process):
            processes.send_signal(process, signal.SIGCONT)


def _file(run: Any) -> Path:
    return Path(run.directory) / "control" / "fault.json"


def wait_for_finding(run: Any, *kinds: str, seconds: float = 120.0) -> dict[str, Any]:
    """Wait for a finding of one of these kinds and return it as its document.

    Raises:
        WorkbenchError: there is none within `seconds`; the message has those there are.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for finding in run.view()["findings"]:
            if finding["kind"] in kinds:
                return finding
        time.sleep(0.2)
    kinds_seen = ", ".join(finding["kind"] for finding in run.view()["findings"]) or "none"
    raise wb.WorkbenchError(
        f"No finding {' or '.join(kinds)} within {seconds:g} s; findings: {kinds_seen}."
    )


def finding_text(finding: dict[str, Any]) -> str:
    """A finding as text, one line for each of its parts."""
    rank = "whole run" if finding["rank"] is None else f"rank {finding['rank']}"
    step = "" if finding["step"] is None else f", since step {finding['step']}"
    sure = f"{100 * finding['confidence']:.0f} % sure"
    lines = [f"{finding['severity']}: {finding['kind']}, {rank}{step}, {sure}"]
    lines += [f"  {part:9}{finding[part]}" for part in ("cause", "evidence", "next")]
    return "\n".join(lines)


def trained(run: Any, steps: int, *, attempt: int = 1, seconds: float = 120.0) -> dict[str, Any]:
    """Wait until an attempt of this number or later has made so many steps; returns its line.

    The view of an attempt outlives it for a moment, so the steps alone would say nothing.

    Raises:
        WorkbenchError: it has not within `seconds`, or the run has ended.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        line = _last_line(Path(run.directory) / "attempts.jsonl")
        view = run.view()
        newest = view["phase"] != "ended" and view["attempt"] == line.get("attempt", 0) >= attempt
        if newest and line["event"] == "start" and view["steps"] >= line["first_step"] + steps:
            return line
        if line.get("event") == "end" and run.outcome is not None:
            break
        time.sleep(0.1)
    raise wb.WorkbenchError(f"{run.id} did not continue: {run.status.message}")


def _last_line(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return {}

"""How a run ended, from exit code, rank records and logs. No exit code is trusted alone."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.store.files import read_json, read_tail
from workbench.store.layout import RunPaths

_SECONDARY = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed? ?out|gloo|ncclremoteerror|"
    r"distbackenderror|distnetworkerror|socket",
    re.IGNORECASE,
)
_ROOT_CAUSE = re.compile(
    r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL | re.IGNORECASE
)
# torch's own words for its rendezvous port; a script's other servers say it differently.
ADDRESS_IN_USE = re.compile(r"server socket has failed to (listen|bind).*EADDRINUSE", re.DOTALL)


# What people have met before, and what to do about it.
_NO_GPU = (
    "The script asks for a GPU that is not there: run it where there are GPUs, or let "
    "Accelerator().device choose."
)
_HINTS = (
    (
        r"not compiled with CUDA|_cuda_setDevice|No CUDA GPUs are available|invalid device ordinal",
        _NO_GPU,
    ),
    (
        r"CUDA out of memory|CUDACachingAllocator|DefaultCPUAllocator: can't allocate",
        "Out of memory: halve the micro-batch and double the accumulation; the result is the same.",
    ),
    (r"No module named", "Install what the script imports into this Python environment."),
    (r"No space left on device", "The disk is full: free space or choose another --store."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The end of a run."""

    outcome: str
    """succeeded, failed, stopped, preempted, interrupted or no-steps."""
    message: str
    """One sentence: what happened and what to do next."""
    failed_rank: int | None = None
    """The rank that failed first."""
    finding: dict[str, Any] | None = None
    """Evidence, cause and next move, for failures."""


def judge(
    paths: RunPaths,
    *,
    ranks: int,
    steps: int,
    exit_code: int | None,
    stop_reason: str | None,
    capture: bool,
) -> Verdict:
    """Decide the outcome. `exit_code` is the launcher's, None when nobody saw it end."""
    ends = {rank: read_json(paths.rank_end(rank)) for rank in range(ranks)}
    whole = all(end and end.get("ok") and end.get("stopped_at") is None for end in ends.values())
    if stop_reason is not None and not (exit_code == 0 and whole and capture):
        return _stopped(ends, stop_reason, steps)
    if exit_code == 0 or (
        exit_code is None and all(end and end.get("ok") for end in ends.values())
    ):
        return _finished(steps, exit_code, capture=capture)
    root = _ROOT_CAUSE.search(read_tail(paths.launcher_log, 20_000))
    if whole and steps and root is not None and int(root[2]) < 0:
        return _crashed_at_exit(int(root[1]), steps, -int(root[2]))
    if exit_code is None and not any(end and not end.get("ok") for end in ends.values()):
        return Verdict(
            outcome="interrupted",
            message=f"The run's processes vanished after step {steps} while nobody watched.",
        )
    return _failed(paths, ends, exit_code, steps)


def _stopped(ends: dict[int, dict[str, Any] | None], reason: str, steps: int) -> Verdict:
    known = [end for end in ends.values() if end and end.get("stopped_at") is not None]
    broken = next(((rank, end) for rank, end in ends.items() if end and not end.get("ok")), None)
    if known and broken is not None:
        cause = f"Saving the checkpoint of the stop failed on rank {broken[0]}"
        verdict = _failure(broken[0], steps, cause, str(broken[1].get("exception")))
        return replace(verdict, outcome=reason)
    why = "Pre-empted" if reason == "preempted" else "Stopped as asked"
    if not known:
        return Verdict(outcome=reason, message=f"{why} after step {steps}, without a checkpoint.")
    saved = known[0].get("checkpoint")
    where = f"checkpoint {saved}" if saved else "the script offers no checkpoint to the workbench"
    return Verdict(outcome=reason, message=f"{why} at step {known[0]['stopped_at']}; {where}.")


def _finished(steps: int, exit_code: int | None, *, capture: bool) -> Verdict:
    if capture and steps == 0:
        return Verdict(
            outcome="no-steps",
            message="The script ended with exit code 0, but no optimizer step was seen. Its log "
            "says why: many examples leave quietly when they find too few GPUs. (Trainings in "
            "processes that the script itself starts are not observed.)",
        )
    unseen = " (the exit code was not seen; every rank reported a clean end)"
    return Verdict(
        outcome="succeeded",
        message=f"Finished after {steps} steps{unseen if exit_code is None else ''}."
        if capture
        else "Finished with exit code 0 (unobserved).",
    )


def _crashed_at_exit(rank: int, steps: int, number: int) -> Verdict:
    """Every rank's script had ended well; then a process died in its own shut-down.

    Seen with torch 2.13 and gloo in about 1 of 80 runs ("terminate called without an active
    exception" on SIGABRT, after the process group was destroyed). Nothing of the training is lost.
    """
    cause = f"rank {rank} was killed by {signal_name(number)} while its process was shutting down"
    finding = {
        "kind": "crash-at-exit",
        "rank": rank,
        "step": steps,
        "evidence": "every rank's script had ended without an error before",
        "cause": cause,
        "next": "Nothing of the training is lost.",
        "confidence": 0.9,
    }
    message = f"Finished after {steps} steps; then {cause}, after the script had ended."
    return Verdict(outcome="succeeded", message=message, finding=finding)


def _failed(
    paths: RunPaths,
    ends: dict[int, dict[str, Any] | None],
    exit_code: int | None,
    steps: int,
) -> Verdict:
    if exit_code is not None and exit_code < 0:
        name = signal_name(-exit_code)
        cause = f"The launcher was killed by {name}; the ranks it left behind were ended"
        return _failure(None, steps, cause, f"launcher exit code {exit_code}")
    rank, error = _first_exception(ends)
    if rank is None and len(ends) == 1:
        return _only_rank_failed(paths, steps)
    root = _ROOT_CAUSE.search(read_tail(paths.launcher_log, 20_000))
    if root is not None and (rank is None or (error is not None and _SECONDARY.search(error))):
        killed = int(root[2])
        if rank is None or killed < 0:
            rank, error = int(root[1]), None
            cause = (
                f"Rank {rank} was killed by {signal_name(-killed)}"
                if killed < 0
                else f"Rank {rank} ended with exit code {killed}"
            )
            return _failure(rank, steps, cause, f"exit code {killed} after step {steps}")
    if rank is not None and error is not None and error.startswith("exit code"):
        error = f"{error}: {_last_line(paths.rank_log(rank))}"
    if rank is not None and error is not None:
        where = (ends[rank] or {}).get("where")
        cause = f"Rank {rank} failed: {error.splitlines()[0][:300]}"
        return _failure(rank, steps, cause, where or f"after step {steps}")
    return _failure(
        None,
        steps,
        f"The launcher ended with exit code {exit_code}: {_last_line(paths.launcher_log)}",
        "logs/launcher.log",
    )


def _only_rank_failed(paths: RunPaths, steps: int) -> Verdict:
    """One rank and no word from it: Accelerate's simple launcher says how its child ended."""
    text = read_tail(paths.launcher_log, 20_000)
    killed = re.search(r"died with <Signals\.\w+: (\d+)>", text)
    status = re.search(r"returned non-zero exit status (\d+)", text)
    if killed:
        how = f"was killed by {signal_name(int(killed[1]))}"
    else:
        how = f"ended with exit code {status[1] if status else 'unknown'}"
    return _failure(0, steps, f"Rank 0 {how}", f"after step {steps}")


def _failure(rank: int | None, steps: int, cause: str, evidence: str) -> Verdict:
    log = f"logs/rank-{rank}.log" if rank is not None else "logs/launcher.log"
    hints = (hint for pattern, hint in _HINTS if re.search(pattern, cause))
    action = next(hints, f"See {log} of the run.")
    finding = {
        "kind": "rank-failed" if rank is not None else "launcher-failed",
        "rank": rank,
        "step": steps,
        "evidence": evidence,
        "cause": cause,
        "next": action,
        "confidence": 0.9 if rank is not None else 0.6,
    }
    text = f"{cause} ({evidence}). {action}"
    return Verdict(outcome="failed", message=text, failed_rank=rank, finding=finding)


def _first_exception(ends: dict[int, dict[str, Any] | None]) -> tuple[int | None, str | None]:
    """The earliest exception that is not merely the echo of a lost peer, else the earliest one."""
    failed = [
        (end.get("time", 0.0), rank, str(end.get("exception") or f"exit code {end['exit_code']}"))
        for rank, end in ends.items()
        if end is not None and not end.get("ok", True)
    ]
    own = [entry for entry in failed if not _SECONDARY.search(entry[2])]
    if not failed:
        return None, None
    _, rank, error = min(own or failed)
    return rank, error


def _last_line(log: Path) -> str:
    lines = [line for line in read_tail(log, 4000).splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it wrote nothing"


def signal_name(number: int) -> str:
    """``SIGKILL (9)`` for 9, with the usual meaning of the ones people meet."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    hint = {"SIGKILL": ", often the kernel's out-of-memory killer"}.get(name, "")
    return f"{name} ({number}{hint})"


def address_was_taken(paths: RunPaths, ranks: int) -> bool:
    """Whether the logs show that the rendezvous port was in use."""
    logs = [paths.launcher_log, *(paths.rank_log(rank) for rank in range(ranks))]
    return any(ADDRESS_IN_USE.search(read_tail(path, 20_000)) for path in logs)

"""How a run ended, from exit code, rank records and logs. No exit code is trusted alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from workbench.diagnose.failure import (
    Failed,
    explain,
    finding,
    root_cause,
    signal_name,
    silent_spawned_ranks,
    tail_now,
)
from workbench.observe.rank_count import rank_count
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.rank_records import RankEnd
from workbench.store.record import read_end

# torch's own words for its rendezvous port; a script's other servers say it differently.
ADDRESS_IN_USE = re.compile(r"server socket has failed to (listen|bind).*EADDRINUSE", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The end of a run."""

    outcome: str
    """succeeded, failed, stopped, preempted, interrupted or no-steps."""
    message: str
    """One sentence: what happened and what to do next."""
    failed_rank: int | None = None
    """The rank that failed first."""
    finding: Finding | None = None
    """Evidence, cause and next move, for failures."""


def judge(
    paths: RunPaths,
    *,
    ranks: int,
    steps: int,
    exit_code: int | None,
    stop_reason: str | None,
    capture: bool,
    first_step: int = 0,
    steps_total: int | None = None,
) -> Verdict:
    """Decide the outcome.

    Args:
        paths: The run.
        ranks: Their number; those that the script starts itself are found.
        steps: The furthest step that one of them reported.
        exit_code: The launcher's; None when no one saw it end.
        stop_reason: Why the run was stopped; None = it was not.
        capture: Whether steps are observed.
        first_step: Steps that were done when the attempt began.
        steps_total: Steps that the script is to do, where that is known.
    """
    spawned = _ends_of_spawned(paths, ranks)
    ends = {rank: read_end(paths, rank) for rank in range(ranks)} | spawned
    all_finished = all(end and end.ok and end.stopped_at is None for end in ends.values())
    if stop_reason is not None and not (exit_code == 0 and all_finished and capture):
        return _stopped(paths, ends, stop_reason, steps)
    # A script may wait for the processes that it started without asking how they ended.
    lost = bool(silent_spawned_ranks(paths))
    spawned_ended_well = all(end.ok for end in spawned.values())
    if not lost and (
        (exit_code == 0 and spawned_ended_well)
        or (exit_code is None and all(end and end.ok for end in ends.values()))
    ):
        nothing_left = any(end and end.nothing_left for end in ends.values())
        nothing_left = nothing_left or bool(steps_total and first_step >= steps_total)
        unseen = exit_code is None
        if capture and not steps and (paths.metrics / "unobserved").exists():
            return _unobserved()
        return _finished(
            steps, first_step, unseen=unseen, nothing_left=nothing_left, capture=capture
        )
    root = root_cause(paths)
    if all_finished and not lost and steps and root is not None and root[1] < 0:
        return _crashed_at_exit(root[0], steps, -root[1])
    if exit_code is None and not lost and not any(end and not end.ok for end in ends.values()):
        return Verdict(
            outcome="interrupted",
            message=f"The run's processes vanished after step {steps} while unsupervised.",
        )
    return verdict_of(explain(paths, ends, exit_code, steps))


def _ends_of_spawned(paths: RunPaths, ranks: int) -> dict[int, RankEnd]:
    """The ends that processes wrote which the script started itself.

    What is not there is not missed: the script may end them as it likes.
    """
    ends = {rank: read_end(paths, rank) for rank in range(rank_count(paths, ranks))}
    return {rank: end for rank, end in ends.items() if end is not None and end.spawned}


def _stopped(paths: RunPaths, ends: dict[int, RankEnd | None], reason: str, steps: int) -> Verdict:
    stopped_ends = [end for end in ends.values() if end and end.stopped_at is not None]
    broken = next(((rank, end) for rank, end in ends.items() if end and not end.ok), None)
    if stopped_ends and broken is not None:
        cause = f"Saving the checkpoint of the stop failed on rank {broken[0]}"
        error = str(broken[1].exception)
        failed = Failed(
            cause=cause, evidence=error, rank=broken[0], kind="checkpoint-failed", text=error
        )
        return replace(verdict_of(finding(paths, failed, steps)), outcome=reason)
    why = "Pre-empted" if reason == "preempted" else "Stopped as asked"
    if not stopped_ends:
        return Verdict(outcome=reason, message=f"{why} after step {steps}, without a checkpoint.")
    saved = stopped_ends[0].checkpoint
    where = f"checkpoint {saved}" if saved else "the script offers no checkpoint to the workbench"
    return Verdict(outcome=reason, message=f"{why} at step {stopped_ends[0].stopped_at}; {where}.")


def _finished(
    steps: int, first_step: int, *, unseen: bool, nothing_left: bool, capture: bool
) -> Verdict:
    """Exit code 0. `nothing_left`: the attempt was resumed where there was nothing left to do."""
    if not capture:
        return Verdict(outcome="succeeded", message="Finished with exit code 0 (unobserved).")
    if first_step and steps <= first_step:
        return _without_steps_of_its_own(first_step, nothing_left=nothing_left)
    if steps == 0:
        return Verdict(
            outcome="no-steps",
            message="The script ended with exit code 0, but no optimizer step was seen. Its log "
            "says why: many examples leave quietly when they find too few GPUs. A script that "
            "trains without a torch optimizer tells its steps by workbench.log(step=…, loss=…).",
        )
    how = " (the exit code was not seen; every rank reported a clean end)" if unseen else ""
    return Verdict(outcome="succeeded", message=f"{after_steps(steps)}{how}.")


def after_steps(steps: int) -> str:
    """How the message of a run begins that has made its steps."""
    return f"Finished after {steps} step{'s' * (steps != 1)}"


def _unobserved() -> Verdict:
    return Verdict(
        outcome="succeeded",
        message="Finished with exit code 0. It trained in processes that it forked itself, "
        "which are not observed: steps and loss are unknown (the spawn start method is).",
    )


def _without_steps_of_its_own(first_step: int, *, nothing_left: bool) -> Verdict:
    if nothing_left:
        return Verdict(
            outcome="succeeded",
            message=f"{after_steps(first_step)}: the checkpoint was of the last one.",
        )
    return Verdict(
        outcome="no-steps",
        message=(
            "The script ended with exit code 0, but made no step after it was resumed at step "
            f"{first_step}. It may not know the checkpoint, or have nothing left to do: see its "
            "log. To train on, give it more steps or epochs: workbench resume RUN -- ARGS…"
        ),
    )


def _crashed_at_exit(rank: int, steps: int, number: int) -> Verdict:
    """Every rank's script had ended well; then a process died in its own shut-down.

    Seen with torch 2.13 and gloo in about 1 of 80 runs ("terminate called without an active
    exception" on SIGABRT, after the process group was destroyed). Nothing of the training is lost.
    """
    cause = f"rank {rank} was killed by {signal_name(number)} while its process was shutting down"
    crash = Finding(
        kind="crash-at-exit",
        rank=rank,
        step=steps,
        evidence="every rank's script had ended without an error before",
        cause=cause,
        next="Nothing of the training is lost.",
        confidence=0.9,
        severity="note",
    )
    message = f"{after_steps(steps)}; then {cause}, after the script had ended."
    return Verdict(outcome="succeeded", message=message, finding=crash)


def verdict_of(diagnosis: Finding) -> Verdict:
    """The verdict that a run failed for what `diagnosis` says."""
    text = f"{diagnosis.cause} ({diagnosis.evidence}). {diagnosis.next}"
    return Verdict(outcome="failed", message=text, failed_rank=diagnosis.rank, finding=diagnosis)


def address_was_taken(paths: RunPaths, ranks: int) -> bool:
    """Whether the logs show that the rendezvous port was in use."""
    logs = [paths.launcher_log, *(paths.rank_log(rank) for rank in range(ranks))]
    return any(ADDRESS_IN_USE.search(tail_now(path, 20_000)) for path in logs)

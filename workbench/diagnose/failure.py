"""Why a run failed: the first rank that failed by itself, its own words, and what is known of them.

A lost peer makes every other rank fail too, and the launcher prints a wall of text about all of
them; neither is the cause.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.diagnose import error_table, known_errors, out_of_memory
from workbench.diagnose.hang import stacks
from workbench.errors import UsageError
from workbench.observe.disks import first_shortage
from workbench.observe.rank_count import rank_count
from workbench.store.commands import command_for
from workbench.store.files import read_tail
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.rank_records import RankEnd, RankStart
from workbench.store.record import read_end, read_run, read_start
from workbench.store.run_record import RunRecord

if TYPE_CHECKING:
    from workbench.recover.checkpoints import Checkpoint

Ends = Mapping[int, RankEnd | None]
_SECONDARY = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed? ?out|gloo|ncclremoteerror|"
    r"distbackenderror|distnetworkerror|socket|^process(raised|exited)exception",
    re.IGNORECASE,
)
LEFT = "rank-left"
_EVEN_STEPS = (
    "Give every rank the same number of steps: look for an exit, a return or a break that only "
    "rank {rank} meets, and for less data there (DistributedSampler, drop_last)."
)
_WRAPPED = re.compile(r"(?P<kind>[\w.]+): Caught (?P=kind) in (?P<where>[^\n]*?)\.?(\n|$)")
_ROOT_CAUSE = re.compile(
    r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL | re.IGNORECASE
)
_MARK = re.compile(r"^--- attempt \d+, from step \d+ ---$", re.MULTILINE)
_TAIL_BYTES = 20_000
_SHOWN_LINKS = 4  # exceptions of a chain that are shown
_OF_CHILDREN = re.compile(r"^(exit code|ProcessExitedException|ChildFailedError)")
_EXIT_PLACES = ("the script calls exit", "the error arose that the script exits for")
_DEADLY = {-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """How a rank, or the launcher, failed, before it is put into words."""

    cause: str
    """One clause: ``Rank 1 failed: ValueError: boom``."""
    evidence: str
    """Where or when."""
    rank: int | None = None
    """The rank that failed first; None = the launcher."""
    kind: str = "rank-failed"
    """Kind when no known error tells better."""
    killed: int | None = None
    """The signal that ended it."""
    error: str = ""
    """The exception in its own words, with those it came from."""
    text: str = ""
    """Traceback or log, where known errors are looked for when `error` reports none."""
    place: str | None = None
    """The user's line, ``train.py:31 in main``."""
    ended_at: str = ""
    """What is at `place` where the script left by ``sys.exit``: there is no traceback."""


def root_cause(paths: RunPaths) -> tuple[int, int] | None:
    """Rank and exit code that torch's launcher names as the first failure it observed.

    Each of several machines has a launcher: a rank that was killed is the cause, and those that
    raised because it was gone are not. The launcher of ranks that a script started is the script.
    """
    logs = [paths.launcher_log, *sorted(paths.logs.glob("launcher-node-*.log"))]
    if (read_start(paths, 0) or RankStart()).spawned:  # by a torchrun of its own, it may be
        logs.append(paths.rank_log(0))
    matches = [_ROOT_CAUSE.search(tail_now(log, _TAIL_BYTES)) for log in logs]
    named = [(int(match[1]), int(match[2])) for match in matches if match is not None]
    named += silent_spawned_ranks(paths)
    killed = [pair for pair in named if pair[1] in _DEADLY]
    return next(iter([*killed, *named]), None)


def silent_spawned_ranks(paths: RunPaths) -> list[tuple[int, int]]:
    """Rank and exit code of those that the script started and that left no record of their end.

    mp.spawn ends the others by SIGTERM when one has failed.
    """
    codes = (read_end(paths, 0) or RankEnd()).child_exit_codes
    silent: list[tuple[int, int]] = []
    for rank in range(rank_count(paths, 1)):
        start, end = read_start(paths, rank), read_end(paths, rank)
        process = None if start is None else start.process
        code = None if process is None else codes.get(str(process["pid"]))
        has_record = end is not None and end.spawned
        if code is not None and code != -signal.SIGTERM and not has_record:
            silent.append((rank, code))
    return silent


def is_echo(ends: Ends) -> bool:
    """Whether no rank told of an error of its own: only, if at all, of peers that were gone."""
    error = first_exception(ends)[1]
    return error is None or _SECONDARY.search(error) is not None


def explain(paths: RunPaths, ends: Ends, exit_code: int | None, steps: int) -> Finding:
    """The finding of a failed run."""
    return finding(paths, _failed(paths, ends, exit_code, steps), steps)


def _failed(paths: RunPaths, ends: Ends, exit_code: int | None, steps: int) -> Failed:
    if exit_code is not None and exit_code < 0:
        name, evidence = signal_name(-exit_code), f"launcher exit code {exit_code}"
        cause = f"The launcher was killed by {name}; its remaining ranks were ended"
        return Failed(cause=cause, evidence=evidence, kind="launcher-killed")
    rank, error = first_exception(ends)
    root = root_cause(paths)
    only = _only_rank(paths, steps) if rank is None and len(ends) == 1 and root is None else None
    if only is not None:
        return only
    echo = error is not None and (_SECONDARY.search(error) or _OF_CHILDREN.match(error))
    if root is not None and (rank is None or echo):
        (ended, code), end = root, ends.get(root[0])
        silent = end is None or end.ok  # os._exit(3), raise SystemExit(3)
        if rank is None or silent or code < 0 or _OF_CHILDREN.match(error or ""):
            return _ended_silently(paths, ended, code, steps)
    if rank is not None and error is not None:
        failed = _raised(paths, rank, error, ends[rank] or RankEnd(), steps)
        return _blame_who_left(ends, failed) if _SECONDARY.search(error) else failed
    line = last_line(paths.launcher_log)
    return Failed(
        cause=f"The launcher ended with exit code {exit_code}: {line}",
        evidence="logs/launcher.log",
        kind="launcher-failed",
        text=tail_now(paths.launcher_log, _TAIL_BYTES),
    )


def _blame_who_left(ends: Ends, failed: Failed) -> Failed:
    """The error is the loss of a peer: a rank whose script had ended well before is its cause."""
    left = {rank: end for rank, end in ends.items() if end is not None and end.ok}
    if not left:
        return failed
    rank, first = min(left.items(), key=lambda item: item[1].time)
    named = ", ".join(f"{gone} (step {end.steps})" for gone, end in [*left.items()][:_SHOWN_LINKS])
    return replace(
        failed,
        cause=f"Rank {rank} ended its script after step {first.steps}, with exit code 0, while "
        f"others trained on. {failed.cause}",
        evidence=f"ended before: rank {named}; {failed.evidence}",
        rank=rank,
        kind=LEFT,
        error="",
        text="",
        place=None,
    )


def _raised(paths: RunPaths, rank: int, error: str, end: RankEnd, steps: int) -> Failed:
    error, end = _unwrapped(error, end)
    where = end.where or f"after step {steps}"
    text = end.traceback or ""
    ended_itself = error.startswith("exit code")
    if ended_itself:
        last, text = last_line(paths.rank_log(rank)), tail_now(paths.rank_log(rank), 4000)
        error = f"{error}: {last}"
        if end.exit_code == 2 and steps == 0:  # argparse and click end so
            return Failed(
                cause=f"Rank {rank} refused its arguments: {last}",
                evidence="exit code 2 before the first step",
                rank=rank,
                kind="script-arguments",
                error=last,
            )
    how = "ended itself with" if ended_itself else "failed:"
    cause = f"Rank {rank} {how} {error.splitlines()[0][:300]}{chain_text(end)}"
    return Failed(
        cause=cause,
        evidence=f"{where}{source_line(end)}",
        rank=rank,
        error="\n".join([error, *_links(end)]),
        text=text,
        place=end.where,
        ended_at=_EXIT_PLACES[bool(end.chain[1:])] if ended_itself else "",
    )


def _unwrapped(error: str, end: RankEnd) -> tuple[str, RankEnd]:
    """The exception of a loader's worker or a replica, which torch raises again in its own words.

    >>> error = "KeyError: Caught KeyError in DataLoader worker process 0."
    >>> end = RankEnd(chain=[{"exception": error}, {"exception": "KeyError: 'labels'"}])
    >>> _unwrapped(error, end)[0]
    "KeyError: 'labels' (in DataLoader worker process 0)"
    """
    wrapped = _WRAPPED.match(error)
    if wrapped is None or len(end.chain) < 2:
        return error, end
    inner = str(end.chain[1].get("exception"))
    first, _, more = inner.partition("\n")
    error = "\n".join(filter(None, (f"{first} (in {wrapped['where']})", more)))
    return error, replace(end, chain=[end.chain[0], *end.chain[2:]])


def chain_text(end: RankEnd) -> str:
    """What the exception came from, outermost first: ``, caused by KeyError: 'x'``."""
    parts = [f", {link.partition(chr(10))[0][:200]}" for link in _links(end)]
    if len(parts) > _SHOWN_LINKS:  # the root cause is the last one
        parts = [*parts[: _SHOWN_LINKS - 1], ", …", parts[-1]]
    return "".join(parts)


def _links(end: RankEnd) -> list[str]:
    """The exceptions below the outermost one: ``caused by KeyError: 'x'``."""
    return [f"{link.get('relation') or 'from'} {link.get('exception')}" for link in end.chain[1:]]


def source_line(end: RankEnd) -> str:
    """The line of code that failed: ``: `loss.backward()` ``; "" where it is unknown."""
    source = ((end.frame or {}).get("source") or "").strip()
    return f": `{source}`" if source else ""


def _ended_silently(paths: RunPaths, rank: int, code: int, steps: int) -> Failed:
    """A rank without a last word: killed, or ended by ``os._exit``."""
    text = tail_now(paths.rank_log(rank), _TAIL_BYTES)
    evidence = f"exit code {code} after step {steps}"
    if code < 0:
        cause = f"Rank {rank} was killed by {signal_name(-code)}"
        return Failed(
            cause=cause, evidence=evidence, rank=rank, kind="rank-killed", killed=-code, text=text
        )
    cause = f"Rank {rank} ended with exit code {code}: {last_line(paths.rank_log(rank))}"
    return Failed(cause=cause, evidence=evidence, rank=rank, text=text)


def _only_rank(paths: RunPaths, steps: int) -> Failed | None:
    """One rank and no word from it: Accelerate's simple launcher says how its child ended.

    None: it says nothing of a child, and neither does the child; it failed itself.
    """
    text = tail_now(paths.launcher_log, _TAIL_BYTES)
    killed = re.search(r"died with <Signals\.\w+: (\d+)>", text)
    status = re.search(r"returned non-zero exit status (\d+)", text)
    if killed:
        return _ended_silently(paths, 0, -int(killed[1]), steps)
    how = f"ended with exit code {status[1] if status else 'unknown'}"
    log = tail_now(paths.rank_log(0), _TAIL_BYTES)
    if status is None and not log and text.strip():
        return None
    return Failed(cause=f"Rank 0 {how}", evidence=f"after step {steps}", rank=0, text=log)


def finding(paths: RunPaths, failed: Failed, steps: int) -> Finding:
    """Put a failure into words, with what is known about errors like it."""
    log = f"logs/rank-{failed.rank}.log" if failed.rank is not None else "logs/launcher.log"
    kind, cause, evidence = failed.kind, failed.cause, failed.evidence
    action = _where_to_look(failed, log)
    confidence = 0.9 if failed.rank is not None else 0.6
    entry = None  # of a rank that left the words are those of the ranks that lost it
    if kind != LEFT:
        entry = known_errors.recognise(failed.error or failed.cause, failed.text)
    entry = entry or known_errors.BY_KIND.get(kind)
    no_room = known_errors.BY_KIND["disk-full"]
    if entry is no_room or (entry is None and not failed.error):
        full = first_shortage(paths)  # which may leave a process no last word
        if full:
            entry, evidence = no_room, f"{evidence}; {full}"
    if failed.killed == signal.SIGKILL and out_of_memory.killed_for_memory(paths):
        kind, cause = "killed-for-memory", f"{cause}: the kernel's memory killer"
        peak = out_of_memory.peak_memory(paths)
        evidence = f"{evidence}; the group's count of kills for memory rose{peak}"
        action, confidence = out_of_memory.memory_action(paths, failed.rank), 0.95
    elif entry is not None and (
        failed.killed is None
        or (failed.killed == signal.SIGABRT and entry.kind in known_errors.ABORTS)
    ):
        kind, action = entry.kind, entry.action(failed.error or failed.cause, _again(paths))
        confidence = min(confidence, entry.confidence)
        stack = None
        if failed.killed is not None:
            stack = stacks.crashed(failed.text, stacks.rank_tree(paths, failed.rank or 0))
        evidence += "" if stack is None else f"; Python was at {stack.place}"
        if kind == error_table.OUT_OF_MEMORY:
            action = out_of_memory.memory_action(paths, failed.rank)
            evidence = f"{evidence}{out_of_memory.requested_bytes(f'{failed.error} {failed.text}')}"
    elif failed.killed is not None or kind == "launcher-killed":
        action = _after_signal(paths, failed, log)
    return Finding(
        kind=kind,
        rank=failed.rank,
        step=steps,
        evidence=evidence,
        cause=cause,
        next=action,
        confidence=confidence,
        severity="error",
    )


def _where_to_look(failed: Failed, log: str) -> str:
    if failed.kind == LEFT:
        return _EVEN_STEPS.format(rank=failed.rank)
    if failed.place is None:
        return f"See {log} of the run."
    if failed.ended_at:
        return f"Look at {failed.place}, where {failed.ended_at}; its output is in {log}."
    return f"Look at {failed.place}; the full traceback is in {log}."


def _after_signal(paths: RunPaths, failed: Failed, log: str) -> str:
    """What to do about a process that a signal ended."""
    if failed.killed == signal.SIGBUS:
        return "Shared memory was full: enlarge /dev/shm (docker --shm-size) or lower num_workers."
    if failed.killed in {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}:
        stack = stacks.crashed(failed.text, stacks.rank_tree(paths, failed.rank or 0))
        where = f"Python was at {stack.place}" if stack is not None else "stacks may be in the log"
        return f"Crash in native code: {where}; see the end of {log}. Then {_again(paths)}."
    return (
        "The signal came from a user, a scheduler's time limit or the kernel's out-of-memory "
        f"killer (`dmesg` names the last). To go on, {_again(paths)}."
    )


def _again(paths: RunPaths) -> str:
    """How this run continues: from its newest checkpoint, if it has one."""
    from workbench.recover.checkpoints import list_checkpoints  # noqa: PLC0415  (for this alone)
    from workbench.recover.script_checkpoints import states_of_script  # noqa: PLC0415

    with contextlib.suppress(OSError):
        for checkpoint in list_checkpoints(paths) or states_of_script(paths):
            if checkpoint.usable and checkpoint.step is not None:
                return _from(paths, checkpoint)
    again = command_for(paths.directory, "rerun")
    return f"start it again ({again}); there is no checkpoint to resume from"


def _from(paths: RunPaths, checkpoint: Checkpoint) -> str:
    """How it continues from this checkpoint, where its script says how."""
    from workbench.recover.resuming import how_to_resume  # noqa: PLC0415  (for this alone)

    run = read_run(paths) or RunRecord()
    try:
        how_to_resume(Path(run.script), run.recipe, run.arguments, checkpoint)
    except UsageError as error:
        why = str(error).rstrip(".")
        return f"start it again. It is not resumed from step {checkpoint.step}: {why}"
    command = command_for(paths.directory, "resume")
    return f"resume it from its checkpoint of step {checkpoint.step} ({command})"


def first_exception(ends: Ends) -> tuple[int | None, str | None]:
    """The earliest exception that is not merely the echo of a lost peer, else the earliest one."""
    failed = [
        (end.time, rank, end.problem or "")
        for rank, end in ends.items()
        if end is not None and not end.ok
    ]
    own = [entry for entry in failed if not _SECONDARY.search(entry[2])]
    if not failed:
        return None, None
    _, rank, error = min(own or failed)
    return rank, error


def last_line(log: Any) -> str:
    """What a log ends with."""
    lines = [line for line in tail_now(log, 4000).splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it wrote nothing"


def signal_name(number: int) -> str:
    """``SIGKILL (9)`` for 9."""
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"


def attempt_mark(number: int, first_step: int) -> str:
    """The line that stands in a log before what the attempt `number` writes."""
    return f"--- attempt {number}, from step {first_step} ---"


def tail_now(log: Path, max_bytes: int) -> str:
    """The end of a log, of the present attempt alone: what failed before it is no cause."""
    return _MARK.split(read_tail(log, max_bytes))[-1]

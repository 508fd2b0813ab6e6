"""Asks the ranks of a run for a trace, and waits until all of them have left it.

The first step to trace must lie so far ahead that every rank reads the request before it gets
there. A rank looks twice a second; where the steps were faster than thought, it says so, and the
request is made again, three times as far ahead.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from workbench.compare.profile.analysis import accounts, profiles, read_profile, reasons
from workbench.compare.profile.values import Profile
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.launching.capture.profiling import LATE, MAX_STEPS, VARIABLE
from workbench.launching.run import Run
from workbench.observe.pulse import read_pulse
from workbench.store.commands import command_for
from workbench.store.files import write_text_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own

STEPS = 5
"""Usual number of traced steps."""
_AHEAD_SECONDS = 2.0
FIRST = 6  # of a run that has not begun: the first steps are not like the others
_WARM_STEPS = FIRST - 1
_TRIES = 3
_LOOK_SECONDS = 0.2


def request_text(first: int, steps: int, *, memory: bool = False, shapes: bool = False) -> str:
    """What the ranks read: in ``control/profile``, or in ``WORKBENCH_PROFILE``.

    Raises:
        UsageError: not that many steps, or not from that one on.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise UsageError(
            f"{steps} steps cannot be traced: give 1 to {MAX_STEPS}. {STEPS} is usual; each step "
            "takes about 1 MB per rank."
        )
    if first < 2:
        raise UsageError(
            f"The trace cannot start at step {first}: the profiler warms up in the step before. "
            "Give 2 or later."
        )
    return json.dumps({"from": first, "steps": steps, "memory": memory, "shapes": shapes})


def traced_from_the_start(option: str | None, *, capture: bool = True) -> dict[str, str]:
    """The environment of a run that traces itself; `option` is COUNT or FIRST:COUNT.

    >>> traced_from_the_start("100:5")
    {'WORKBENCH_PROFILE': '{"from": 100, "steps": 5, "memory": false, "shapes": false}'}

    Raises:
        UsageError: it is neither, or the run is not observed.
    """
    if option is None:
        return {}
    if not capture:
        raise UsageError("--profile needs the capture hook. Remove --no-capture.")
    first, _, steps = option.rpartition(":")
    if not steps.isdecimal() or not (first or str(FIRST)).isdecimal():
        raise UsageError(
            f"--profile {option}: give a number of steps (--profile 5), or the first step and a "
            "number (--profile 100:5)."
        )
    return {VARIABLE: request_text(int(first or FIRST), int(steps))}


def ask(
    run: Run, steps: int = 5, *, memory: bool = False, shapes: bool = False, patience: int = 1
) -> Path:
    """Ask a living run to trace its next `steps` steps; returns the folder they will be in.

    `patience` multiplies how far ahead they lie.

    Raises:
        UsageError: the run has not started or has ended, or is not observed.
        StoreError: its directory cannot be written.
    """
    paths = RunPaths(run.directory)
    status = run.status
    if status.state == "queued":
        raise UsageError(
            f"{run.id} waits in the queue: it makes no steps yet. Trace it when it has started, or "
            "launch it with --profile."
        )
    if not status.live:
        show = command_for(run.directory, "profile", "--show")
        hint = f"Show its existing profile: {show}. "
        raise UsageError(
            f"{run.id} has ended: only future steps can be traced. "
            f"{hint if profiles(paths) else ''}Start it again under the profiler: workbench "
            "profile SCRIPT_OR_RECIPE [-- ARGS]"
        )
    if not run.document.get("capture", True):
        raise UsageError(
            f"{run.id} was started with --no-capture and cannot be profiled. Relaunch it without "
            "that option."
        )
    check_own(paths, "profiled")
    first = _first_step(run, paths, patience)
    text = request_text(first, steps, memory=memory, shapes=shapes)
    try:
        write_text_atomic(paths.profile_request, text)
    except OSError as error:
        raise StoreError(f"Cannot request a profile of {run.id}: {error}") from error
    return folder_of(paths, first)


def folder_of(paths: RunPaths, first: int) -> Path:
    """Where the trace that begins with step `first` lies."""
    return paths.profiles / f"step-{first:08d}"


def _first_step(run: Run, paths: RunPaths, patience: int) -> int:
    """The earliest step that is sure to reach all ranks in time."""
    pulses = [read_pulse(paths.rank_pulse(rank)) for rank in range(_ranks(run))]
    done = max((pulse.steps for pulse in pulses if pulse is not None), default=0)
    pace = run.view()["step_seconds_median"]
    if not done or not pace:
        return done + 1 + _WARM_STEPS * patience
    return done + 2 + math.ceil(_AHEAD_SECONDS * patience / pace)


def _ranks(run: Run) -> int:
    return int(run.document.get("processes", 1))


def collect(
    run: Run,
    folder: Path,
    *,
    timeout: float | None = None,
    on_message: Callable[[str], None] = lambda _text: None,
) -> bool:
    """Wait until every rank has answered; False where the request came too late for some rank.

    Raises:
        WorkbenchError: the run ended, or `timeout` seconds went by, before all had answered.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    ranks, ended = set(range(_ranks(run))), False
    while True:
        live = run.status.live
        there = set(accounts(folder))
        why = reasons(folder)
        if ranks <= there | set(why):
            return not any(text.startswith(LATE) for text in why.values())
        if ended:  # looked once more after the end
            missing = ", ".join(map(str, sorted(ranks - there - set(why))))
            raise WorkbenchError(
                f"{run.id} ended ({run.outcome}) before rank {missing} wrote a trace. Use more "
                f"steps, or see: {command_for(run.directory, 'logs')}"
            )
        on_message(f"step {run.view()['steps']}; {len(there)} of {len(ranks)} ranks traced")
        if deadline is not None and time.monotonic() > deadline:
            raise WorkbenchError(
                f"{run.id} has not traced its steps after {timeout:g} s. Wait longer, or check the "
                f"run: {command_for(run.directory, 'show')}"
            )
        ended = not live
        time.sleep(_LOOK_SECONDS)


def profile(
    run: Run,
    steps: int = 5,
    *,
    memory: bool = False,
    shapes: bool = False,
    timeout: float | None = 600.0,
    on_message: Callable[[str], None] = lambda _text: None,
) -> Path:
    """Trace the next `steps` steps of a living run on every rank; returns their folder.

    Raises:
        UsageError: the run has ended, or is not observed.
        WorkbenchError: not all ranks could trace.
    """
    for attempt in range(_TRIES):
        folder = ask(run, steps, memory=memory, shapes=shapes, patience=3**attempt)
        if collect(run, folder, timeout=timeout, on_message=on_message):
            return folder
    raise WorkbenchError(
        f"{run.id} passed the first requested step before it read the request, {_TRIES} times. "
        "Start it under the profiler: workbench profile SCRIPT_OR_RECIPE"
    )


def trace(run: Run, steps: int = 5, *, memory: bool = False) -> Profile:
    """Trace the next steps of a living run, and say where their time went.

    Raises:
        UsageError: the run has ended, or is not observed.
        WorkbenchError: not all ranks could trace.
    """
    folder = profile(run, steps, memory=memory)
    return read_profile(RunPaths(run.directory), folder)

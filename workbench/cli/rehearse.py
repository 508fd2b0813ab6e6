"""``workbench rehearse``: a planned run on a simulated clock, for every face, without training."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

from workbench.cli.describing import with_options
from workbench.cli.live import follow
from workbench.cli.rehearse_values import RehearseOptions, rehearsed
from workbench.cli.tables import print_json
from workbench.cli.terminal import console, errors
from workbench.errors import UsageError, WorkbenchError
from workbench.launching.run import Run
from workbench.rehearsing.player import Player
from workbench.rehearsing.rehearse import Rehearsal, prepare
from workbench.store.commands import command_for
from workbench.store.run_record import REHEARSED
from workbench.units import format_between, format_seconds, format_usd


@with_options
def rehearse(options: RehearseOptions) -> None:
    """Play a planned run on a simulated clock: interruptions, faults and dollars, no training.

    The run directory is a normal one, and says "rehearsal" everywhere. Interruptions are drawn from
    the plan's rates, or come from --trace. Nothing of it counts as a measurement.
    """
    planned = rehearsed(options)
    rehearsal = Rehearsal(
        speed=options.speed,
        seed=options.seed,
        trace=options.trace,
        faults=tuple(options.fault or ()),
        name=options.name,
        driver=True,
    )
    notes = (*([planned.problem] if planned.problem else []), *planned.notes)
    make = partial(prepare, planned.job, planned.cost, rehearsal, store=options.store, notes=notes)
    if options.background and options.as_json:
        raise UsageError("--background prints no JSON. Leave --json out, and look with show.")
    player = _in_background(make) if options.background else make()
    if player is None:
        return
    run = Run(player.journal.paths)
    with _stopped_by_signals(run):
        if options.as_json or options.background or options.speed is None:
            player.play()
        else:
            _watched(run, player)
    if options.background:
        return
    summary = {**run.summary(), **_rehearsed(run.document)}
    if options.as_json:
        print_json(summary)
    else:
        _say(run, summary)


def _watched(run: Run, player: Player) -> None:
    """Play, and show it meanwhile; what cannot be played, as on a full disk, ends both."""
    thread = threading.Thread(target=follow, args=(run, console), name="view", daemon=True)
    thread.start()
    player.play()
    thread.join()


def _in_background(make: Callable[[], Player]) -> Player | None:
    """The player, in a process of its own; None in this one, once it is told what to watch.

    Raises:
        UsageError: the other process refuses the rehearsal.
    """
    reader, writer = os.pipe()
    if os.fork():  # the child is what is watched
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as file:
            answer = json.loads(file.read() or '{"refused": "The rehearsal could not be started."}')
        if "refused" in answer:
            raise UsageError(answer["refused"])
        line = command_for(Path(answer["run"]), "attach")
        errors.print(f"{REHEARSED}; watch it: {line}", markup=False, soft_wrap=True)
        return None
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as file:
        try:
            player = make()
        except WorkbenchError as error:
            json.dump({"refused": str(error)}, file)
            file.flush()
            os._exit(2)
        json.dump({"run": str(player.journal.paths.directory)}, file)
    _detach()
    return player


def _detach() -> None:
    """Go on without the terminal."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


@contextlib.contextmanager
def _stopped_by_signals(run: Run) -> Generator[None]:
    """Ctrl-C and SIGTERM end the rehearsal as `workbench stop` does."""

    def stop(_number: int, _frame: object) -> None:
        (run.directory / "control" / "stop").touch()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _rehearsed(record: dict[str, Any]) -> dict[str, Any]:
    """What only a rehearsal's answer has: what was planned, and what someone should know of it."""
    return {"rehearsal_of": record["rehearsal"], "notes": record.get("warnings") or []}


def _say(run: Run, summary: dict[str, Any]) -> None:
    """The run beside its plan."""
    for note in summary["notes"]:
        errors.print(f"note: {note}", markup=False, soft_wrap=True)
    planned = summary["rehearsal_of"]["planned"]
    seconds = summary["elapsed_seconds"]
    lines = {
        "run": f"{summary['run']} ({summary['outcome']}; {REHEARSED})",
        "hours": f"{format_seconds(seconds)}; planned {_range(planned, 'hours', 3600.0)}",
        "dollars": f"{format_usd(summary['usd_so_far'])}; planned {_range(planned, 'usd')}",
        "restarts": str(summary["restarts"]),
        "read it": f"{command_for(run.directory, 'show')}; {summary['dir']}/report.html",
    }
    for name, text in lines.items():
        console.print(f"{name:<10}{text}", markup=False, soft_wrap=True)
    sys.stdout.flush()


def _range(planned: dict[str, float | None], name: str, factor: float | None = None) -> str:
    usual, low, high = (planned[f"{name}{end}"] for end in ("", "_low", "_high"))
    if factor is None:
        return f"{format_usd(usual)} ({format_usd(low)} to {format_usd(high)})"
    usual, low, high = (None if each is None else factor * each for each in (usual, low, high))
    return f"{format_seconds(usual)} ({format_between(low, high)})"

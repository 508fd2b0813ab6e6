"""``workbench queue``: the runs that wait for devices."""

from __future__ import annotations

import time
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from workbench.cli.completion import run_names
from workbench.cli.describing import with_options
from workbench.cli.help_pages import HelpGroup
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import StoreOption, console
from workbench.launching.prepare.options import PRIORITY
from workbench.observe.devices import Device
from workbench.queueing import Queue
from workbench.queueing.queue import QueuedRun
from workbench.store.commands import command_in
from workbench.store.runs import Store
from workbench.units import format_bytes, format_column, format_seconds, format_usd

queue = typer.Typer(
    cls=HelpGroup,
    add_completion=False,
    rich_markup_mode=None,
    help="List, move, drop and start the runs that wait for devices.",
)
_QueuedArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Id of a run that waits.", autocompletion=run_names),
]
_STATE_SENTENCES = {
    "empty": "Nothing waits. File a run: workbench launch … --queue",
    "serving": "What is next starts when its devices are free.",
    "paused": "The queue is paused. Start it:",
    "waiting": "Runs wait and nothing starts them. Start the queue:",
}


_TO_START = {"paused", "waiting"}


@queue.command("list")
def show(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List devices, who holds them, and waiting runs.

    Nothing is started.
    """
    _show(Queue(store), Store(store).root, as_json=as_json)


@queue.command()
@with_options
def move(
    run: _QueuedArgument,
    position: Annotated[int | None, typer.Argument(min=1, help="New place; 1 = the next.")] = None,
    *,
    priority: Annotated[int | None, PRIORITY] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a run that waits another place or priority."""
    place = Queue(store)
    place.move(run, position, priority=priority)
    _show(place, Store(store).root, as_json=as_json)


@queue.command()
def drop(run: _QueuedArgument, *, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Take a waiting run out of the queue.

    Its record stays: `workbench rerun RUN` starts it. A run that has started is not touched.
    """
    dropped = Queue(store).drop(run)
    if as_json:
        print_json({"run": dropped.id, "outcome": dropped.outcome})
        return
    console.print(f"{dropped.id} no longer waits; its record stays.", markup=False)
    line = command_in(Store(store).root, "rerun", dropped.id)
    console.print(f"  {line}", markup=False, soft_wrap=True)


@queue.command()
def pause(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Start no further run until `queue start`.

    Runs that have started continue.
    """
    place = Queue(store)
    place.pause()
    _show(place, Store(store).root, as_json=as_json)


@queue.command()
def start(*, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Start the queue, after a pause or a reboot.

    Runs start now, or when their devices are free.
    """
    place = Queue(store)
    place.start()
    _show(place, Store(store).root, as_json=as_json)


@queue.command()
@with_options
def slots(
    number: Annotated[
        int | None, typer.Argument(help="Slots of cores [default: one a core].")
    ] = None,
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Divide the cores into slots.

    Slots are the devices of runs on the CPU: --devices 0,1
    """
    place = Queue(store)
    place.set_slots(number)
    _show(place, Store(store).root, as_json=as_json)


def _show(place: Queue, root: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(place.document())
        return
    console.print(_device_table(place.devices()))
    jobs = place.jobs()
    if jobs:
        console.print()
        console.print(_job_table(jobs))
    for job in jobs:
        if job.problem:
            console.print(f"{job.run}: {job.problem}", markup=False, soft_wrap=True)
    more = f" {command_in(root, 'queue', 'start')}" if place.state in _TO_START else ""
    console.print(f"{_STATE_SENTENCES[place.state]}{more}", markup=False, soft_wrap=True)


def _device_table(devices: tuple[Device, ...]) -> Table:
    table = Table("device", "what", "free memory", "held by", box=None, pad_edge=False)
    for _, alike in groupby(
        devices, key=lambda device: device.key if device.kind == "gpu" else device.holders
    ):
        device, *alike_devices = alike
        title = f"slots {device.name}-{alike_devices[-1].name}" if alike_devices else device.title
        holders = ", ".join(holder.text for holder in device.holders)
        free = "n/a" if device.free_bytes is None else format_bytes(device.free_bytes)
        table.add_row(title, escape(device.label), free, escape(holders) or "[green]free[/]")
    return table


def _job_table(jobs: list[QueuedRun]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "run", "priority", "devices", "starts", "takes", "costs"):
        table.add_column(name, no_wrap=name == "run")
    times = format_column(job.predicted_seconds for job in jobs)
    for job, takes in zip(jobs, times, strict=True):
        devices = ",".join(job.devices) or f"any {job.devices_wanted}"
        table.add_row(
            str(job.position),
            escape(job.run),
            str(job.priority),
            devices,
            _start_text(job),
            takes,
            "n/a" if job.predicted_usd is None else format_usd(job.predicted_usd),
        )
    return table


def _start_text(job: QueuedRun) -> str:
    if job.starting:
        return "now"
    if job.predicted_start is None:
        return "n/a"
    left = job.predicted_start - time.time()
    return "next" if left <= 1 else f"in {format_seconds(left)}"

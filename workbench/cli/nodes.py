"""``workbench node`` joins a run over several machines; ``submit`` hands one to Slurm."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import workbench as wb
from workbench.cli.describing import option, with_options
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import (
    DryRunOption,
    ScriptArguments,
    TargetArgument,
    WaitOption,
    console,
    errors,
)
from workbench.cli.waiting import exit_with, stay
from workbench.describe import Cluster
from workbench.describe.option import Group
from workbench.engines import slurm_run
from workbench.engines.refusals import ENGINES
from workbench.engines.slurm import GRACE_SECONDS
from workbench.errors import UsageError
from workbench.launching.lead_node import lead
from workbench.launching.multinode.agent import NodeAgent
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.options import LaunchOptions
from workbench.store.commands import command_for
from workbench.store.layout import RunPaths
from workbench.store.record import read_run

_DIRECTORY_HELP = "Run directory on the shared storage, as mounted on this machine."
_QUEUE_SECONDS = 5.0
_SOMEWHERE = "node-0"  # in run.json, until Slurm has chosen the machines


@with_options
def node(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help=_DIRECTORY_HELP)],
    *,
    rank: Annotated[int, typer.Option(min=0, help="Number of this machine in the run.")],
    address: Annotated[
        str | None, typer.Option(help="Address of node 0, where a scheduler starts node 0 too.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Rendezvous port of node 0.")
    ] = None,
) -> None:
    """Join a multi-node run as one of its machines, until the run ends."""
    paths = RunPaths(directory.expanduser().absolute())
    run = read_run(paths)
    if run is None:
        raise UsageError(
            f"{paths.run} cannot be read. Give the run directory that `workbench launch --nodes` "
            "printed, at the path where this machine mounts the shared storage."
        )
    if rank == 0 and run.engine:
        exit_with(lead(paths, address, port, _say))
        return
    agent = NodeAgent(paths, run, rank, _say)
    agent.join()
    _say(f"node {rank} of {run.run} on {paths.directory}; Ctrl-C ends its ranks")
    try:
        code = agent.work()
    except KeyboardInterrupt:
        _say("left the run; all its processes on this machine have ended")
        code = 130
    raise typer.Exit(code)


def _say(text: str) -> None:
    console.print(time.strftime("%H:%M:%S"), text, markup=False, soft_wrap=True)


@with_options
def submit(  # noqa: PLR0913 - a command's options are its arguments
    script: TargetArgument,
    arguments: ScriptArguments = None,
    *,
    to: Annotated[str, option("Scheduler: slurm.", "--to")] = "slurm",
    gpu: Annotated[
        str | None, option("GPU of the nodes, where this machine has none: h100 …")
    ] = None,
    limits: Annotated[slurm_run.Limits, Group(of=slurm_run.Limits)],
    options: Annotated[LaunchOptions, Group(of=LaunchOptions)],
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a run to Slurm: its directory exists at once, nodes join when allocated."""
    _check_scheduler(to, script)
    if options.address is not None:
        raise UsageError("--address: Slurm chooses the machines. Remove it.")
    if options.queue or options.devices:
        raise UsageError(
            "Slurm has its own queue and gives the GPUs. Remove --queue and --devices."
        )
    grace = options.recovery.grace_seconds
    recovery = replace(options.recovery, grace_seconds=grace or float(GRACE_SECONDS))
    options = replace(
        options,
        address=_SOMEWHERE if options.nodes > 1 else None,
        cluster=Cluster.rented(gpu, options.processes or 8, options.nodes) if gpu else None,
        recovery=recovery,
    )
    checked = build_request(script, arguments or [], options)
    limits = replace(limits, grace_seconds=int(recovery.grace))
    if note := slurm_run.device_note(checked, limits):
        errors.print(f"warning: {note}", markup=False, soft_wrap=True)
    if dry_run:
        _show_script(checked, limits, as_json=as_json)
    else:
        _submit(checked, limits, wait=wait, as_json=as_json)


def _check_scheduler(to: str, script: str) -> None:
    """Refuse all but Slurm, and say what there is for the given one."""
    if to == "slurm":
        return
    script = shlex.quote(script)
    if to in ENGINES:
        instead = f"Write the files for {to}: workbench export {script} --to {to} --out DIR."
    else:
        instead = (
            f"There are no files for {to} either. `workbench export {script} --to torchrun` shows "
            "the command of each machine, to put into a job of your scheduler."
        )
    raise UsageError(f"submit knows slurm, not {to!r}. {instead}")


def _show_script(checked: wb.Request, limits: slurm_run.Limits, *, as_json: bool) -> None:
    text = slurm_run.text_of(checked, limits, checked.planned_directory, sys.executable)
    if as_json:
        print_json({"run": None, "dir": str(checked.planned_directory), "script": text})
    else:
        console.print(text, markup=False, soft_wrap=True)


def _submit(checked: wb.Request, limits: slurm_run.Limits, *, wait: bool, as_json: bool) -> None:
    for warning in checked.warnings:
        errors.print(f"warning: {warning}", markup=False, soft_wrap=True)
    run, job = slurm_run.submit(checked, limits, sys.executable)
    engine: dict[str, Any] = run.document["engine"]
    document: dict[str, Any] = {
        "run": run.id,
        "dir": str(run.directory),
        "command": run.command,
        "config_files": run.config_files,
        "engine": engine,
    }
    if not as_json:
        sentence = f"Slurm job {engine['job_id']}." if job is None else job.sentence
        console.print(f"submitted {run.id} in {run.directory}", markup=False, soft_wrap=True)
        console.print(sentence, markup=False)
        for verb in ("attach", "show", "stop"):
            line = command_for(run.directory, verb)
            console.print(f"  {line}", markup=False, soft_wrap=True)
    if wait:
        _stay(run, quiet=as_json)
        document |= run.summary()
    if as_json:
        print_json(document)
    if wait:
        exit_with(run)


def _stay(run: wb.Run, *, quiet: bool) -> None:
    """First through the queue, then as beside any run."""
    while not (run.directory / "state.json").exists() and run.status.live:
        sentence = slurm_run.settle(run)
        if sentence is not None and not quiet:
            errors.print(sentence, markup=False)
        time.sleep(_QUEUE_SECONDS)
    if run.status.live:
        stay(run, quiet=quiet)

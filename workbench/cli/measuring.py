"""``workbench measure``: what a script trains, from a few of its own steps."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from workbench.cli.describing import with_options
from workbench.cli.progress import interruptible
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import ModuleOption, console
from workbench.describe import Strategy
from workbench.describe.option import Group, Option
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import CONTEXT
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.targets import MODULE
from workbench.measuring.measure import USUAL_TIMEOUT, ProbeError
from workbench.measuring.measure import measure as run_probes
from workbench.store.measurements import Measurement
from workbench.store.runs import Store
from workbench.store.secrets import redact_arguments
from workbench.units import format_bytes, format_seconds


@with_options
def measure(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS...]", help="The script's own arguments."),
    ] = None,
    *,
    module: ModuleOption = False,
    launch: Annotated[LaunchOptions, Group(of=LaunchOptions, only=("cpu", "store"))],
    timeout: Annotated[
        float, Option(help="Time limit of each run in seconds.", above=0)
    ] = USUAL_TIMEOUT,
    as_json: JsonOption = False,
) -> None:
    """Run a script for a few steps, twice; then it is predicted, planned and priced."""
    target = f"{MODULE}{script}" if module else script
    measurement = _measured(target, arguments or [], launch, timeout)
    if as_json:
        print_json(document(measurement))
    else:
        place = launch.store
        root = (place if isinstance(place, Store) else Store(place)).root if place else None
        _print(measurement, script, module=module, root=root)


def _measured(
    target: str, arguments: list[str], launch: LaunchOptions, timeout: float
) -> Measurement:
    """Measure, with a line of progress on stderr; a script that fails shows its own traceback."""
    try:
        with interruptible("nothing was kept") as on_progress:
            return run_probes(
                target,
                arguments,
                cpu=launch.cpu,
                store=launch.store,
                timeout=timeout,
                on_progress=on_progress,
            )
    except ProbeError as error:
        sys.stderr.write(error.log.rstrip() + "\n" if error.log else "")
        raise


def document(measurement: Measurement) -> dict[str, Any]:
    """The JSON form; keys are a contract."""
    workload = measurement.workload
    measured = workload.model.measured
    assert measured is not None
    return {
        "script": measurement.script,
        "arguments": redact_arguments(measurement.arguments),
        "run": measurement.run,
        "batches": list(measured.batches),
        "batch_source": measurement.batch_source or None,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "parameters": workload.model.parameters,
        "micro_batch": workload.micro_batch,
        "accumulate": workload.accumulate,
        "seq_len": workload.seq_len,
        "device": measured.device,
        "parts": _parts(measurement),
        "flops": measured.flops(workload.micro_batch),
        "step_seconds": _seconds(measurement),
        "notes": list(measured.notes),
        "workload": measurement.document()["workload"],
    }


def _parts(measurement: Measurement) -> dict[str, int]:
    """Bytes at the peak of one process as it was measured."""
    estimate = training_memory(measurement.workload, Strategy.parse("single", 1), "cpu")
    return {name: size for name, size in estimate.parts.items() if name != CONTEXT}


def _seconds(measurement: Measurement) -> float | None:
    measured = measurement.workload.model.measured
    if measured is None or measured.seconds is None:
        return None
    return measured.seconds.at(measurement.workload.micro_batch) * measurement.workload.accumulate


def _print(measurement: Measurement, script: str, *, module: bool, root: Path | None) -> None:
    workload = measurement.workload
    measured = workload.model.measured
    assert measured is not None
    console.print(f"measured {measured.source} (run {measurement.run})", style="bold", markup=False)
    console.print(
        f"{workload.model.parameters:,} parameters, {workload.precision}, {workload.optimizer}; "
        f"{workload.micro_batch} samples x {workload.accumulate} per step; "
        f"{measured.flops(workload.micro_batch):.3g} FLOPs per micro-batch",
        markup=False,
    )
    parts = _parts(measurement)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, size in parts.items():
        table.add_row(name, format_bytes(size))
    table.add_row("peak of one process", format_bytes(sum(parts.values())))
    seconds = _seconds(measurement)
    table.add_row("step here", "n/a" if seconds is None else format_seconds(seconds))
    console.print(table)
    if measurement.batch_source:
        console.print(f"batch size changed by {measurement.batch_source}", markup=False)
    for note in measured.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print("predicted from now on, for any layout, batch and GPU:", markup=False)
    for line in commands(measurement, script, module=module, root=root):
        console.print(f"  {line}", markup=False, soft_wrap=True)


def commands(
    measurement: Measurement, script: str, *, module: bool, root: Path | None = None
) -> tuple[str, ...]:
    """What works now, to be typed as it stands."""
    where = ""
    if root is not None:  # estimates look in the usual store alone
        where = f"WORKBENCH_STORE={shlex.quote(str(root))} "
    like = shlex.quote(measurement.script if module else script)
    script_arguments = ["--", *measurement.arguments] if measurement.arguments else []
    launch_words = shlex.join([*(["-m"] if module else []), script, "--dry-run", *script_arguments])
    return (
        f"{where}workbench memory --like {like} --gpu a100 --gpus 8 --strategy fsdp",
        f"{where}workbench plan --like {like} --tokens 1e9",
        f"{where}workbench launch {launch_words}",
    )

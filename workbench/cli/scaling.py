"""``workbench scale``: the same work on several numbers of ranks, and what more would do.

The trials are kept in ``<store>/studies/<id>.json``; ``--resume ID`` (or ``last``) repeats none
that is done. Ctrl-C ends the present run and keeps the others. Exit code 1: no trial was good.

``--json`` prints ``{"study", "target", "device", "cores", "curves": [{"mode", "points": [{"ranks",
"run", "measured", "step_seconds", "low_seconds", "high_seconds", "parts": {"compute",
"communication", "waiting", "data"}, "efficiency", "lost": {…}}]}], "failed": [{"label", "run",
"outcome", "why"}], "notes": […], "rented": [{"gpus", "step_seconds", "low_seconds",
"high_seconds", "efficiency", "measured_ratio"}]}``. A measured point's low and high are the
quartiles of its steps; a predicted one's its range. ``lost`` adds up to 1 - efficiency.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from workbench import describe
from workbench.cli.scaling_view import curve_table, rented_table
from workbench.cli.tables import print_json
from workbench.cli.terminal import CpuOption, JsonOption, StoreOption, console, errors
from workbench.compare.scaling_study import ScalingStudy
from workbench.compare.scaling_study import scale as run_scale
from workbench.compare.studies.rented import rented
from workbench.compare.studies.study import OnProgress
from workbench.compare.studies.study import Progress as StudyProgress
from workbench.errors import UsageError

Target = Annotated[str, typer.Argument(metavar="SCRIPT_OR_RECIPE", help="What to run.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- ARGS...]", help="Arguments of the script; {value} marks the varied one."
    ),
]
Strategy = Annotated[str, typer.Option(help="Strategy of runs with more than one rank.")]
Resume = Annotated[
    str | None, typer.Option(metavar="STUDY", help="Continue that study, or 'last'.")
]
STRATEGY = describe.Strategy.usual(2)
"""Strategy of runs with more than one rank."""
_SIZES = "Numbers of ranks, for example 1,2,4."
_GPU = "Estimate --nodes-to on rented GPUs of this kind, for example h100-sxm."


def scale(  # noqa: PLR0913 - a command's options are its arguments
    target: Target,
    arguments: Arguments = None,
    *,
    sizes: Annotated[str, typer.Option(help=_SIZES)] = "1,2",
    mode: Annotated[str, typer.Option(help="weak, strong or both.")] = "weak",
    steps: Annotated[int, typer.Option(help="Steps of each run; the first are not measured.")] = 30,
    strategy: Strategy = STRATEGY,
    to: Annotated[str, typer.Option(help="Extrapolate to these numbers of ranks.")] = "",
    nodes_to: Annotated[
        str, typer.Option(help="With --gpu: numbers of rented GPUs, for example 8,64.")
    ] = "",
    gpu: Annotated[str | None, typer.Option(help=_GPU)] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Global batch, for strong scaling of a script.")
    ] = None,
    cpu: CpuOption = False,
    resume: Resume = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Scaling study on 1, 2, 4 … ranks: efficiency, losses by cause, extrapolation."""
    if bool(gpu) != bool(nodes_to):
        raise UsageError(
            "--gpu and --nodes-to must be given together, for example --gpu h100-sxm --nodes-to "
            "8,64."
        )
    rent = numbers("--nodes-to", nodes_to)
    with shown() as on_progress:
        study = run_scale(
            target,
            arguments or (),
            sizes=numbers("--sizes", sizes),
            mode=mode,
            steps=steps,
            strategy=strategy,
            to=numbers("--to", to),
            global_batch=global_batch,
            cpu=cpu,
            store=store,
            resume=resume,
            on_progress=on_progress,
        )
    elsewhere = rented(study, arguments or (), gpu, rent) if gpu else ()
    if as_json:
        print_json({**study.document(), "rented": [asdict(one) for one in elsewhere]})
    else:
        _print_scaling(study)
        if elsewhere:
            console.print(rented_table(elsewhere, gpu or ""))
    if not study.curves:
        raise typer.Exit(1)


def _print_scaling(study: ScalingStudy) -> None:
    for curve in study.curves:
        console.print(curve_table(curve, study))
        console.print()
    for result in study.results:
        if not result.good:
            console.print(f"{result.label}: {result.outcome}, {result.problem}", markup=False)
    for note in study.notes:
        console.print(note, markup=False, style="dim")
    console.print(f"study {study.study}", markup=False)


def numbers(option: str, text: str, *, least: int = 1) -> tuple[int, ...]:
    """Whole numbers between commas, rising; nothing for nothing.

    >>> numbers("--sizes", "4,1,2")
    (1, 2, 4)
    """
    try:
        values = sorted({int(one) for one in text.split(",") if one.strip()})
    except ValueError:
        values = [least - 1]
    if values and values[0] < least:
        raise UsageError(
            f"{option} {text!r}: give whole numbers of at least {least}, separated by commas, for "
            "example 1,2,4."
        )
    return tuple(values)


@contextmanager
def shown() -> Generator[OnProgress | None]:
    """A bar on stderr where somebody looks; Ctrl-C becomes a sentence and exit code 1."""
    try:
        if not sys.stderr.isatty():
            yield None
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
        with Progress(*columns, console=errors, transient=True) as bar:
            task = bar.add_task("starting", total=None)

            def on_progress(now: StudyProgress) -> None:
                text = f"{now.label}, step {now.steps}"
                bar.update(task, description=text, completed=now.done, total=now.of)

            yield on_progress
    except KeyboardInterrupt:
        errors.print(
            "Stopped. Finished trials are kept. Continue with --resume last.", markup=False
        )
        raise typer.Exit(1) from None

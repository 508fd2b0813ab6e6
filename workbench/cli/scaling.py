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
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from workbench.cli.describing import with_options
from workbench.cli.scaling_view import curve_table, rented_table
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.terminal import console, errors
from workbench.compare.scaling_study import ScalingStudy, measure
from workbench.compare.studies.bench import LAUNCHED, Bench, OnProgress
from workbench.compare.studies.bench import Progress as StudyProgress
from workbench.compare.studies.rented import rented
from workbench.compare.studies.sizes import Sizes
from workbench.describe.option import Group, Option
from workbench.errors import UsageError
from workbench.launching.prepare.options import LaunchOptions

Target = Annotated[str, typer.Argument(metavar="SCRIPT_OR_RECIPE", help="What to run.")]


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What every study takes: what runs, and the options of its launches."""

    target: Target
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARGS...]", help="Arguments of the script; {value} marks the varied one."
        ),
    ] = None
    launch: Annotated[LaunchOptions, Group(of=LaunchOptions, only=LAUNCHED)]
    resume: Annotated[
        str | None, typer.Option(metavar="STUDY", help="Continue that study, or 'last'.")
    ] = None
    as_json: JsonOption = False

    @contextmanager
    def bench(self) -> Generator[Bench]:
        """Where its trials run; their progress is shown."""
        with _progress_bar() as on_progress:
            yield Bench.of(
                self.target,
                self.arguments or (),
                self.launch,
                resume=self.resume,
                on_progress=on_progress,
            )


@dataclass(frozen=True, kw_only=True)
class Rent:
    """Where else the same work is estimated."""

    gpu: Annotated[
        str | None, Option(help="Estimate --nodes-to on rented GPUs of this kind.", metavar="G")
    ] = None
    nodes_to: Annotated[
        tuple[int, ...],
        Option(
            help="With --gpu: numbers of rented GPUs, for example 8,64.",
            least=1,
            metavar="N,N",
            split="commas",
        ),
    ] = ()

    def __post_init__(self) -> None:
        if bool(self.gpu) != bool(self.nodes_to):
            raise UsageError(
                "--gpu and --nodes-to must be given together, for example --gpu h100-sxm "
                "--nodes-to 8,64."
            )


@with_options
def scale(
    trials: Annotated[Sizes, Group(of=Sizes)],
    rent: Annotated[Rent, Group(of=Rent)],
    options: StudyOptions,
) -> None:
    """Scaling study on 1, 2, 4 … ranks: efficiency, losses by cause, extrapolation."""
    with options.bench() as bench:
        study = measure(bench, trials)
    elsewhere = rented(study, bench, rent.gpu, rent.nodes_to) if rent.gpu else ()
    if options.as_json:
        print_json({**study.document(), "rented": [asdict(point) for point in elsewhere]})
    else:
        _print_scaling(study)
        if elsewhere:
            console.print(rented_table(elsewhere, rent.gpu or ""))
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


@contextmanager
def _progress_bar() -> Generator[OnProgress | None]:
    """A bar on stderr where someone looks; Ctrl-C becomes a sentence and exit code 1."""
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

"""``workbench study``: one number tried at several values, or several compressions, by real runs.

The trials are kept in ``<store>/studies/<id>.json``; ``--resume ID`` (or ``last``) repeats none
that is done. Ctrl-C ends the present run and keeps the others. Exit code 1: no trial was good.

``--json`` prints ``{"study", "kind", "trials": [{"label", "value", "run", "outcome", "problem",
"processes", "step_seconds", "tokens_per_second", "peak_memory_bytes", "loss", "sent_bytes", …}]}``;
batch-size, accumulate and workers add ``"best"``, ``"why"`` and each trial's ``"rate"``,
compression each trial's ``"sent_share"``, ``"step_share"`` and ``"loss_added"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from workbench.cli.describing import with_options
from workbench.cli.help_pages import HelpGroup
from workbench.cli.scaling import StudyOptions, Target
from workbench.cli.scaling_view import compression_table, tuning_table
from workbench.cli.tables import print_json
from workbench.cli.terminal import console
from workbench.compare.studies.compression import Compared
from workbench.compare.studies.compression import compression as run_compression
from workbench.compare.studies.tuning import (
    Accumulate,
    BatchSize,
    Tuning,
    Workers,
    batch_size,
    sweep,
)
from workbench.describe.option import Group

study = typer.Typer(
    cls=HelpGroup,
    add_completion=False,
    rich_markup_mode=None,
    help="Tune one number, or compare compressions.",
)


@dataclass(frozen=True, kw_only=True)
class CompressionOptions(StudyOptions):
    """Of the study that has a usual recipe."""

    target: Target = "gpt"


@study.command("batch-size")
@with_options
def find_batch_size(
    search: Annotated[BatchSize, Group(of=BatchSize)], options: StudyOptions
) -> None:
    """Find the smallest micro-batch that is as fast as any: doubled until memory or gain ends."""
    with options.bench() as bench:
        tuning = batch_size(bench, search)
    _print_tuning(tuning, as_json=options.as_json)


@study.command("accumulate")
@with_options
def tune_accumulation(
    varied: Annotated[Accumulate, Group(of=Accumulate)], options: StudyOptions
) -> None:
    """Measure how the rate changes with gradient accumulation."""
    _sweep(options, varied)


@study.command("workers")
@with_options
def tune_workers(varied: Annotated[Workers, Group(of=Workers)], options: StudyOptions) -> None:
    """Find the number of loader workers: study workers train.py -- --workers {value}."""
    _sweep(options, varied)


def _sweep(options: StudyOptions, varied: Accumulate | Workers) -> None:
    with options.bench() as bench:
        tuning = sweep(bench, varied)
    _print_tuning(tuning, as_json=options.as_json)


def _print_tuning(tuning: Tuning, *, as_json: bool) -> None:
    if as_json:
        print_json(tuning.document())
    else:
        console.print(tuning_table(tuning))
        best = tuning.best if tuning.best is not None else "none"
        console.print(f"{best}: {tuning.why}.", markup=False, soft_wrap=True)
    if tuning.best is None:
        raise typer.Exit(1)


@study.command("compression")
@with_options
def compare_compression(
    compared: Annotated[Compared, Group(of=Compared)], options: CompressionOptions
) -> None:
    """Compare gradient compressions by loss, bytes sent and step time."""
    with options.bench() as bench:
        compression = run_compression(bench, compared)
    if options.as_json:
        print_json(compression.document())
    else:
        console.print(compression_table(compression))
    if not any(result.good for result in compression.results):
        raise typer.Exit(1)

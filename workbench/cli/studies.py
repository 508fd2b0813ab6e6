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

from workbench.cli.describing import option, with_options
from workbench.cli.scaling import STRATEGY, Arguments, Resume, Target, numbers, shown
from workbench.cli.scaling_view import compression_table, tuning_table
from workbench.cli.tables import print_json
from workbench.cli.terminal import CpuOption, JsonOption, StoreOption, console
from workbench.compare.studies.compression import VARIANTS
from workbench.compare.studies.compression import compression as run_compression
from workbench.compare.studies.study import Bench, OnProgress
from workbench.compare.studies.tuning import Tuning, Varied, batch_size, sweep
from workbench.describe.option import words
from workbench.errors import UsageError
from workbench.store.runs import Store

study = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Tune one number, or compare compressions.",
)
Steps = Annotated[int, option("Optimizer steps of each trial.")]
Ranks = Annotated[int, option("Number of ranks of every trial.", "--nproc")]


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What every study is told."""

    target: Target
    arguments: Arguments = None
    steps: Steps = 15
    nproc: Ranks = 1
    cpu: CpuOption = False
    resume: Resume = None
    store: StoreOption = None
    as_json: JsonOption = False

    def bench(self, on_progress: OnProgress | None, memory_limit_bytes: int | None = None) -> Bench:
        """Where the trials run."""
        return Bench(
            target=self.target,
            store=Store(self.store),
            cpu=self.cpu,
            resume=self.resume,
            on_progress=on_progress,
            memory_limit_bytes=memory_limit_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class TuningOptions(StudyOptions):
    """The search for the best value of one number."""

    strategy: Annotated[str, option("Strategy of trials with more than one rank.")] = STRATEGY

    def varied(self, kind: str) -> Varied:
        """What a trial is, but for the number."""
        return Varied(
            kind=kind,
            arguments=tuple(self.arguments or ()),
            processes=self.nproc,
            strategy=self.strategy,
            steps=self.steps,
        )


@dataclass(frozen=True, kw_only=True)
class BatchSizeOptions(TuningOptions):
    """The batch-size finder."""

    start: Annotated[int, option("First micro-batch; doubled after each trial.")] = 1
    most: Annotated[int, option("Largest micro-batch to try.")] = 65_536
    memory_limit: Annotated[
        float | None,
        option("Memory limit of a rank [default on CPU: 80 % of the host / ranks].", metavar="GIB"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AccumulateOptions(TuningOptions):
    """Micro-batches per step."""

    values: Annotated[str, option("Micro-batches per step.")] = "1,2,4,8"
    steps: Steps = 12
    nproc: Ranks = 2


@dataclass(frozen=True, kw_only=True)
class WorkersOptions(TuningOptions):
    """Loader workers."""

    values: Annotated[str, option("Loader workers of each rank.")] = "0,1,2,4"
    steps: Steps = 20


@dataclass(frozen=True, kw_only=True)
class CompressionOptions(StudyOptions):
    """Gradient compression and precision."""

    target: Target = "gpt"
    variants: Annotated[str, option(f"Variants to compare, of {', '.join(VARIANTS)}.")] = ",".join(
        VARIANTS
    )
    steps: Steps = 60
    nproc: Ranks = 2


@study.command("batch-size")
@with_options
def find_batch_size(options: BatchSizeOptions) -> None:
    """Find the smallest micro-batch that is as fast as any: doubled until memory or gain ends."""
    limit = options.memory_limit
    if options.start < 1 or options.most < options.start or (limit is not None and not limit > 0):
        raise UsageError(
            "--start, --most and --memory-limit must be above 0, and --most >= --start."
        )
    with shown() as on_progress:
        bench = options.bench(on_progress, None if limit is None else int(limit * 2**30))
        tuning = batch_size(
            bench, options.varied("batch-size"), start=options.start, most=options.most
        )
    _print_tuning(tuning, as_json=options.as_json)


@study.command("accumulate")
@with_options
def tune_accumulation(options: AccumulateOptions) -> None:
    """Measure how the rate changes with gradient accumulation."""
    _sweep(options, "accumulate", numbers("--values", options.values))


@study.command("workers")
@with_options
def tune_workers(options: WorkersOptions) -> None:
    """Find the number of loader workers: study workers train.py -- --workers {value}."""
    _sweep(options, "workers", numbers("--values", options.values, least=0))


def _sweep(options: TuningOptions, kind: str, values: tuple[int, ...]) -> None:
    with shown() as on_progress:
        tuning = sweep(options.bench(on_progress), options.varied(kind), values)
    _print_tuning(tuning, as_json=options.as_json)


def _print_tuning(tuning: Tuning, *, as_json: bool) -> None:
    if as_json:
        print_json(tuning.document())
    else:
        console.print(tuning_table(tuning))
        console.print(f"{tuning.best if tuning.best is not None else 'none'}: {tuning.why}.")
    if tuning.best is None:
        raise typer.Exit(1)


@study.command("compression")
@with_options
def compare_compression(options: CompressionOptions) -> None:
    """Compare gradient compressions by loss, bytes sent and step time."""
    with shown() as on_progress:
        compression = run_compression(
            options.bench(on_progress),
            options.arguments or (),
            processes=options.nproc,
            steps=options.steps,
            variants=list(words(options.variants)),
        )
    if options.as_json:
        print_json(compression.document())
    else:
        console.print(compression_table(compression))
    if not any(one.good for one in compression.results):
        raise typer.Exit(1)

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
class StudyAsked:
    """What every study is told."""

    target: Target
    arguments: Arguments = None
    steps: Steps = 15
    nproc: Ranks = 1
    cpu: CpuOption = False
    resume: Resume = None
    store: StoreOption = None
    as_json: JsonOption = False

    def bench(self, told: OnProgress | None, memory_limit_bytes: int | None = None) -> Bench:
        """Where the trials run."""
        return Bench(
            target=self.target,
            store=Store(self.store),
            cpu=self.cpu,
            resume=self.resume,
            on_progress=told,
            memory_limit_bytes=memory_limit_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class TuningAsked(StudyAsked):
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
class BatchSizeAsked(TuningAsked):
    """The batch-size finder."""

    start: Annotated[int, option("First micro-batch; doubled after each trial.")] = 1
    most: Annotated[int, option("Largest micro-batch to try.")] = 65_536
    memory_limit: Annotated[
        float | None,
        option("Memory limit of a rank [default on CPU: 80 % of the host / ranks].", metavar="GIB"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AccumulateAsked(TuningAsked):
    """Micro-batches per step."""

    values: Annotated[str, option("Micro-batches per step.")] = "1,2,4,8"
    steps: Steps = 12
    nproc: Ranks = 2


@dataclass(frozen=True, kw_only=True)
class WorkersAsked(TuningAsked):
    """Loader workers."""

    values: Annotated[str, option("Loader workers of each rank.")] = "0,1,2,4"
    steps: Steps = 20


@dataclass(frozen=True, kw_only=True)
class CompressionAsked(StudyAsked):
    """Gradient compression and precision."""

    target: Target = "gpt"
    variants: Annotated[str, option(f"Variants to compare, of {', '.join(VARIANTS)}.")] = ",".join(
        VARIANTS
    )
    steps: Steps = 60
    nproc: Ranks = 2


@study.command("batch-size")
@with_options
def find_batch_size(asked: BatchSizeAsked) -> None:
    """Find the smallest micro-batch that is as fast as any: doubled until memory or gain ends."""
    limit = asked.memory_limit
    if asked.start < 1 or asked.most < asked.start or (limit is not None and not limit > 0):
        raise UsageError(
            "--start, --most and --memory-limit must be above 0, and --most >= --start."
        )
    with shown() as told:
        bench = asked.bench(told, None if limit is None else int(limit * 2**30))
        found = batch_size(bench, asked.varied("batch-size"), start=asked.start, most=asked.most)
    _print_tuning(found, as_json=asked.as_json)


@study.command("accumulate")
@with_options
def tune_accumulation(asked: AccumulateAsked) -> None:
    """Measure how the rate changes with gradient accumulation."""
    _sweep(asked, "accumulate", numbers("--values", asked.values))


@study.command("workers")
@with_options
def tune_workers(asked: WorkersAsked) -> None:
    """Find the number of loader workers: study workers train.py -- --workers {value}."""
    _sweep(asked, "workers", numbers("--values", asked.values, least=0))


def _sweep(asked: TuningAsked, kind: str, values: tuple[int, ...]) -> None:
    with shown() as told:
        found = sweep(asked.bench(told), asked.varied(kind), values)
    _print_tuning(found, as_json=asked.as_json)


def _print_tuning(found: Tuning, *, as_json: bool) -> None:
    if as_json:
        print_json(found.document())
    else:
        console.print(tuning_table(found))
        console.print(f"{found.best if found.best is not None else 'none'}: {found.why}.")
    if found.best is None:
        raise typer.Exit(1)


@study.command("compression")
@with_options
def compare_compression(asked: CompressionAsked) -> None:
    """Compare gradient compressions by loss, bytes sent and step time."""
    with shown() as told:
        found = run_compression(
            asked.bench(told),
            asked.arguments or (),
            processes=asked.nproc,
            steps=asked.steps,
            variants=list(words(asked.variants)),
        )
    if asked.as_json:
        print_json(found.document())
    else:
        console.print(compression_table(found))
    if not any(one.good for one in found.results):
        raise typer.Exit(1)

"""``workbench advise``: every rule of thumb that a job answers, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from rich.console import Group as Lines
from rich.padding import Padding
from rich.text import Text

from workbench.cli.describing import TOKENS, Description, describe, option, with_options
from workbench.cli.memory import plain_console, show
from workbench.cli.quantities import read_count
from workbench.cli.tables import print_json
from workbench.compare.calibration.calibrate import measured_conditions
from workbench.describe import Cluster
from workbench.describe.detection import detect_host
from workbench.describe.job import Job
from workbench.describe.option import Option, declared
from workbench.describe.placement import machine_note
from workbench.estimate.memory import training_memory
from workbench.estimate.stack_factor import sentences_of
from workbench.estimate.step_time import step_time
from workbench.planning.advice import Advice, RunFacts, advise, known_offer
from workbench.store.printable import printable

USUAL_GPU = "h100"
_MARKS = {True: ("✓", "green"), False: ("!", "yellow"), None: ("·", "dim")}

_FACTS = declared(RunFacts)


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(Description):
    """The options of ``workbench advise``."""

    tokens: Annotated[str | None, TOKENS] = None
    deadline_hours: Annotated[float | None, _FACTS["deadline_hours"].option] = None
    loss: Annotated[float | None, _FACTS["loss"].option] = None
    lr: Annotated[
        float | None, Option(help="A learning rate that works with --lr-batch.", above=0)
    ] = None
    lr_batch: Annotated[
        str | None, option("Global batch in tokens that --lr is for [default: this job's].")
    ] = None
    checkpoint_seconds: Annotated[float | None, _FACTS["checkpoint_seconds"].option] = None
    interruption_hours: Annotated[float | None, _FACTS["interruption_hours"].option] = None


@with_options
def advise_command(options: AdviseOptions) -> None:
    """Check a job against rules of thumb: GPUs, batch, learning rate, links, machine."""
    job, note = _job(options)
    advice = answer(options, job)
    if options.as_json:
        print_json([rule.document() for rule in advice])
        return
    for sentence in (note, *machine_note(job.cluster), *_calibration_notes(job)):
        if sentence:
            typer.echo(printable(f"note: {sentence}", max_line=None), err=True)
    show(plain_console(), Lines(*(_paragraph(rule) for rule in advice)))


def answer(options: AdviseOptions, job: Job) -> tuple[Advice, ...]:
    """The rules' answers on the job.

    Raises:
        UsageError: a count is impossible, or the GPU is not in the catalog.
    """
    cluster = job.cluster
    has_cluster = isinstance(cluster, Cluster)
    facts = RunFacts(
        tokens=None if options.tokens is None else read_count(options.tokens),
        deadline_hours=options.deadline_hours,
        loss=options.loss,
        rate=options.lr,
        rate_batch_tokens=None
        if options.lr_batch is None
        else read_count(options.lr_batch, "--lr-batch"),
        checkpoint_seconds=options.checkpoint_seconds,
        interruption_hours=options.interruption_hours,
        offer=known_offer(cluster) if has_cluster else None,
        conditions=measured_conditions(cluster) if has_cluster else None,
    )
    return advise(job, facts)


def _job(options: AdviseOptions) -> tuple[Job, str]:
    """The job; without --gpu on this host's GPU, or on the usual one, and a note that says so."""
    job = describe(options)
    if job.cluster != "cuda":
        return job, ""
    gpu = detect_host().accelerator
    name = gpu.id if gpu else USUAL_GPU
    with_gpu = replace(options, job={**options.job, "gpu": name})
    return describe(with_gpu), f"no --gpu was given: {name} is assumed."


def _calibration_notes(job: Job) -> tuple[str, ...]:
    """What measured runs of the stack change in the job's estimates."""
    if job.workload.calibration is None:
        return ()
    memory = training_memory(job).assumptions
    has_gpu = isinstance(job.cluster, Cluster) and job.cluster.accelerator is not None
    return sentences_of(step_time(job).assumptions if has_gpu else (), memory)


def _paragraph(advice: Advice) -> Any:
    mark, color = _MARKS[advice.holds]
    head = Text.assemble((f"{mark} ", color), (advice.rule, "bold"), "  ", advice.verdict)
    lines = [Text(advice.reason, "dim")]
    if advice.next:
        lines.append(Text(f"Next: {advice.next}"))
    return Lines(head, *(Padding(line, (0, 0, 0, 2)) for line in lines))

"""`rehearse`: claims a run directory and plays a plan's bill into it."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from workbench.describe.hardware import Cluster
from workbench.describe.job import Job
from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.estimate.cost.hours import COARSEST_SECONDS
from workbench.estimate.cost.run_cost import RunCost
from workbench.estimate.cost.spot import UNKNOWN_HOURS
from workbench.estimate.cost.terms import paid_gb
from workbench.estimate.memory import training_memory
from workbench.rehearsing.bill import Bill
from workbench.rehearsing.cards import Cards, Machine, SimulatedDriver, why_no_driver
from workbench.rehearsing.interruptions import ECC, Rates, drawn, read_fault, read_trace, traced
from workbench.rehearsing.journal import Journal
from workbench.rehearsing.metric_files import Curve, MetricFiles
from workbench.rehearsing.player import Player
from workbench.rehearsing.schedule import Schedule, Work, schedule
from workbench.rehearsing.watching import Watcher
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.run_record import REHEARSED, RehearsalDoc, RunRecord
from workbench.store.runs import Store
from workbench.store.schema import SCHEMA_VERSION
from workbench.units import format_seconds
from workbench.version import __version__

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """How a plan is played."""

    speed: Annotated[
        float | None,
        Option(help="Seconds of the run per second [default: as fast as it computes].", above=0),
    ] = None
    """Seconds of the run per second; None = as fast as it computes."""
    seed: int = 0
    """Of everything that is drawn; the same seed gives the same run."""
    trace: Path | None = None
    """Interruptions from this file instead of the plan's rates."""
    faults: tuple[str, ...] = ()
    """Asked for beside them: ``throttle@2h:1:5``, see `interruptions.read_fault`."""
    name: str = "rehearsal"
    """Of the run."""
    driver: bool = False
    """Read the first machine's GPUs through the simulated driver, which this process then has."""

    def __post_init__(self) -> None:
        check_declared(self)

    def schedule(self, cost: RunCost) -> Schedule:
        """All that will happen.

        Raises:
            UsageError: a fault or the trace cannot be read.
        """
        work, chance = Work.of(cost), random.Random(self.seed)  # noqa: S311
        each = work.gpus // work.nodes
        faults = [read_fault(text, work.nodes, each) for text in self.faults]
        if self.trace is not None:
            events = traced(read_trace(self.trace), work.gpus, chance)
        else:
            events = drawn(Rates.of(cost.job), work.gpus, chance)
        return schedule(work, events, faults)


def rehearse(
    job: Job,
    cost: RunCost,
    how: Rehearsal | None = None,
    *,
    store: str | Store | None = None,
    notes: Sequence[str] = (),
) -> RunPaths:
    """Play the planned run of `cost` into a new run directory; returns when it has ended.

    Args:
        job: What is trained, how and where.
        cost: Its bill, with the machines, prices, rates and times of the plan.
        how: Speed, seed, interruptions.
        store: Store of the run; None = the default one.
        notes: What someone should know of the plan.

    Raises:
        UsageError: the job has no GPUs, or a fault or the trace cannot be read.
        StoreError: the store cannot be written.
        HostError: the driver was asked for and cannot be put in place.
    """
    player = prepare(job, cost, how or Rehearsal(), store=store, notes=notes)
    player.play()
    return player.journal.paths


def prepare(
    job: Job,
    cost: RunCost,
    how: Rehearsal,
    *,
    store: str | Store | None = None,
    notes: Sequence[str] = (),
) -> Player:
    """The run directory, and what plays into it. See `rehearse`."""
    cluster = job.cluster
    if not isinstance(cluster, Cluster) or cluster.accelerator is None:
        raise UsageError("A rehearsal needs GPUs of the catalog. Add --gpu G and --gpus N.")
    plan = how.schedule(cost)
    memory = training_memory(job)
    machine = Machine(
        gpu=cluster.accelerator.id,
        count=len(cluster.gpus),
        used_bytes=round(min(memory.on_card_bytes, 0.97 * cluster.accelerator.memory_bytes)),
    )
    refused = why_no_driver(machine) if how.driver else ""
    if refused and any(text.startswith(ECC) for text in how.faults):
        raise UsageError(f"--fault {ECC} is told by a driver. {refused}")
    cards, bill = Cards(machine, plan), Bill.of(cost)
    place = store if isinstance(store, Store) else Store(store)
    paths = place.create(how.name)
    warnings = (*notes, *([refused] if refused else []), *_unreached(how, plan))
    record = _record(paths, job, cost, how, plan, bill, drives=how.driver and not refused)
    record = RunRecord.of({**record, "warnings": list(warnings)})
    paths.nodes.mkdir(mode=0o700, exist_ok=True)
    write_json_atomic(paths.run, record.document(), indent=2)
    journal = Journal(paths=paths, run=record)
    driver = None
    if how.driver and not refused:
        idle = cards.pod(0, {}, 0.0)
        driver = SimulatedDriver(paths.config / "pod", record.cluster, idle)
    curve = Curve(
        parameters=job.workload.model.parameters,
        tokens_per_step=cost.step.tokens,
        vocabulary=job.workload.model.vocab,
    )
    metrics = MetricFiles(
        paths=paths,
        ranks=record.processes,
        curve=curve,
        chance=random.Random(how.seed + 1),  # noqa: S311
        began=record.created_at,
    )
    journal.state("starting", 1)
    watcher = Watcher(journal, cards, driver)
    return Player(
        plan=plan,
        bill=bill,
        cards=cards,
        journal=journal,
        metrics=metrics,
        watcher=watcher,
        speed=how.speed,
    )


def _unreached(how: Rehearsal, plan: Schedule) -> list[str]:
    """The faults that were asked for and do not happen."""
    nodes, each = plan.work.nodes, plan.work.gpus // plan.work.nodes
    late = [text for text in how.faults if read_fault(text, nodes, each).at >= plan.end]
    end = format_seconds(plan.end)
    return [f"--fault {text} does not happen: the run ends after {end}." for text in late]


def _record(
    paths: RunPaths,
    job: Job,
    cost: RunCost,
    how: Rehearsal,
    plan: Schedule,
    bill: Bill,
    *,
    drives: bool,
) -> dict[str, Any]:
    """run.json, field by field. It predicts nothing: what was planned stands in ``rehearsal``."""
    return {
        "schema": SCHEMA_VERSION,
        "run": paths.directory.name,
        "name": how.name,
        "marker": secrets.token_hex(16),
        "created_at": time.time(),
        "workbench_version": __version__,
        "script": f"({REHEARSED})",
        "arguments": [],
        "command": [],
        "environment": {},
        "working_directory": "",
        "strategy": job.strategy.options(),
        "strategy_name": job.strategy.name,
        "processes": plan.work.gpus,
        "nodes": plan.work.nodes,
        "device": "cuda",
        "cluster": asdict(job.cluster) if isinstance(job.cluster, Cluster) else {},
        "workload": asdict(job.workload),
        "capture": True,
        "steps_total": plan.work.steps,
        "tokens_per_step": cost.step.tokens,
        "usd_per_hour": cost.idle_usd_per_hour,
        "rehearsal": _document(cost, how, plan, bill, drives=drives),
    }


def _document(
    cost: RunCost, how: Rehearsal, plan: Schedule, bill: Bill, *, drives: bool
) -> RehearsalDoc:
    work, job = plan.work, cost.job
    stored = paid_gb(job, spot=cost.spot)
    lost_low, lost_high = cost.lost_range()
    rate = job.terms.storage_usd_per_gb_month
    storage = 0.0 if not stored else None if rate is None else stored * rate
    return {
        "seed": how.seed,
        "speed": how.speed,
        "trace": None if how.trace is None else str(how.trace),
        "faults": list(how.faults),
        "driver": drives,
        "provider": job.offer.provider,
        "spot": cost.spot,
        "usd_per_machine_hour": bill.usd_per_machine_hour,
        "billing_seconds": job.terms.billing_seconds or COARSEST_SECONDS,
        "minimum_seconds": job.terms.minimum_seconds or 0.0,
        "idle_seconds": job.plan.idle_hours * HOUR,
        "storage_usd_per_hour": None if storage is None else storage / job.plan.hours_per_month,
        "once_usd": bill.after_usd,
        "step_seconds": work.step_seconds,
        "seconds_per_step": work.seconds_per_step,
        "saving_seconds": work.saving_seconds,
        "interval_steps": work.interval_steps,
        "start_seconds": work.start_seconds,
        "restart_seconds": work.restart_seconds,
        "machine_hours": (job.interruption_hours or UNKNOWN_HOURS[1]) if cost.spot else None,
        "planned": {
            "hours": cost.wall_hours,
            "hours_low": cost.low.wall_hours,
            "hours_high": cost.high.wall_hours,
            "usd": cost.usd,
            "usd_low": cost.low.usd,
            "usd_high": cost.high.usd,
            "lost_hours": cost.hours.lost,
            "lost_hours_low": lost_low,
            "lost_hours_high": lost_high,
        },
    }

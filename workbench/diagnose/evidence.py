"""`Evidence`: what all rules look at. Bounded windows of a run's numbers, and a few that stay."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

from workbench.describe.hardware import card_name, with_parts
from workbench.diagnose.devices import STALE_SECONDS, Device, Devices
from workbench.diagnose.facts import Facts
from workbench.diagnose.host_readings import HostReading, HostReadings
from workbench.diagnose.memory_curve import MemoryCurve
from workbench.observe.arrival_window import ArrivalWindow
from workbench.observe.events import StepRow
from workbench.observe.rewinds import Rewind
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.rank_records import RankStart
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.schema import SystemLine

WARM_UP = 5  # steps of an attempt that no rule of speed looks at: compiling, first batches, caches
_ROWS = 256
_WINDOWS = 48
_LOSSES = 2000
_SAMPLES = 900
_EARLY = 64
_PAUSE_SECONDS, _PAUSE_STEPS = 10.0, 3.0  # without a step: so long, and so many usual steps
_IDLE_GPU_PERCENT = 3.0
_IDLE_CPU_PERCENT = 5.0  # of one core
_MOST_RUNS = 200  # looked at for a run of a single rank
_LEAST_STEPS = 20
_ALIKE = 1e-6  # of the loss: what ranks that train on the same batch differ by at most
_MARKED = 16
FORGIVEN_STEPS = 20
"""Finite losses in a row after which one that was no number lies behind."""


@dataclass(frozen=True, slots=True)
class NonFinite:
    """The first loss that was no number."""

    step: int
    ranks: tuple[int, ...]  # those whose own loss it was; () where ranks are not told apart
    value: float
    before: float | None  # the last finite mean loss


@dataclass(slots=True)
class SameData:
    """Compares the ranks' batches in the steps whose data have a fingerprint."""

    steps: list[int] = field(default_factory=list[int])
    """Steps in which all ranks had the same batch and the same loss; [] once they had not."""
    differ: bool = False
    """Whether they had different ones in any step."""
    _marks: set[int] = field(default_factory=set[int])

    def take(self, row: StepRow, processes: int) -> None:
        """Account for one step."""
        marks = row.fingerprints
        if self.differ or processes < 2 or len(marks) < processes:
            return
        losses = row.losses.values()
        alike = len(set(marks.values())) == 1 and len(row.losses) == processes
        if not alike or max(losses) - min(losses) > _ALIKE * abs(max(losses, key=abs)):
            self.steps, self.differ = [], True
        elif next(iter(marks.values())) not in self._marks and len(self.steps) < _MARKED:
            self._marks.add(next(iter(marks.values())))
            self.steps.append(row.step)


@dataclass(slots=True)
class Evidence:
    """A run as the rules see it. Rules read; `take` and `sample` write."""

    paths: RunPaths
    run: RunRecord
    facts: Facts
    rows: deque[StepRow] = field(default_factory=lambda: deque[StepRow](maxlen=_ROWS))
    """The latest steps of this attempt, warm-up left out."""
    samples: deque[SystemLine] = field(default_factory=lambda: deque[SystemLine](maxlen=_SAMPLES))
    """Of the machine where the run was started."""
    devices: Devices = field(default_factory=Devices)
    """The GPUs of all machines."""
    hosts: HostReadings = field(default_factory=HostReadings)
    """Memory, disk and load of all machines."""
    host_memory: dict[int, MemoryCurve] = field(default_factory=dict[int, MemoryCurve])
    """Of each rank's process in this attempt, what it wrote itself."""
    gpu_memory: dict[int, MemoryCurve] = field(default_factory=dict[int, MemoryCurve])
    """Of each rank in this attempt, the peak so far of what it allocated."""
    losses: deque[float] = field(default_factory=lambda: deque[float](maxlen=_LOSSES))
    """Finite mean losses of the latest steps, warm-up included."""
    loss_steps: deque[int] = field(default_factory=lambda: deque[int](maxlen=_LOSSES))
    """The step of each of them."""
    first_losses: list[float] = field(default_factory=list[float])
    """The run's first ten finite losses."""
    best_loss: float | None = None
    """The lowest median of twenty consecutive losses."""
    early_seconds: list[float] = field(default_factory=list[float])
    """Durations of this attempt's first steps after its warm-up."""
    steps: int = 0
    """The furthest step."""
    steps_seen: int = 0
    """Steps of this attempt."""
    first_nonfinite: NonFinite | None = None
    finite_since: int = 0
    """Finite losses in a row since."""
    nonfinite_steps: int = 0
    """Losses in a row, up to the latest, that were no number."""
    bad_norms: int = 0
    """Gradient norms in a row that were no number."""
    row_at: float | None = None
    """time.monotonic() at which the latest step was read."""
    flowing_since: float | None = None
    """Unix seconds since which one step follows the other; None before a step."""
    last_step_at: float | None = None
    """Unix seconds at which the latest step ended."""
    single_rank_seconds: float | None = None
    """What a single rank takes for a step of the same micro-batch, from another run."""
    starts: Mapping[int, RankStart] = field(default_factory=dict[int, RankStart])
    """What each rank told of itself at its start and since: versions, samplers, group size."""
    group_waits: Mapping[int, Sequence[float]] = field(default_factory=dict[int, Sequence[float]])
    """Rank -> since when (Unix seconds) processes that it started wait to form a group."""
    arrivals: deque[ArrivalWindow] = field(
        default_factory=lambda: deque[ArrivalWindow](maxlen=_WINDOWS)
    )
    """Who waited for whom in the latest steps of this attempt; empty where nothing tells."""
    rewinds: Sequence[Rewind] = ()
    """Where the script went back to a checkpoint of its own within an attempt."""
    same_data: SameData = field(default_factory=SameData)
    """Whether all ranks read the same batches."""
    outcome: str | None = None
    """How the run ended; None while it runs."""
    idle_since: float | None = None
    sampled_at: float | None = None
    busy_nodes: dict[int, float] = field(default_factory=dict[int, float])
    """Machine -> when it told that it computes, for those whose latest word that is."""
    standing: set[tuple[str, int | None]] = field(default_factory=set[tuple[str, int | None]])
    """Keys of the findings that stand: they clear at a lower bound than they are raised at."""

    def take(self, rows: Iterable[StepRow]) -> None:
        """Account for finished steps, in order."""
        for row in rows:
            if row.step <= self.steps:
                self._rewind(row.step)
            self.steps = row.step
            self.steps_seen += 1
            self.row_at = max(row.seen_at, self.row_at or 0.0)
            if self.is_pause(row.time):
                self.flowing_since = row.time
            self.last_step_at = row.time
            self._loss(row)
            self.same_data.take(row, self.processes)
            self.bad_norms = self.bad_norms + 1 if _bad(row.grad_norm) else 0
            if self.steps_seen > WARM_UP:
                self.rows.append(row)
                if row.step_seconds and len(self.early_seconds) < _EARLY:
                    self.early_seconds.append(row.step_seconds)
                for rank, value in row.memory_bytes.items() if self.run.device == "cuda" else ():
                    curve = self.gpu_memory.setdefault(rank, MemoryCurve())
                    curve.add(row.step, row.time, value)

    def sample(self, line: SystemLine, at: float, node: int = 0) -> None:
        """Account for a hardware sample of a machine; `at` is on a clock that does not jump."""
        if not self.devices.take(node, line, at):
            return
        self.hosts.take(node, line, at)
        if node == 0:
            self.samples.append(line)
            self.sampled_at = at
        self.busy_nodes.pop(node, None)
        if _works(self.run, line) is not False:  # unknown is not idle
            self.busy_nodes[node] = at
        if any(at - heard_at <= STALE_SECONDS for heard_at in self.busy_nodes.values()):
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = at

    def look_at_ranks(self) -> None:
        """Account for what the facts tell of each rank's memory now."""
        if self.steps_seen <= WARM_UP:
            return
        for rank, facts in self.facts.ranks.items():
            if facts.own_bytes is not None and facts.alive and not facts.ended:
                curve = self.host_memory.setdefault(rank, MemoryCurve())
                steps = self.steps if facts.pulse is None else facts.pulse.steps
                curve.add(steps, self.facts.monotonic, facts.own_bytes)

    @property
    def idle_seconds(self) -> float | None:
        """How long nothing has been computed; None while something is, or if it is unknown."""
        if self.idle_since is None or self.sampled_at is None:
            return None
        return self.sampled_at - self.idle_since

    def new_attempt(self) -> None:
        """The launcher was started again: its speed is measured again, warm-up and all."""
        self.rows.clear()
        self.arrivals.clear()
        self.early_seconds.clear()
        self.host_memory.clear()
        self.gpu_memory.clear()
        self.steps_seen, self.row_at, self.bad_norms, self.nonfinite_steps = 0, None, 0, 0
        self.first_nonfinite = None

    def _rewind(self, step: int) -> None:
        """A resumed run repeats steps: what came after the checkpoint is forgotten."""
        while self.rows and self.rows[-1].step >= step:
            self.rows.pop()
        while self.loss_steps and self.loss_steps[-1] >= step:
            self.loss_steps.pop()
            self.losses.pop()
        self.nonfinite_steps = 0
        if self.first_nonfinite is not None and self.first_nonfinite.step >= step:
            self.first_nonfinite = None

    def _loss(self, row: StepRow) -> None:
        if row.loss is None:
            return
        if not math.isfinite(row.loss):
            if self.finite_since >= FORGIVEN_STEPS:
                self.first_nonfinite = None  # that one lies behind: this is another
            self.finite_since = 0
            self.nonfinite_steps += 1
            if self.first_nonfinite is None:
                before = self.losses[-1] if self.losses else None
                own = {
                    rank: value for rank, value in row.losses.items() if not math.isfinite(value)
                }
                value = next(iter(own.values()), row.loss)
                self.first_nonfinite = NonFinite(row.step, tuple(sorted(own)), value, before)
            return
        self.finite_since += 1
        self.nonfinite_steps = 0
        self.losses.append(row.loss)
        self.loss_steps.append(row.step)
        if len(self.first_losses) < 10:
            self.first_losses.append(row.loss)
        if len(self.losses) >= 20 and row.step % 10 == 0:
            middle = median(list(self.losses)[-20:])
            self.best_loss = middle if self.best_loss is None else min(self.best_loss, middle)

    @property
    def processes(self) -> int:
        """Ranks that were asked for, or that the script of the only one started itself."""
        return max(self.run.processes, len(self.starts))

    @property
    def spawned(self) -> bool:
        """Whether the script started its ranks itself: their strategy is not known then."""
        return any(start.spawned for start in self.starts.values())

    @property
    def has_loader(self) -> bool:
        """Whether a DataLoader feeds the training; else its wait is only told from the forward."""
        return any(start.samplers for start in self.starts.values())

    @property
    def step_seconds(self) -> float | None:
        """Median duration of the latest steps; None before any."""
        seconds = [row.step_seconds for row in self.latest(64) if row.step_seconds]
        return median(seconds) if seconds else None

    def is_pause(self, until: float) -> bool:
        """Whether no step ended for long before `until` (Unix seconds), as during a checkpoint."""
        if self.last_step_at is None:
            return True
        seconds = until - self.last_step_at
        return seconds > _PAUSE_SECONDS and seconds > _PAUSE_STEPS * (self.step_seconds or 0.0)

    def latest(self, count: int) -> list[StepRow]:
        """The newest steps after the warm-up, oldest first, at most `count`."""
        return list(self.rows)[-count:]

    def bound(self, kind: str, rank: int | None, enter: float, leave: float) -> float:
        """The bound that counts now: `leave` for a finding that stands, `enter` for a new one."""
        return leave if (kind, rank) in self.standing else enter

    def fresh_devices(self) -> list[Device]:
        """The GPUs of all machines that tell something, in order."""
        return list(self.devices.fresh(self.facts.monotonic))

    def fresh_hosts(self) -> Iterator[tuple[int, Sequence[HostReading]]]:
        """The machines that tell something, in order, each with its readings, oldest first."""
        return self.hosts.fresh(self.facts.monotonic)

    def on_node(self, node: int) -> str:
        """For people: `` on node 1 (its name)``; "" where there is one machine."""
        if self.run.nodes < 2:
            return ""
        host = self.facts.nodes[node].host if node < len(self.facts.nodes) else None
        return f" on node {node}" + (f" ({host})" if host else "")

    def node_of(self, rank: int) -> int:
        """The machine of a rank: each has an equal share of them, node 0 the first."""
        return rank // max(1, self.processes // max(1, self.run.nodes))

    def device_name(self, node: int, index: int, part: int | None = None) -> str:
        """For people: ``gpu3``, of several machines ``gpu3 of node 1``; `part`: that slice."""
        several = (index, 1) in self._gpus_of(node)
        name = card_name(index, part if several else None)
        return name + (f" of node {node}" if self.run.nodes > 1 else "")

    def device_rank(self, node: int, index: int, part: int = 0) -> int | None:
        """The rank on a GPU; None where none is.

        Ranks take a machine's visible GPUs in order, each machine an equal share of them.
        """
        each = self.processes // max(1, self.run.nodes)
        order = list(self._gpus_of(node))
        place = order.index((index, part)) if (index, part) in order else each
        return None if place >= each else node * each + place

    def device_place(self, node: int, index: int | None, part: int | None = None) -> dict[str, Any]:
        """The fields of a finding that is of one GPU; `index` None: which one is not known.

        `part`: of that slice alone. A whole card with several slices has no one rank.
        """
        rank = None
        if index is not None and (part is not None or (index, 1) not in self._gpus_of(node)):
            rank = self.device_rank(node, index, part or 0)
        return {"rank": rank, "node": node, "gpu": index}

    def device_model(self, node: int, index: int, part: int = 0) -> str:
        """What card it is; "" = unknown."""
        return self._gpus_of(node).get((index, part), "")

    def _gpus_of(self, node: int) -> Mapping[tuple[int, int], str]:
        """A machine's GPUs by index and part; one that has not told has those of node 0."""
        report = self.facts.nodes[node] if node < len(self.facts.nodes) else None
        if report is not None and report.gpus:
            return {(index, 0): name for index, name in report.gpus.items()}
        gpus = with_parts(self.run.cluster.get("gpus") or ())
        return {(index, part): str(gpu.get("name") or "") for index, part, gpu in gpus}

    def strategy(self, name: str, default: Any = None) -> Any:
        """A field of the strategy; `default` where it is not known."""
        return self.run.strategy.get(name, default)


def mean(values: Sequence[float]) -> float:
    """The mean; of nothing it is 0."""
    return sum(values) / len(values) if values else 0.0


def _works(run: RunRecord, line: SystemLine) -> bool | None:
    """Whether the run's GPUs, without any its processes, compute; None when it is unknown."""
    if run.device == "cuda":
        percents = [util for gpu in line.get("gpus", []) if (util := gpu.get("util")) is not None]
        return any(util >= _IDLE_GPU_PERCENT for util in percents) if percents else None
    used = line.get("run_cpu_percent")
    return None if used is None else used >= _IDLE_CPU_PERCENT


def _bad(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def single_rank_seconds(paths: RunPaths, run: RunRecord) -> float | None:
    """Median step time of the latest single-process run of the same script and arguments.

    Equal arguments mean the same micro-batch per rank, so the step time should stay the same.
    None where there is no such run.
    """
    if run.processes < 2:
        return None
    same = attrgetter("script", "arguments", "device", "recipe")
    for folder in _newest(paths.directory):
        other = RunPaths(folder)
        record = read_run(other)
        if record is None or record.rehearsal or record.processes != 1:
            continue
        if same(record) != same(run):
            continue
        view = read_json(other.view) or {}
        seconds, steps = view.get("step_seconds_median"), view.get("steps")
        if isinstance(seconds, int | float) and isinstance(steps, int) and steps >= _LEAST_STEPS:
            return float(seconds)
    return None


def _newest(directory: Path) -> list[Path]:
    """Other runs of the store, the latest first."""
    try:
        folders = [
            path for path in directory.parent.iterdir() if path != directory and path.is_dir()
        ]
        dated = sorted(((folder.stat().st_mtime, folder) for folder in folders), reverse=True)
    except OSError:
        return []
    return [path for _, path in dated[:_MOST_RUNS]]

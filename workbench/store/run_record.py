"""``run.json`` as one typed value: what a run was asked to be, how and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict


class ProvenanceDoc(TypedDict, total=False):
    """What a run was made from, see `provenance.record.Provenance`; files lie in ``source/``."""

    repository: str | None
    commit: str | None
    changes_sha256: str | None
    files: dict[str, str]
    copied: list[str]
    python: str | None
    packages: dict[str, str]
    data: list[dict[str, Any]]  # {"option", "path", "bytes", "sha256"}
    environment: dict[str, str]
    notes: list[str]


class EngineDoc(TypedDict, total=False):
    """The engine whose machines a run is on."""

    name: str  # "slurm"
    job_id: str  # "12"


class OriginDoc(TypedDict, total=False):
    """Where a run begins that continues another one: in a new layout, or as a fork."""

    run: str | None
    checkpoint: str | None
    step: int | None


class SweepDoc(TypedDict, total=False):
    """Whose trial a run is."""

    name: str  # of the sweep
    id: str  # of this sweep alone, however many had its name
    trial: int  # from 0
    values: dict[str, str]  # parameter -> value, as the script's option takes it


class RehearsalDoc(TypedDict, total=False):
    """A planned run that is played on a simulated clock: nothing is trained, nothing measured.

    ``rehearsal.jsonl`` has its events. Its times are what the plan said.
    """

    seed: int
    speed: float | None  # seconds of the run per second; null = as fast as it computes
    trace: str | None  # the file that the interruptions are from; null = drawn from the rates
    faults: list[str]  # that were asked for, as they were given
    driver: bool  # whether the first machine's GPUs were read through the simulated driver
    notes: list[str]
    provider: str
    spot: bool
    usd_per_machine_hour: float | None
    billing_seconds: float  # what a machine's time is rounded up to
    minimum_seconds: float  # least billed time of a machine
    idle_seconds: float  # machines that are kept after the end
    storage_usd_per_hour: float | None
    once_usd: float | None  # at the end: stopped disks, egress
    step_seconds: float
    seconds_per_step: float  # with the plan's shares of evaluation and failed attempts
    saving_seconds: float
    interval_steps: int  # between two checkpoints
    start_seconds: float
    restart_seconds: float
    machine_hours: float | None  # mean life of a spot machine; null = not spot
    planned: dict[str, float | None]  # hours, usd and lost_hours, each with _low and _high


REHEARSED = "rehearsal: nothing was trained"
"""What every face says of such a run."""


class CpuThreadsDoc(TypedDict, total=False):
    """The threads of a rank on the CPU."""

    value: int | None  # OMP_NUM_THREADS of a rank
    source: str  # where from


class PredictedMemoryDoc(TypedDict, total=False):
    """The memory of a rank, as estimated at the launch."""

    parts: dict[str, float]
    total_bytes: float | None
    allocated_bytes: float | None
    on_card_bytes: float | None
    assumptions: list[str]


class RangeDoc(TypedDict, total=False):
    """The range of a step's time."""

    low_seconds: float | None
    high_seconds: float | None


class CorrectionDoc(TypedDict):
    """By what earlier runs corrected a predicted time."""

    factor: float
    low: float
    high: float
    runs: int


class PredictedTimeDoc(TypedDict, total=False):
    """The time of an optimizer step, as estimated at the launch."""

    step_seconds: float
    range: RangeDoc
    parts: dict[str, float]
    tokens_per_step: float | None
    tokens_per_second: float | None
    samples_per_step: float | None
    samples_per_second: float | None
    mfu: float | None
    assumptions: list[str]
    source: str
    host_key: str
    correction: CorrectionDoc | None


class PredictedDoc(TypedDict, total=False):
    """The estimate at the launch; each part only where it is known."""

    memory: PredictedMemoryDoc
    time: PredictedTimeDoc
    usd: float | None


class TokensBeforeDoc(TypedDict):
    """Tokens of a step, all ranks, up to a Unix time; null = unknown."""

    until: float
    tokens_per_step: int | None


class UsdBeforeDoc(TypedDict):
    """Price of an hour, all machines, up to so many seconds at work."""

    until_seconds: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """``run.json``. Secrets are redacted before writing.

    A default is what a record means that lacks the field: one of an earlier version, or a damaged
    one. `read_record` refuses those that lack what a start needs.
    """

    schema: int = 1
    run: str = ""  # run id = directory name
    name: str = ""  # as the user gave it: data, never markup or a path
    marker: str = ""  # value of WORKBENCH_RUN_ID in the environment of every process of the run
    created_at: float = 0.0
    workbench_version: str = ""
    script: str = ""
    module: str | None = None  # where it was started as one
    arguments: list[str] = field(default_factory=list[str])
    # those of them, at the front, that the strategy put there
    layout_arguments: list[str] = field(default_factory=list[str])
    recipe: str | None = None
    strategy: dict[str, Any] = field(default_factory=dict[str, Any])  # Strategy, field by field
    strategy_name: str = ""
    processes: int = 1  # ranks of all machines
    nodes: int = 1  # equal machines; those of node 0 come first
    address: str | None = None  # where the other machines reach node 0; null = there are none
    engine: EngineDoc | None = None  # null = started by hand
    device: str = ""  # "cpu" or "cuda"
    cluster: dict[str, Any] = field(default_factory=dict[str, Any])  # Cluster, field by field
    workload: dict[str, Any] | None = None  # Workload when known (recipes), else null
    # {"name", "release", "named", "imported", "assumptions"} of what trains, where it is known
    trainer: dict[str, Any] | None = None
    predicted: PredictedDoc | None = None
    calibration: str = "all"  # measurement that corrects the prediction, as given; "none" = none
    warnings: list[str] = field(default_factory=list[str])  # what the preflight saw
    command: list[str] = field(default_factory=list[str])  # exact argv
    # only what differs from the parent's environment
    environment: dict[str, str] = field(default_factory=dict[str, str])
    cpu_threads: CpuThreadsDoc = field(default_factory=CpuThreadsDoc)
    # the part of the environment that was given for this run; null: by an earlier version
    extra_environment: dict[str, str] | None = None
    # proofs that its variables were written by its user's workbench
    vouched: list[str] = field(default_factory=list[str])
    wrap: str | None = None  # class of the blocks for FSDP, as given
    port: int = 0  # rendezvous port, as given; 0 = a free one at each start
    # GPUs by the driver's index, or slots of cores; [] = the first of the GPUs, any of the slots
    devices: list[str] = field(default_factory=list[str])
    all_gpus: bool = False  # its one process drives all GPUs that it sees
    share: bool = False  # it may use devices that other runs hold
    queued_at: float | None = None  # filed in the store's queue; null = started at once
    warm: bool = False  # launcher and ranks are forks of a warm server
    working_directory: str = ""
    capture: bool = True
    steps_total: int | None = None  # known for recipes; the ETA's basis
    seconds_total: float | None = None  # a time limit, the ETA's other basis
    tokens_per_step: int | None = None
    # Unix time of the resume that changed workload and prediction; null = those of the launch
    work_since: float | None = None
    # what `tokens_per_step` was before resumes that changed it, oldest first
    tokens_before: list[TokensBeforeDoc] = field(default_factory=list[TokensBeforeDoc])
    usd_per_hour: float | None = None
    # what it was on the machines of earlier attempts, oldest first
    usd_before: list[UsdBeforeDoc] = field(default_factory=list[UsdBeforeDoc])
    grid_gco2e_per_kwh: float | None = None  # as given; null = the default of observe.emissions
    # recover.policy.Recovery, field by field
    recovery: dict[str, Any] = field(default_factory=dict[str, Any])
    # sinks fed by the supervisor: tensorboard, mlflow, trackio, wandb
    trackers: list[str] = field(default_factory=list[str])
    # who is told of findings and ends: names of the user's targets, or all (`workbench notify`)
    notify: list[str] = field(default_factory=list[str])
    mirror: str | None = None  # address that the run is kept in step with; null = none
    resumed_from: OriginDoc | None = None
    rerun_of: str | None = None  # the run that this one starts again
    sweep: SweepDoc | None = None  # null = no trial of a sweep
    part_of: str | None = None  # "measure", "verify" or "study", which started it; null = none
    rehearsal: RehearsalDoc | None = None  # null = a run that trains
    provenance: ProvenanceDoc | None = None  # null = recorded by an earlier version
    as_read: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The document it was made from: lacks what its version had not, keeps what a later one has."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> RunRecord:
        """The record of a document that `shapes.fit` has checked.

        >>> RunRecord.of({"run": "a", "nodes": None, "of_a_later_version": 1}).nodes
        1
        """
        values = {name: document[name] for name in _NAMES if document.get(name) is not None}
        return cls(**values, as_read=document)

    @property
    def is_helper(self) -> bool:
        """Whether a sweep, a study or a measurement started it to answer a question of its own."""
        return self.sweep is not None or self.part_of is not None

    def usd_of(self, seconds: float | None) -> float | None:
        """What the first so many seconds at work cost; None where the price is unknown.

        >>> run = RunRecord(
        ...     usd_per_hour=3.0, usd_before=[{"until_seconds": 3600, "usd_per_hour": 20.0}]
        ... )
        >>> run.usd_of(1800), run.usd_of(7200)
        (10.0, 23.0)
        """
        if self.usd_per_hour is None or seconds is None:
            return None
        usd = since = 0.0
        for part in self.usd_before:
            until = min(seconds, part["until_seconds"])
            usd += part["usd_per_hour"] * max(0.0, until - since) / 3600
            since = max(since, until)
        return usd + self.usd_per_hour * max(0.0, seconds - since) / 3600

    def tokens_at(self, time: float) -> int | None:
        """Tokens of a step that ended at that Unix time, all ranks; None = unknown."""
        before = (part["tokens_per_step"] for part in self.tokens_before if time < part["until"])
        return next(before, self.tokens_per_step)

    def document(self) -> dict[str, Any]:
        """The content of run.json: as it was read, with the fields that were replaced since.

        >>> from dataclasses import replace
        >>> replace(RunRecord.of({"run": "a", "of_a_later_version": 1}), port=5).document()
        {'run': 'a', 'of_a_later_version': 1, 'port': 5}
        """
        before = RunRecord.of(self.as_read)
        values = {name: getattr(self, name) for name in _NAMES}
        changed = {k: v for k, v in values.items() if v != getattr(before, k)}
        return {**self.as_read, **changed}


_NAMES = tuple(field.name for field in fields(RunRecord) if field.name != "as_read")

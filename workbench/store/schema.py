"""Every file of a run directory, documented in one place.

``runs/<run-id>/`` is the run: all state is in these files, so any notebook, terminal or process
attaches from the directory alone, and a browser reads ``view.json`` through Jupyter's ``/files/``.

=========================  ==========================================  ============================
file                       content                                     written by
=========================  ==========================================  ============================
``run.json``               `run_record.RunRecord`, once, at launch     the client
``config/``                the launcher's config files                 the client
``cell/``                  the script of a notebook's cell             the client
``state.json``             :class:`StateDoc`, replaced atomically      the supervisor
``logs/launcher.log``      stdout+stderr of ``accelerate launch``      the launcher
``logs/supervisor.log``    what the supervisor did and why             the supervisor
``logs/rank-N.log``        stdout+stderr of rank N                     rank N (the capture hook)
``metrics/rank-N.jsonl``   one :class:`MetricLine` per optimizer step  rank N (the capture hook)
``metrics/rank-N.start.json``  `rank_records.RankStart`, when it starts  rank N (the capture hook)
``metrics/rank-N.end.json``  `rank_records.RankEnd`, when it ends      rank N (the capture hook)
``system.jsonl``           one :class:`SystemLine` per sample          the supervisor
``view.json``              :class:`ViewDoc`, at most 64 kB, atomic     the supervisor
``metrics/rank-N.pulse``   where rank N is, see `PULSE_FORMAT`         rank N (the capture hook)
``metrics/rank-N.stack``   its stacks, when asked for                  rank N (the capture hook)
``metrics/rank-N.weights.jsonl`` a few numbers of some weights  rank N
``metrics/rank-N.said.jsonl``  what it logged by name, see             rank N
                           `observe.logged`
``metrics/waits-P-C``      there while process C, which rank           C (the capture hook)
                           process P started, waits for a group
``metrics/starts-ranks``   there once a rank starts ranks of its own  the capture hook
``attempts.jsonl``         one :class:`AttemptLine` per start and end  the supervisor
``rehearsal.jsonl``        `journal_schema.RehearsedLine` per event    the rehearsal
                           of a run that is played and trains nothing
``actions.jsonl``          `journal_schema.ActionLine` per launch,     who asked for it; the ranks
                           stop, resume or step boundary's request
``checkpoints.jsonl``      one :class:`SavedLine` per checkpoint seen  rank 0 (the capture hook)
``findings.json``          what was diagnosed so far, atomic           the supervisor
``control/``               ``stop``, ``stop-now``, ``preempt``,        clients; ``stop-at`` and
                           ``dump`` (empty files), ``stop-at`` (a      ``terminating`` by the
                           step), ``terminating``                      supervisor, read by the ranks
``control/profile``        which steps to trace                        a client, read by the ranks
``control/steer``          names in ``steering/``, one a line          clients, read by the ranks
``steering/NAME/``         something asked of the training after a     a client: ``request.json``;
                           step: `journal_schema.SteeringRequest`      the ranks: all else
``profiles/step-N/``       a trace, see :class:`ProfiledRank`          the ranks, its first reader
``checkpoints/``           what the script or a graceful stop saved    the ranks
``nodes/order.json``       what each of several machines has to do     the supervisor
                           now, see `node_schema.NodeOrder`
``nodes/node-N.json``      `node_schema.NodeDoc`, once a second,       node N's agent; of node 0
                           atomic                                      the supervisor
``nodes/system-N.jsonl``   as ``system.jsonl``, of node N              node N's agent
``logs/launcher-node-N.log``  of the launcher on node N                that launcher
``comparison.json``        :class:`ComparisonDoc`, at the end          the supervisor
``energy.json``            what each device took so far, atomic: see   the supervisor
                           `observe.energy.Account`
``report.html``            the finished run on one page                the supervisor
``exit.json``              :class:`ExitDoc`, last but for row.json     the supervisor
``row.json``               `row_schema.RowDoc`: the run as lists show  the supervisor
                           it; never the record
``mirror.json``            `storage.mirror_state.MirrorState`: the copy   the mirror's process
                           elsewhere, atomic
``labels.json``            :class:`LabelsDoc`, atomic                  clients, at any time
=========================  ==========================================  ============================

Beside the runs lies ``.queue/``, see `queue_files`. Rules of reading: a line without its newline is
*not yet written*; a line that does not parse is counted and skipped; unknown keys are kept; unknown
values are ``null``. Times are Unix seconds. Metric files may hold Python's ``NaN``/``Infinity``;
``view.json`` is strict JSON (``null``).
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

SCHEMA_VERSION = 1
VIEW_MAX_BYTES = 64_000

Phase = Literal["starting", "running", "stopping", "ended"]
Outcome = Literal["succeeded", "failed", "stopped", "preempted", "interrupted", "no-steps"]


class ProcessDoc(TypedDict):
    """A process that cannot be mistaken for another one: pids are reused, this triple is not."""

    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat: clock ticks after boot
    boot_id: str  # /proc/sys/kernel/random/boot_id


# ``metrics/rank-N.pulse``, 64 bytes, rewritten in place by one pwrite: magic, beats,
# steps done, phase (index of PULSE_PHASES), Unix and CLOCK_MONOTONIC seconds of the latest beat.
# A reader that meets a torn beat reads again; the numbers only ever tell how far a rank has come.
PULSE_FORMAT = "<8sQIIdd24x"
PULSE_MAGIC = b"WBPULSE1"
PULSE_PHASES = ("starting", "forward", "backward", "saving", "ended")
"""forward: between the end of a step and entering backward (data and forward pass); backward: from
entering backward to the end of the step."""
STACK_SIGNAL = 62  # SIGRTMAX - 2: a rank appends its Python stacks to ``rank-N.stack``


BY_HAND = "resumed by hand"
"""How `AttemptLine.why` begins of an attempt that someone asked for."""


class RollbackDoc(TypedDict):
    """Where a run went back by itself: part of the line of the attempt that it began."""

    last_step: int  # that was reached before
    step: int  # of the checkpoint
    reason: str  # nan or spike
    then: str  # skip-data or lower-lr
    loaders: list[Any]  # how those sample whose data are left out


class AttemptLine(TypedDict, total=False):
    """``attempts.jsonl``: a start of the launcher, or its end."""

    attempt: int  # counted from 1
    event: Literal["start", "end"]
    time: float
    first_step: int  # optimizer steps already done when it starts; 0 = from the beginning
    checkpoint: str | None  # what it resumes from
    why: str | None  # of a start after the first: who or what asked for it
    arguments: list[str] | None  # of the script, where a resume gave others than run.json has
    given_up: list[Any]  # [path, saved_at] of each checkpoint beyond first_step at that time
    unset: list[list[str]]  # request and name of values set before that its arguments replace
    rollback: RollbackDoc  # absent where the run did not go back by itself
    last_step: int  # end: the furthest step that a rank reported
    message: str | None  # end: what happened


class StateDoc(TypedDict):
    """``state.json``: the present, with a heartbeat (one write a second while supervised)."""

    schema: int
    phase: Phase
    message: str | None  # one sentence for people
    supervisor: ProcessDoc
    watcher: ProcessDoc | None  # starts another supervisor; absent in runs of earlier versions
    launcher: ProcessDoc | None
    ranks: dict[str, ProcessDoc]  # rank (as text) -> process
    heartbeat: float
    started_at: float
    port: int | None
    restarts: int
    rehearsal: bool  # it is played on a simulated clock; absent in runs of earlier versions
    warm: bool  # the present attempt's launcher and ranks are forks of a warm server
    attempt: int
    world_size_asked: int
    world_size_seen: int | None


class MetricLine(TypedDict, total=False):
    """One optimizer step of one rank. ``step`` and ``time`` are always there."""

    step: int  # optimizer steps, counted from 1
    time: float  # end of the step
    step_seconds: float
    backward_at: float  # when this rank entered the last backward of the step
    loss: float  # what this rank optimised: the sum of what its backward passes differentiated
    lr: float
    grad_norm: float
    data_seconds: float  # waited for data between the step before and this one's forward
    tokens: int  # tokens this rank consumed in the step
    samples: int  # likewise: the first dimension of its batches
    batch: int  # fingerprint of the data; ranks with equal ones share it. In some steps only
    memory_bytes: int  # peak so far: allocated on the GPU, resident set on CPU
    profiled: bool  # only in steps that were being traced: their times hold the profiler's


# ``control/profile``, and ``WORKBENCH_PROFILE`` in the environment of a run: a JSON object of
# "from" (the first step traced, 2 or later), "steps", "memory" and "shapes" (traced too?).
# ``profiles/step-N``: ``rank-R.trace.json.gz``, then ``rank-R.json``, or ``rank-R.error`` with the
# reason; and ``merged.trace.json.gz`` of all ranks, by the first who looks.
class ProfiledRank(TypedDict):
    """``profiles/step-N/rank-R.json``: what was traced, and what the tracing cost."""

    rank: int
    begun_ns: int  # Unix nanoseconds, like all times of a trace
    steps: list[dict[str, Any]]  # {"step", "end_ns", "data_seconds"}, as the hook saw them
    memory: bool
    shapes: bool
    hostname: str
    prepare_seconds: float  # before the step that warms up
    start_seconds: float  # after it
    stop_seconds: float  # after the last traced step
    export_seconds: float  # beside the training, by a thread


class DiskSample(TypedDict):
    """A disk that a run writes to beside that of its directory, see observe/disks.py."""

    path: str  # the folder on it that the run uses
    free_bytes: int
    total_bytes: int


class CpuSample(TypedDict, total=False):
    """What a sample of a run on CPU has more, from the second on; and what older ones lack."""

    processor_joules: float | None  # of the whole host since some moment, see observe/rapl.py
    memory_total_bytes: int | None  # what `memory_used_bytes` is a part of; a container's limit
    disk_total_bytes: int | None
    other_disks: list[DiskSample]
    shared_memory_used_bytes: int | None  # of /dev/shm
    shared_memory_total_bytes: int | None
    cpu_refused_share: float | None  # by a container's CPU limit, of what was asked for, 0..1
    cores: list[int]  # percent busy of each core of the host
    busiest: list[dict[str, Any]]  # the run's processes: {"pid", "cpu_percent", "rss_bytes"}


class SystemLine(CpuSample):
    """One hardware sample. Unknown readings are null, never 0."""

    time: float
    cpu_percent: float | None  # of the whole host, 0..100
    memory_used_bytes: int | None
    run_rss_bytes: int | None  # resident memory of all processes of the run
    run_cpu_percent: float | None  # 100 = one core
    disk_free_bytes: int | None
    net_bytes_per_second: float | None  # both ways, over all devices but the loopback one
    gpus: list[dict[str, Any]]  # GpuSample, see observe/gpu.py


class ExitDoc(TypedDict):
    """``exit.json``: written last; its absence beside dead processes means *interrupted*."""

    schema: int
    outcome: str  # Outcome, or one of a later version
    exit_code: int | None
    failed_rank: int | None
    traceback: str | None  # the end of the failed rank's, as its interpreter told it
    message: str  # one sentence: what happened and what to do next
    why_not_resumable: str  # why `workbench resume` would be refused; "" = it works
    finding: dict[str, Any] | None
    processes_left: int
    gpu_memory_left_bytes: int | None
    ended_at: float


OF_THE_END = (
    *("outcome", "message", "why_not_resumable", "failed_rank", "traceback"),
    *("processes_left", "ended_at"),
)
"""What the view has of `ExitDoc`."""


class ComparisonRow(TypedDict, total=False):
    """One term of a run's prediction beside its measurement, see `prediction_error.terms`."""

    what: str
    group: str  # time, cause (of the step's time), rate, memory, money, host
    unit: str  # s, tokens/s, share, bytes, usd, cores
    predicted: float | None
    low: float | None
    high: float | None
    measured: float | None
    ratio: float | None


class ComparisonDoc(TypedDict, total=False):
    """``comparison.json``, and ``comparison`` of the view while the run continues."""

    final: bool
    steady_steps: int
    source: str | None  # of the predicted times: "measured here on DATE …", "catalog"
    explanation: str
    rows: list[ComparisonRow]


class EnergyDoc(TypedDict, total=False):
    """``energy`` of the view: what the run took in all its attempts. Unknown is null."""

    joules: float | None  # of all that is counted: the two that follow
    gpu_joules: float | None  # boards of the GPUs, on all machines
    processor_joules: float | None  # of whole machines, where their counters can be read
    kwh: float | None
    tokens: int | None  # that the steps in the curve consumed
    tokens_per_joule: float | None
    co2e_grams: float | None
    grid_gco2e_per_kwh: float
    grid_source: str  # "given", or where the default is from
    notes: list[str]  # what is not counted, or not by a counter


class LabelsDoc(TypedDict, total=False):
    """``labels.json``: what people say of a run; nothing of the training depends on it."""

    schema: int
    tags: list[str]
    note: str | None
    archived: bool  # hidden from lists unless asked for
    changed_at: float


class AttemptsBefore(TypedDict, total=False):
    """``attempts_before`` of the view: what the attempts come to that it has no room for."""

    count: int
    arguments: AttemptLine | None  # the start since which the script had its latest own ones
    # [Unix time, seconds at work until then]: straight lines between them, from the first start to
    # that of the first attempt in the view. Pauses are level; of very many the longest
    clock: list[list[float]]


class ViewDoc(TypedDict):
    """``view.json``: all that the charts need, bounded however long the run."""

    schema: int
    seq: int
    written_at: float
    run: str
    name: str
    phase: Phase
    outcome: Outcome | None
    message: str | None
    # As in exit.json, null while it runs: a page reads how a run ended from this file alone.
    why_not_resumable: str | None
    failed_rank: int | None
    traceback: str | None
    processes_left: int | None
    rehearsal: bool  # nothing is trained or measured; its clock runs ahead of the host's
    strategy: str
    processes: int
    nodes: int  # ``host`` is that of node 0
    world_size: int | None
    device: str
    started_at: float
    first_step_at: float | None
    ended_at: float | None
    elapsed_seconds: float
    eta_seconds: float | None
    steps: int
    steps_total: int | None
    stride: int
    rewinds: list[dict[str, Any]]  # {first last time}: steps that the script did again, the latest
    steps_redone: int  # in all rewinds; ``steps`` and ``series`` have each step once
    actions: list[dict[str, Any]]  # {step text time}: asked for while it trained, the latest
    loss_first: float | None
    loss_last: float | None
    nonfinite_step: int | None  # first step with a NaN or infinite loss
    step_seconds_median: float | None
    tokens_per_step: int | None  # of all ranks, where one number holds for all steps
    tokens_per_second: float | None
    samples_per_second: float | None
    throughput_upper_bound: bool  # ranks may have been counted that share their data with others
    usd_per_hour: float | None
    usd_before: list[dict[str, Any]]  # run_record.UsdBeforeDoc: prices of earlier attempts
    usd_so_far: float | None
    energy: EnergyDoc | None
    # Equal columns. A row is ``stride`` optimizer steps: ``step``, ``time`` of its last, means of
    # plain columns, ``*_min``/``*_max`` its extremes, so spikes survive.
    # step time loss loss_min loss_max lr grad_norm grad_norm_max step_seconds step_seconds_max
    # tokens_per_second, or samples_per_second where no tokens are known
    series: dict[str, list[float | None]]
    # What was logged by name: {"tables": [{"stride", "step", "time"}], "series": [{"name",
    # "figure", "table", "count", "last", "last_step", "min", "min_step", "max", "max_step",
    # "nonfinite", "nonfinite_step", "mean", "low", "high"}], "more": names without a curve here,
    # "more_count"}. Facts are exact, points of ``mean`` stand for ``stride`` values; {} = nothing
    logged: dict[str, Any]
    # {"prompts", "steps", "answers": [step][prompt], "steps_left_out"}; {} = none were logged
    text_samples: dict[str, Any]
    # {rank pid step loss late_seconds peak_memory_bytes rss_bytes alive ended phase process_state},
    # and the lines of "log_tail"
    ranks: list[dict[str, Any]]
    # {"id": "gpu0", "node", "index", "name", "memory_total_bytes", "power_limit_w", "series":
    #  {"time", "util", "memory_bytes", "temperature_c", "power_w"}}; empty where there are too many
    devices: list[dict[str, Any]]
    # In their place then: "time" and, of each of the others, NAME_low, NAME (median), NAME_high
    device_spread: dict[str, list[float | None]]
    # The latest of every device of every machine, in columns; null where nothing is known of any.
    # "kind" gpu or core; "models" {"name", "memory_total_bytes", "power_limit_w", "usual"};
    # "nodes" {"node", "count"}, "host" where known, "index" unless 0, 1, 2 …, "part" of slices
    # ("gpu0:1" has 1): columns hold one machine's devices after the other's. "model": [] of one;
    # "throttle": places in "reasons"; util memory_percent temperature_c power_w and deviation (over
    # 1 = unlike its peers): `observe.coded.Coded`, one row. "outliers" {"at", "text"}, worst first;
    # "missing": sentences.
    grid: dict[str, Any] | None
    # Every rank in the latest steps, see observe/rank_grid.py; null with one rank.
    # "step"; "pending": how many of them are under way; "ranks"; "each": ranks of a number;
    # "measures" late, loss, seconds: `observe.coded.Coded`, one row a step
    rank_grid: dict[str, Any] | None
    # {"name", "cores", "memory_total_bytes", "series": {"time", "cpu_percent",
    #  "memory_used_bytes", "run_rss_bytes", "run_cpu_percent", "disk_free_bytes"},
    #  "processes": of a run on CPU, as in SystemLine}
    host: dict[str, Any]
    predicted: dict[str, Any] | None
    comparison: ComparisonDoc | None
    peak_memory_bytes: list[int | None]  # per rank
    restarts: int
    lines_skipped: int  # malformed metric lines
    findings: list[dict[str, Any]]  # findings.Finding documents, worst first
    attempt: int
    attempts: list[dict[str, Any]]  # the latest AttemptLines, from a start on
    attempts_before: AttemptsBefore | None  # of those that are left out; null = none are
    # {"step", "path", "name", "bytes", "saved_at", "kind", "sealed", "problem"}, newest first
    checkpoints: list[dict[str, Any]]
    ranks_hidden: int  # ranks that the view has no room for; ``ranks`` are the extreme ones
    # The latest steps, of the extreme ranks; seconds after the step's first rank entered backward.
    # {"step", "last": [{"rank", "entered"}], "latest": {"rank", "seconds"} (by the median),
    # "ranks": [{"rank", "entered": [...], "ended": [...], "data": [...]}], "ranks_hidden": n}
    timeline: dict[str, Any]

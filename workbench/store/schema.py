"""Every file of a run directory, documented in one place.

``runs/<run-id>/`` is the run: all state is in these files, so any notebook, terminal or process
attaches from the directory alone, and a browser reads ``view.json`` through Jupyter's ``/files/``.

=========================  ==========================================  ============================
file                       content                                     written by
=========================  ==========================================  ============================
``run.json``               :class:`RunDoc`, once, at launch            the client
``config/``                the launcher's config files                 the client
``state.json``             :class:`StateDoc`, replaced atomically      the supervisor
``logs/launcher.log``      stdout+stderr of ``accelerate launch``      the launcher
``logs/supervisor.log``    what the supervisor did and why             the supervisor
``logs/rank-N.log``        stdout+stderr of rank N                     rank N (the capture hook)
``metrics/rank-N.jsonl``   one :class:`MetricLine` per optimizer step  rank N (the capture hook)
``metrics/rank-N.end.json``  :class:`RankEnd`, when the rank ends      rank N (the capture hook)
``system.jsonl``           one :class:`SystemLine` per sample          the supervisor
``view.json``              :class:`ViewDoc`, at most 64 kB, atomic     the supervisor
``control/``               ``stop``, ``stop-now`` (empty files), and   clients; ``stop-at`` by the
                           ``stop-at`` (the step to stop at)           supervisor, read by the ranks
``checkpoints/``           what the script or a graceful stop saved    the ranks
``report.html``            the finished run on one page                the supervisor
``exit.json``              :class:`ExitDoc`, last                      the supervisor
=========================  ==========================================  ============================

Rules of reading: a line without its newline is *not yet written*; a line that does not parse is
counted and skipped; unknown keys are kept; unknown values are ``null``. Times are Unix seconds.
Metric files may hold Python's ``NaN``/``Infinity``; ``view.json`` is strict JSON (``null``).
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


class RunDoc(TypedDict):
    """``run.json``: what was asked, how and where. Secrets are redacted before writing."""

    schema: int
    run: str  # run id = directory name
    name: str  # as the user gave it: data, never markup or a path
    marker: str  # value of WORKBENCH_RUN_ID in the environment of every process of the run
    created_at: float
    workbench_version: str
    script: str
    arguments: list[str]
    recipe: str | None
    strategy: dict[str, Any]  # Strategy, field by field
    strategy_name: str
    processes: int
    device: str  # "cpu" or "cuda"
    cluster: dict[str, Any]  # Cluster, field by field
    workload: dict[str, Any] | None  # Workload when known (recipes), else null
    predicted: (
        dict[str, Any] | None
    )  # {"memory": {"parts": {...}, "total_bytes": n, "assumptions"}}
    command: list[str]  # exact argv
    environment: dict[str, str]  # only what differs from the parent's environment
    working_directory: str
    capture: bool
    steps_total: int | None  # known for recipes; the ETA's basis
    seconds_total: float | None  # a time limit, the ETA's other basis
    tokens_per_step: int | None
    usd_per_hour: float | None


class StateDoc(TypedDict):
    """``state.json``: the present, with a heartbeat (one write a second while supervised)."""

    schema: int
    phase: Phase
    message: str | None  # one sentence for people
    supervisor: ProcessDoc
    launcher: ProcessDoc | None
    ranks: dict[str, ProcessDoc]  # rank (as text) -> process
    heartbeat: float
    started_at: float
    port: int | None
    restarts: int
    world_size_asked: int
    world_size_seen: int | None


class MetricLine(TypedDict, total=False):
    """One optimizer step of one rank. ``step`` and ``time`` are always there."""

    step: int  # optimizer steps, counted from 1
    time: float  # end of the step
    step_seconds: float
    backward_at: float  # when this rank entered the last backward of the step
    loss: float  # mean over the step's micro-batches on this rank
    lr: float
    grad_norm: float
    tokens: int  # tokens this rank consumed in the step
    memory_bytes: int  # peak so far: allocated on the GPU, resident set on CPU


class RankEnd(TypedDict, total=False):
    """How a rank ended, in its own words. Absent after SIGKILL."""

    rank: int
    time: float
    steps: int
    ok: bool
    exit_code: int | None
    exception: str | None  # "ValueError: message"
    where: str | None  # "train.py:31 in main"
    traceback: str | None
    peak_memory_bytes: int | None
    stopped_at: int | None  # the step of a graceful stop
    checkpoint: str | None


class SystemLine(TypedDict):
    """One hardware sample. Unknown readings are null, never 0."""

    time: float
    cpu_percent: float | None  # of the whole host, 0..100
    memory_used_bytes: int | None
    run_rss_bytes: int | None  # resident memory of all processes of the run
    run_cpu_percent: float | None  # 100 = one core
    disk_free_bytes: int | None
    net_bytes_per_second: float | None
    gpus: list[dict[str, Any]]  # GpuSample, see observe/gpu.py


class ExitDoc(TypedDict):
    """``exit.json``: written last; its absence beside dead processes means *interrupted*."""

    schema: int
    outcome: Outcome
    exit_code: int | None
    failed_rank: int | None
    message: str  # one sentence: what happened and what to do next
    finding: dict[str, Any] | None
    processes_left: int
    gpu_memory_left_bytes: int | None
    ended_at: float


class ViewDoc(TypedDict):
    """``view.json``: all that the charts need, bounded however long the run.

    ``series`` holds equally long columns. A row stands for ``stride`` consecutive optimizer steps;
    ``step`` and ``time`` are those of the row's last step; ``loss`` and the other plain columns
    are means over the row, ``*_min``/``*_max`` its extremes, so spikes survive the thinning.
    """

    schema: int
    seq: int
    written_at: float
    run: str
    name: str
    phase: Phase
    outcome: Outcome | None
    message: str | None
    strategy: str
    processes: int
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
    loss_first: float | None
    loss_last: float | None
    nonfinite_step: int | None  # first step with a NaN or infinite loss
    step_seconds_median: float | None
    tokens_per_second: float | None
    usd_per_hour: float | None
    usd_so_far: float | None
    # step time loss loss_min loss_max lr grad_norm grad_norm_max step_seconds step_seconds_max
    # tokens_per_second
    series: dict[str, list[float | None]]
    # {"rank", "pid", "step", "loss", "late_seconds", "peak_memory_bytes", "rss_bytes", "alive",
    #  "ended", "log_tail": [str, ...]}
    ranks: list[dict[str, Any]]
    # {"id": "gpu0", "name", "memory_total_bytes", "power_limit_w", "series": {"time", "util",
    #  "memory_bytes", "temperature_c", "power_w"}}
    devices: list[dict[str, Any]]
    # {"name", "cores", "memory_total_bytes", "series": {"time", "cpu_percent",
    #  "memory_used_bytes", "run_rss_bytes", "run_cpu_percent", "disk_free_bytes"}}
    host: dict[str, Any]
    predicted: dict[str, Any] | None
    peak_memory_bytes: list[int | None]  # per rank
    restarts: int
    lines_skipped: int  # malformed metric lines
    findings: list[dict[str, Any]]

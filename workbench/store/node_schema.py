"""``nodes/``: what the machines of one run tell one another. See `schema` for the rest of a run."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from workbench.store.schema import ProcessDoc, SystemLine


class NodeOrder(TypedDict):
    """``nodes/order.json``: the attempt of a run over several machines."""

    schema: int
    attempt: int
    phase: Literal["gather", "go", "end"]  # be ready; start the launcher; end its processes
    patient: bool  # end: what ends by itself may
    address: str  # of node 0
    port: int  # of this attempt's rendezvous there
    first_step: int
    stop_at: int | None  # the step at which all ranks stop together; null = none is asked for
    arguments: list[str]  # of the script, in this attempt
    environment: dict[str, str]  # more of it for this attempt


class NodeDoc(TypedDict):
    """``nodes/node-N.json``: one machine of several, in its agent's words."""

    schema: int
    node: int
    host: str
    address: str | None  # by which it reaches node 0
    boot_id: str
    agent: ProcessDoc | None
    beat: int  # counts up; a reader needs no common clock
    heartbeat: float
    phase: Literal["waiting", "ready", "running", "ended", "refused", "left"]
    attempt: int  # that the phase is of; 0 = none yet
    launcher: ProcessDoc | None
    exit_code: int | None  # of the launcher; null while it runs, or when no one saw it end
    processes_left: int  # of the attempt, that could not be ended
    preempt: bool  # whether this machine is announced to be taken away
    unreachable_since: float | None  # Unix seconds; null = node 0's port answers from here
    message: str | None  # one sentence for people
    ranks: dict[str, NodeRank]  # global rank (as text) -> its process
    gpus: list[dict[str, Any]]  # its cards, `describe.hardware.Gpu` field by field
    sample: SystemLine | None  # its latest
    gpu_errors: list[dict[str, Any]]  # {index xid count}, see observe/gpu_errors.py: all so far


class NodeRank(TypedDict, total=False):
    """A rank's process as only its own machine can see it."""

    process: ProcessDoc
    alive: bool
    process_state: str | None
    rss_bytes: int | None
    swapped_bytes: int | None
    own_bytes: int | None  # resident and no file's
    cpu_seconds: float | None
    beats: int | None  # its pulse: the file is mapped memory, which other machines see late
    steps: int | None
    phase: str | None
    age_seconds: float | None


class SavedLine(TypedDict, total=False):
    """``checkpoints.jsonl``: a checkpoint that is complete as far as its writer knows."""

    time: float
    step: int  # optimizer steps done, as the hook counts them
    path: str  # absolute
    kind: Literal["accelerate", "trainer", "recipe"]
    seconds: float  # what saving held the training up
    world_size: int

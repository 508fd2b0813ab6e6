"""Runs scripts with the probe, and under the independent ledger on one rank or two.

`warm` ones are forks of the session's warm server, for tests; the others interpreters of their own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.launch.ranks import end_processes, start_cold, start_warm
from workbench.describe import Strategy, Workload
from workbench.describe.detection import detect_host
from workbench.estimate.host_step import predict_step
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import OUTSIDE_ALLOCATOR
from workbench.launching.capture import SITE_FOLDER
from workbench.measuring.batches import other_batches, usual_value
from workbench.measuring.described import QUIET_SHARE, samples_of, workload_of

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
_FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script: how it is measured, and where its prediction is checked."""

    script: str
    arguments: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    """Arguments of the check: another batch size."""
    samples: int
    """Samples per micro-batch then."""
    strategy: str = "ddp"
    """On two ranks; "single" for one."""
    wrap: str | None = None
    """FSDP: class of the blocks."""
    environment: Mapping[str, str] = field(default_factory=dict)
    steps: int = 3


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH")}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true"}


def _run(
    words: Sequence[str], folder: Path, environments: Sequence[dict[str, str]], *, warm: bool
) -> None:
    """Python with these words as one process per environment; all must succeed."""
    start = start_warm if warm else start_cold
    argv = [sys.executable, *words]
    started = [start(argv, folder, one) for one in environments]
    try:
        assert [one.wait(300) for one in started] == [0] * len(started)
    finally:
        end_processes(started)


def probe(
    script: str | Path,
    arguments: Sequence[str],
    folder: Path,
    batch: Any = None,
    seconds: float = 0.2,
    *,
    warm: bool = False,
) -> Any:
    """The record that the hook's probe leaves of a script or ``-m module``, without a launcher."""
    for part in ("logs", "metrics", "control"):
        (folder / part).mkdir(parents=True)
    asked = {"seconds": seconds, "quiet": QUIET_SHARE, "batch": batch}
    own = {
        "PYTHONPATH": str(SITE_FOLDER),
        "WORKBENCH_RUN_DIR": str(folder),
        "WORKBENCH_MEASURE": json.dumps(asked),
    }
    module = str(script).startswith("-m ")
    words = str(script).split() if module else [str(SCRIPTS / script)]
    _run([*words, *arguments], folder, [environment() | own], warm=warm)
    return json.loads((folder / "measured" / "rank-0.json").read_text())


def measured(case: Case, folder: Path, seconds: float = 0.2, *, warm: bool = False) -> Workload:
    """What two probes make of the script; its steps are timed for so long."""
    first = probe(case.script, case.arguments, folder / "first", None, seconds, warm=warm)
    samples = samples_of(first, usual_value(SCRIPTS / case.script, case.arguments))
    ways = other_batches(SCRIPTS / case.script, case.arguments, samples, first["loader_batch"])
    way = next(iter(ways))
    second = probe(case.script, way.arguments, folder / "second", way.loader, seconds, warm=warm)
    other = samples_of(second, way.value)
    assert other != samples, (way, samples)
    return workload_of(case.script, [first, second], [samples, other])


def predicted_bytes(workload: Workload, case: Case) -> int:
    """Peak of one rank of the check, beside the framework."""
    ranks = 1 if case.strategy == "single" else 2
    strategy = Strategy.parse(case.strategy, ranks)
    estimate = training_memory(replace(workload, micro_batch=case.samples), strategy, "cpu")
    return sum(size for name, size in estimate.parts.items() if name not in OUTSIDE_ALLOCATOR)


def predicted_seconds(workload: Workload, samples: int) -> float:
    """Of a step of one process on this host with so many samples per micro-batch."""
    alone = Strategy.parse("single", 1)
    step = predict_step(replace(workload, micro_batch=samples), alone, detect_host(), None)
    assert step is not None
    return step.step_seconds


def bare_seconds(case: Case, folder: Path, steps: int = 24) -> list[float]:
    """Seconds of the steps of the check on one process, without probe and without ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["-m", "tests.measure.ledger", "--bare", str(folder / "bare"), str(steps)]
    subprocess.run(
        [sys.executable, *command, str(SCRIPTS / case.script), *case.checked],
        cwd=folder,
        env=environment() | dict(case.environment),
        check=True,
        timeout=300,
    )
    return json.loads((folder / "bare-0.json").read_text())["seconds"][2:]


def ledger_bytes(case: Case, folder: Path, *, warm: bool = False) -> int:
    """The highest peak of live storages of a rank of the check."""
    ranks = 1 if case.strategy == "single" else 2
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(SCRIPTS.parent / "ledger.py"), str(folder / "peak"), str(case.steps)]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    more = _FSDP if case.strategy == "fsdp" else {}
    if case.wrap:
        more = more | {"FSDP_TRANSFORMER_CLS_TO_WRAP": case.wrap}
    environments = [
        {name: value for name, value in environment().items() if name != "PYTHONPATH"}
        | (group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {})
        | more
        | dict(case.environment)
        for rank in range(ranks)
    ]
    _run([*words, str(SCRIPTS / case.script), *case.checked], folder, environments, warm=warm)
    peaks = [json.loads(path.read_text())["peak"] for path in folder.glob("peak-*.json")]
    assert len(peaks) == ranks
    return max(peaks)

"""`measure`: run a script for a few steps, twice, and keep what it trains."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.describe.checks import require_instance, require_number
from workbench.describe.detection import detect_host
from workbench.describe.measured import cpu_text
from workbench.launching.launch import start
from workbench.launching.prepare.build_request import request
from workbench.launching.prepare.launcher_process import SINGLE_PROCESS_VARIABLES
from workbench.launching.prepare.targets import as_script_words, resolve
from workbench.launching.run import Run
from workbench.measuring.batches import OtherBatch, other_batches, usual_value
from workbench.measuring.described import QUIET_SHARE, samples_of, workload_of
from workbench.measuring.short_run import ShortRunError, last_output
from workbench.store.files import MAX_TRACE_BYTES, read_json, read_json_or_why
from workbench.store.layout import RunPaths
from workbench.store.measurements import (
    FOLDER,
    Measurement,
    content_hash,
    keep,
)
from workbench.store.record import starts_ranks
from workbench.store.runs import Store

VARIABLE = "WORKBENCH_MEASURE"
USUAL_TIMEOUT = 900.0
_TIMED_SECONDS = 2.0
_POLL_SECONDS = 0.2
_LEAVE_SECONDS = 60.0  # for all ranks, after rank 0 has measured
_COMPILES = re.compile(rb"torch[._]compile|(?<!\bre)\.compile\(")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """One measured run that has ended well."""

    run: Run
    record: dict[str, Any]
    samples: int


class ProbeError(ShortRunError):
    """A script could not be measured; `log` is what it said last."""


def measure(
    script: str | os.PathLike[str],
    arguments: Sequence[Any] = (),
    *,
    cpu: bool = False,
    store: str | os.PathLike[str] | Store | None = None,
    timeout: float = USUAL_TIMEOUT,
    on_progress: Progress = lambda _: None,
) -> Measurement:
    """Run a script for 3 to 32 optimizer steps on this host, and keep what it trains.

    Estimates, plans and launches of the script use it from then on, for any layout, batch size and
    GPU. A second run at another batch size tells what grows with the batch.

    Args:
        script: Path of a Python script, or a module (``-m package.train``).
        arguments: Its own arguments; as small as memory and time want it.
        cpu: Measure on the CPU even if there are GPUs.
        store: Run store.
        timeout: Seconds for each run; loading data counts.
        on_progress: Called with a line of what is under way; what it raises ends the measurement.

    Raises:
        ProbeError: it failed, or made fewer than two optimizer steps; `log` is its last output.
        UsageError: there is no such script.
        StoreError: the run store cannot be written.
    """
    require_instance("script", (str, os.PathLike), script, "the path of a script, as 'train.py'")
    require_number("timeout", timeout, above=0)
    name, arguments = os.fspath(script), tuple(as_script_words(arguments))
    target, runs = resolve(name), Store(store)
    content = content_hash(target.path)
    prober = _Prober(name, cpu=cpu, store=runs, timeout=timeout, on_progress=on_progress)
    value = usual_value(target.path, arguments)
    first = prober.run(arguments, value, None, "the script's own batch size")
    ways = other_batches(target.path, arguments, first.samples, first.record.get("loader_batch"))
    second, source = prober.second(first, list(ways))
    probes = [first] if second is None else [first, second]
    _check_unchanged(target.path, content, first.record["files"])
    workload = workload_of(
        target.path.name,
        [probe.record for probe in probes],
        [probe.samples for probe in probes],
        cpu=cpu_text(detect_host()),
        notes=_compiled(target.path, first.record["files"], arguments),
    )
    measurement = Measurement(
        script=str(target.path),
        arguments=arguments,
        workload=workload,
        content=content or "",
        run=first.run.id,
        measured_at=time.time(),
        batch_value=value,
        batch_default=usual_value(target.path, ()),
        batch_source=source,
        files=tuple(sorted(first.record["files"].items())),
    )
    keep(runs, measurement, first.run.directory)
    return measurement


def _check_unchanged(script: Path, content: str | None, files: Mapping[str, str]) -> None:
    """What is kept must be of what ran: a script takes minutes, and people edit meanwhile."""
    now = {script: content} | {script.parent / name: old for name, old in files.items()}
    changed = next((path for path, old in now.items() if content_hash(path) != old), None)
    if changed is not None:
        raise ProbeError(f"{changed} has changed while it was measured. Measure it again.")


def _compiled(script: Path, files: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """A sentence where the script seems to compile its model."""
    texts = [" ".join(arguments).encode()]
    for path in (script, *(script.parent / name for name in files)):
        with contextlib.suppress(OSError):
            texts.append(path.read_bytes())
    if not any(map(_COMPILES.search, texts)):
        return []
    return ["torch.compile is off while a script is measured; compiled, it keeps and moves less"]


class _Prober:
    """Runs one script as often as its measurement needs."""

    def __init__(
        self, script: str, *, cpu: bool, store: Store, timeout: float, on_progress: Progress
    ) -> None:
        self._script, self._cpu, self._store = script, cpu, store
        self._timeout, self._on_progress = timeout, on_progress
        self._environment = {"TORCHDYNAMO_DISABLE": "1"}

    def second(self, first: _Probe, ways: Sequence[OtherBatch]) -> tuple[_Probe | None, str]:
        """The script at another batch size, by the first way that changes it."""
        for way in ways:
            try:
                label = f"another batch size by {way.source}"
                probe = self.run(way.arguments, way.value, way.loader, label)
            except ProbeError:
                continue  # it does not take it so: the next way, or one batch size alone
            if probe.samples != first.samples:
                return probe, way.source
        return None, ""

    def run(
        self,
        arguments: Sequence[str],
        value: int | None,
        loader: tuple[int, int] | None,
        label: str,
    ) -> _Probe:
        """One measured run; `value` is the batch size that it is asked for, where that is known.

        Raises:
            ProbeError: it failed, or made too few steps.
        """
        probe_options = {"seconds": _TIMED_SECONDS, "quiet": QUIET_SHARE, "batch": loader}
        launch_request = request(
            self._script,
            arguments,
            strategy="single",
            processes=1,
            cpu=self._cpu,
            name=f"measure-{Path(self._script.split()[-1]).stem}",
            store=self._store,
            warm=True,
            environment={VARIABLE: json.dumps(probe_options), **self._environment},
        )
        run = start(replace(launch_request, part_of="measure"))
        self._await(run, label)
        if _wants_launcher(run) and not SINGLE_PROCESS_VARIABLES.keys() & self._environment.keys():
            self._environment |= SINGLE_PROCESS_VARIABLES
            return self.run(arguments, value, loader, label)
        place = run.directory / FOLDER / "rank-0.json"
        record, why = read_json_or_why(place, MAX_TRACE_BYTES)
        if why is not None and why.startswith("larger"):
            raise ProbeError(f"{place} cannot be read: it is {why}.", last_output(run))
        if record is None or not record.get("traced"):
            raise _why(run, record, self._script)
        return _Probe(run=run, record=record, samples=samples_of(record, value))

    def _await(self, run: Run, label: str) -> None:
        begun = time.monotonic()
        measured_at: float | None = None
        with contextlib.ExitStack() as ended_early:
            ended_early.callback(run.stop, now=True)  # Ctrl-C, or what `on_progress` raises
            while run.status.live:
                if measured_at is None and _is_measured(run):
                    measured_at = time.monotonic()
                if time.monotonic() - (measured_at or time.monotonic()) > _LEAVE_SECONDS:
                    return  # with rank 0 gone, others may wait for it forever: they are ended
                if time.monotonic() - begun > self._timeout:
                    more = "with less data or a smaller batch, or a longer --timeout."
                    if starts_ranks(RunPaths(run.directory)):
                        more = "with which it starts one rank: it starts its ranks itself."
                    raise ProbeError(
                        f"{run.id} made no third step within {self._timeout:g} s. "
                        f"Give arguments {more}",
                        last_output(run),
                    )
                self._on_progress(_stage(run, label))
                time.sleep(_POLL_SECONDS)
            ended_early.pop_all()


def _is_measured(run: Run) -> bool:
    """Whether all that is read is there, of a script that starts its ranks itself."""
    written = (run.directory / FOLDER / "rank-0.json").exists()
    return written and starts_ranks(RunPaths(run.directory))


def _wants_launcher(run: Run) -> bool:
    """Whether a script that always makes a process group missed torchrun's variables."""
    end: dict[str, Any] = read_json(RunPaths(run.directory).exit) or {}
    ending: dict[str, Any] = end.get("finding") or {}
    return ending.get("kind") == "no-launcher"


def _stage(run: Run, label: str) -> str:
    """What the run is doing now."""
    steps = (run.view() or {}).get("steps") or 0
    if steps:
        return f"{label}: step {steps}"
    return f"{label}: starting, importing, loading data"


def _why(run: Run, record: dict[str, Any] | None, script: str) -> ProbeError:
    """Why a run that has ended was not measured."""
    status, log = run.status, last_output(run)
    if record is not None and record.get("error"):
        return ProbeError(f"The step of {script} could not be traced: {record['error']}", log)
    if status.outcome in {"failed", "interrupted", "stopped"}:
        text = (status.message or "").rstrip(".")
        return ProbeError(f"{script} ended before it was measured: {status.outcome}. {text}.", log)
    steps = 0 if record is None else int(record.get("steps", 0))
    if steps:
        return ProbeError(
            f"{script} made {steps} optimizer step{'s' * (steps > 1)}; two are needed, the first "
            "to warm up. Give arguments with more steps or more data.",
            log,
        )
    return ProbeError(
        f"{script} ended without an optimizer step of torch, so there is nothing to measure. Give "
        "it the arguments with which it trains.",
        log,
    )

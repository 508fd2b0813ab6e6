"""When a job is interrupted, and by what: drawn from a plan's rates, traced, or asked for."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import UsageError
from workbench.estimate.cost.hours import Job as CostJob
from workbench.estimate.cost.spot import UNKNOWN_HOURS

HOUR = 3600.0
SPOT, LOST, ECC, HOST, TRACE, THROTTLE = "spot", "gpu-lost", "ecc", "host", "trace", "throttle"
FAILURES = ((LOST, 171), (ECC, 91), (HOST, 157))
"""Of 419 unplanned interruptions of Llama 3 405B (arXiv 2407.21783, table 5): faulty GPUs (148)
with their system processors (17), thermal interfaces and sensors (6); their HBM3 (72) and SRAM
(19); all else, of hosts, network and software, and 6 silent data corruptions. The counts are those
of public transcriptions of the table, as glennklockwood.com/garden/component-reliability. The
30.1 % that it prints for faulty GPUs are not 148 of 419."""
INJECTED = (THROTTLE, ECC, LOST, SPOT)
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": HOUR, "d": 24 * HOUR}
_FAULT = re.compile(r"([a-z-]+)@(\d+(?:\.\d+)?)(s|m|min|h|d)(?::(?:(\d{1,9}):)?(\d{1,9}))?")
_MOST_BYTES = 16_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happens to one machine or GPU of the job."""

    at: float
    """Seconds after the machines were rented."""
    cause: str
    """spot (taken by its provider), gpu-lost, ecc, host, trace, or throttle: that one slows the job
    and does not interrupt it."""
    gpu: int
    """Of all machines, counted from 0; the machine is the one that it is in."""


def read_fault(text: str, nodes: int, each: int) -> Event:
    """A fault as people give it, of a job on `nodes` machines with `each` GPUs.

    ``throttle@2h:5`` is GPU 5 of all, two hours after the start; ``throttle@2h:1:5`` is GPU 5 of
    machine 1.

    Raises:
        UsageError: anything else, or the job has no such machine or GPU.

    >>> read_fault("gpu-lost@90m:1:3", nodes=2, each=8)
    Event(at=5400.0, cause='gpu-lost', gpu=11)
    """
    match = _FAULT.fullmatch(text.strip())
    if match is None or match[1] not in INJECTED:
        raise UsageError(
            f"--fault {text}: give KIND@TIME, KIND@TIME:GPU or KIND@TIME:NODE:GPU, such as "
            f"throttle@2h:5 or gpu-lost@2h:1:3. Kinds: {', '.join(INJECTED)}. Times end with s, m, "
            "h or d."
        )
    node, gpu = int(match[4] or 0), int(match[5] or 0)
    if match[4] is not None and (node >= nodes or gpu >= each):
        raise UsageError(
            f"--fault {text}: the job has nodes 0 to {nodes - 1}, each with GPUs 0 to {each - 1}."
        )
    if node * each + gpu >= nodes * each:
        raise UsageError(f"--fault {text}: the job has GPUs 0 to {nodes * each - 1}.")
    at = float(match[2]) * _UNITS[match[3]]
    return Event(at=at, cause=match[1], gpu=node * each + gpu)


def read_trace(path: Path) -> tuple[float, ...]:
    """Seconds from one interruption of the job to the next, one a line; the first word counts.

    Raises:
        UsageError: it cannot be read, or a line is no number above 0.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than a trace: {_MOST_BYTES:,} bytes at most.")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"The trace {path} cannot be read: {error}.") from error
    words = [(number, line.split("#")[0].split()) for number, line in enumerate(lines, start=1)]
    seconds = tuple(_second(path, number, match[0]) for number, match in words if match)
    if not seconds:
        raise UsageError(f"{path} has no numbers. Write seconds of uptime, one a line.")
    return seconds


def _second(path: Path, number: int, word: str) -> float:
    try:
        value = float(word.rstrip(",;"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(
            f"{path}, line {number}: {word!r} is not a time. Write seconds of uptime above 0."
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often the whole job is interrupted, by what a plan states."""

    spot_per_second: float
    """A machine is taken by its provider."""
    failures_per_second: float
    """A machine or GPU fails."""

    @classmethod
    def of(cls, job: CostJob) -> Rates:
        """What the plan's bill was made with; a rate that no one publishes as it was assumed."""
        hours = job.interruption_hours or UNKNOWN_HOURS[1]
        spot = job.nodes / (hours * HOUR) if job.plan.spot else 0.0
        failing = job.gpus / job.plan.failure_gpu_hours if job.plan.failure_gpu_hours else 0.0
        return cls(spot_per_second=spot, failures_per_second=failing / HOUR)

    @property
    def per_second(self) -> float:
        """Both together."""
        return self.spot_per_second + self.failures_per_second


def drawn(rates: Rates, gpus: int, chance: random.Random) -> Iterator[Event]:
    """Interruptions at random (exponential), each of a machine or GPU drawn evenly."""
    at = 0.0
    while rates.per_second:
        at += chance.expovariate(rates.per_second)
        spot = chance.random() * rates.per_second < rates.spot_per_second
        names, weights = [name for name, _ in FAILURES], [count for _, count in FAILURES]
        cause = SPOT if spot else chance.choices(names, weights)[0]
        yield Event(at=at, cause=cause, gpu=chance.randrange(gpus))


def traced(seconds: Sequence[float], gpus: int, chance: random.Random) -> Iterator[Event]:
    """Interruptions as in a trace, from a place in it that is drawn; after its end, its beginning.

    Which machine it is, is drawn: a trace tells times alone.
    """
    begin, at = chance.randrange(len(seconds)), 0.0
    for uptime in itertools.islice(itertools.cycle(seconds), begin, None):
        at += uptime
        yield Event(at=at, cause=TRACE, gpu=chance.randrange(gpus))

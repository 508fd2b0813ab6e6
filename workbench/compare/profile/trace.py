"""Reads one rank's trace: what it computed, communicated, copied and waited for, and when.

On a GPU, computing is a kernel that runs and communicating is one of NCCL's. On CPU, computing is
an operator's time (that between two of them is Python's own, which is idle here as it is on a GPU,
and so is what autograd wraps around them), and communicating is a gloo collective under way, from
the time it was handed over until it is done.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from workbench.compare.profile.spans import Span, united, without
from workbench.errors import StoreError
from workbench.store.files import open_file

MAX_BYTES = 512 << 20  # of the trace, unpacked
MEMORY_POINTS = 300
_COMMUNICATION = ("c10d::", "_c10d_functional::", "c10d_functional::", "record_param_comms")
_WRAPPERS = ("autograd::", "torch::autograd::")  # hooks run inside, and they may wait
_COMPILED = ("Torch-Compiled Region", "CompiledFunction")
_COLLECTIVES = ("gloo:", "mpi:", "ucc:")
_DEVICE_COPIES = {"gpu_memcpy", "gpu_memset"}
_BETWEEN = ("HtoD", "DtoH")
"""In the names of copies over PCIe; the others stay on the card and are its own work."""
_LOADER = "enumerate(DataLoader)"
_NOT_MATCHED = ("send", "recv", "Send", "Recv")  # between two ranks: no order that all share

_Event = tuple[str, str, Any, float, float]  # kind, name, thread, begin, end


@dataclass(slots=True)
class RankTrace:
    """One rank's time by what was done in it, in seconds after an origin; spans may overlap."""

    device: str = "cpu"
    """``cuda`` where kernels ran."""
    compute: list[Span] = field(default_factory=list[Span])
    """Kernels, or operators that compute."""
    communication: list[Span] = field(default_factory=list[Span])
    """Collectives and sends under way."""
    copies: list[Span] = field(default_factory=list[Span])
    """Copies between host and device."""
    loading: list[Span] = field(default_factory=list[Span])
    """The main thread asks a DataLoader for a batch."""
    operations: list[tuple[str, float, float]] = field(
        default_factory=list[tuple[str, float, float]]
    )
    """Name, begin and own seconds of each kernel or operator."""
    collectives: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    """By name, in order: those that all ranks of a group enter together."""
    memory: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """Bytes allocated, where allocations were traced."""


def read_events(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """The trace's zero in Unix nanoseconds, and its events.

    Raises:
        StoreError: it cannot be read, is too large, or is no trace.
    """
    try:
        with os.fdopen(open_file(path), "rb") as packed, gzip.open(packed) as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise StoreError(
                f"{path} has more than {MAX_BYTES >> 20} MiB unpacked. Trace fewer steps, or open "
                "the file itself in Perfetto."
            )
        document = json.loads(data)
        zero = int(document.get("baseTimeNanoseconds", 0))
        listed: list[Any] = document["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is not a readable trace: {error}") from error
    return zero, [cast("dict[str, Any]", event) for event in listed if isinstance(event, dict)]


def read_trace(path: Path, origin_ns: int) -> RankTrace:
    """One rank's trace, in seconds after `origin_ns`.

    Raises:
        StoreError: it cannot be read.
    """
    zero, events = read_events(path)
    shift = zero - origin_ns
    spans: list[_Event] = []
    allocated: dict[bool, list[tuple[float, int]]] = {False: [], True: []}  # on a device?
    for event in events:
        moment, length = event.get("ts"), event.get("dur", 0)
        if not isinstance(moment, int | float) or not isinstance(length, int | float):
            continue
        begin = (moment * 1e3 + shift) * 1e-9
        name, kind = str(event.get("name", "")), str(event.get("cat", ""))
        if event.get("ph") == "X":
            spans.append((kind, name, event.get("tid"), begin, begin + length * 1e-6))
        elif name == "[memory]":
            _allocation(allocated, event.get("args"), begin)
    trace = RankTrace(memory=_thinned(allocated[True] or allocated[False]))
    if any(kind == "kernel" for kind, *_ in spans):
        trace.device = "cuda"
    _sort(trace, spans)
    return trace


def _sort(trace: RankTrace, spans: list[_Event]) -> None:
    """Put each span where it belongs."""
    operators: dict[Any, list[tuple[str, float, float]]] = defaultdict(list)
    for kind, name, thread, begin, end in spans:
        if kind == "kernel" or kind in _DEVICE_COPIES:
            _on_device(trace, kind, name, (begin, end))
        elif kind == "cpu_op":
            operators[thread].append((name, begin, end))
        elif name.startswith(_COLLECTIVES) and trace.device == "cpu":
            _communicated(trace, name, (begin, end))
        elif name.startswith(_LOADER):
            trace.loading.append((begin, end))
    if trace.device == "cpu":
        for calls in operators.values():
            _operators(trace, calls)
    for spans_alike in trace.collectives.values():
        spans_alike.sort()


def _on_device(trace: RankTrace, kind: str, name: str, span: Span) -> None:
    trace.operations.append((name, span[0], span[1] - span[0]))
    if kind in _DEVICE_COPIES and any(way in name for way in _BETWEEN):
        trace.copies.append(span)
    elif name.startswith("nccl"):
        _communicated(trace, name, span)
    else:
        trace.compute.append(span)


def _communicated(trace: RankTrace, name: str, span: Span) -> None:
    trace.communication.append(span)
    if not any(word in name for word in _NOT_MATCHED):
        trace.collectives.setdefault(name, []).append(span)


def _operators(trace: RankTrace, operators: list[tuple[str, float, float]]) -> None:
    """Own time of each operator of one thread, and the time in which it computed."""
    operators.sort(key=lambda operator: (operator[1], -operator[2]))
    stack: list[list[Any]] = []  # name, begin, end, seconds of those it called
    for name, begin, end in operators:
        while stack and stack[-1][2] <= begin:
            _count(trace, stack.pop())
        if stack:
            stack[-1][3] += min(end, stack[-1][2]) - begin
        stack.append([name, begin, end, 0.0])
    while stack:
        _count(trace, stack.pop())
    calls = united(
        (begin, end) for name, begin, end in operators if name.startswith(_COMMUNICATION)
    )
    computing = united((begin, end) for name, begin, end in operators if _computes(name))
    trace.compute += without(computing, calls)  # such a call waits inside


def _computes(name: str) -> bool:
    if name.startswith((*_COMMUNICATION, *_WRAPPERS)):
        return False
    return "::" in name or name.startswith(_COMPILED)


def _count(trace: RankTrace, operator: list[Any]) -> None:
    name, begin, end, called = operator
    if _computes(name):
        trace.operations.append((name, begin, max(0.0, end - begin - called)))


def _allocation(allocated: dict[bool, list[tuple[float, int]]], args: Any, moment: float) -> None:
    """Bytes allocated after one allocation, on the host (device type 0) or on a device."""
    if not isinstance(args, dict):
        return
    fields = cast("dict[str, Any]", args)
    total, kind = fields.get("Total Allocated"), fields.get("Device Type")
    if isinstance(total, int) and total >= 0 and isinstance(kind, int):
        allocated[kind != 0].append((moment, total))


def _thinned(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most `MEMORY_POINTS`, each the fullest moment of its group: peaks survive."""
    points.sort()
    size = -(-len(points) // MEMORY_POINTS) or 1
    groups = (points[at : at + size] for at in range(0, len(points), size))
    return [max(group, key=lambda point: point[1]) for group in groups]

"""One trace of all ranks for Perfetto: a process row per rank, all on one clock, steps on top.

The clock is the host's, which the ranks of one host share; ranks of several hosts are as well
aligned as their clocks are.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from workbench.compare.profile.trace import read_events
from workbench.compare.profile.values import Profile, RankProfile

MERGED = "merged.trace.json.gz"
_STEP_THREAD = 1 << 30  # the number of no thread: Linux ends at 1 << 22
_DROPPED = {"process_name", "process_labels", "process_sort_index"}
_FLOWS = {"s", "t", "f"}
_RANK_IDS = 1 << 32  # flow ids of one rank lie apart from the next rank's


def merged_trace(profile: Profile) -> Path:
    """Write the merged trace beside the ranks' unless it is there; returns its path.

    Raises:
        StoreError: a rank's trace cannot be read.
        OSError: the folder cannot be written.
    """
    target = profile.folder / MERGED
    if target.exists() or not profile.ranks:
        return target
    base = min(read_events(rank.trace)[0] for rank in profile.ranks)
    partial = target.with_name(f".{MERGED}.{os.getpid()}")
    try:
        with gzip.open(partial, "wt", encoding="utf-8", compresslevel=3) as file:
            file.write(f'{{"displayTimeUnit": "ms", "baseTimeNanoseconds": {base}')
            file.write(', "traceEvents": [\n')
            first = True
            for rank in profile.ranks:
                for event in _rank_events(rank, base, profile.origin_ns):
                    file.write(("" if first else ",\n") + json.dumps(event))
                    first = False
            file.write("\n]}\n")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _rank_events(profile: RankProfile, base: int, origin_ns: int) -> list[dict[str, Any]]:
    """The events of one rank under its number, and its steps as a row of their own."""
    zero, events = read_events(profile.trace)
    shift = (zero - base) * 1e-3
    moved = [_named(profile.rank, "process_name", {"name": f"rank {profile.rank}"})]
    moved.append(_named(profile.rank, "process_sort_index", {"sort_index": profile.rank}))
    for name, args in (
        ("thread_name", {"name": "steps"}),
        ("thread_sort_index", {"sort_index": -1}),
    ):
        moved.append({**_named(profile.rank, name, args), "tid": _STEP_THREAD})
    at = (origin_ns - base) * 1e-3 + profile.begun_seconds * 1e6
    for step in profile.steps:
        length = step.wall_seconds * 1e6
        about = {"name": f"step {step.step}", "cat": "step", "ph": "X"}
        moved.append({**about, "pid": profile.rank, "tid": _STEP_THREAD, "ts": at, "dur": length})
        at += length
    moved += [_moved(event, profile.rank, shift) for event in events if _is_kept(event)]
    return moved


def _named(rank: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "tid": 0, "ts": 0, "args": args}


def _is_kept(event: dict[str, Any]) -> bool:
    return event.get("name") not in _DROPPED and event.get("cat") != "Trace"


def _moved(event: dict[str, Any], rank: int, shift: float) -> dict[str, Any]:
    moved = {**event, "pid": rank}
    if isinstance(event.get("ts"), int | float):
        moved["ts"] = event["ts"] + shift
    if event.get("ph") in _FLOWS and isinstance(event.get("id"), int):
        moved["id"] = rank * _RANK_IDS + event["id"]
    return moved

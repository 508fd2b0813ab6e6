"""A profile: where each rank's time went in the traced steps, and which rank waits.

At each moment of a step a rank does the first of these that applies: it computes; it communicates
and does not compute (*exposed* communication); it copies between host and device; it waits for
input; else it is idle. So the parts add up to the step. See `trace` for what counts as
what.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, cast

from workbench.compare.profile.spans import Span, united, within, without
from workbench.compare.profile.trace import RankTrace, read_trace
from workbench.compare.profile.values import Operation, Profile, RankProfile, StepTime, Wait
from workbench.errors import UsageError
from workbench.store.files import read_file, read_json
from workbench.store.layout import RunPaths

TOP_OPERATIONS = 20
_REASON_BYTES = 4096
_Window = tuple[int, float, float, float | None]  # step, begin, end, seconds without data


def profiles(paths: RunPaths) -> list[Path]:
    """The folders of the run's profiles, oldest first."""
    try:
        folders = [
            path for path in paths.profiles.iterdir() if path.is_dir() and not path.is_symlink()
        ]
    except OSError:
        return []
    return sorted(folder for folder in folders if folder.name.startswith("step-"))


def read_profile(paths: RunPaths, folder: Path | None = None) -> Profile:
    """Read and analyse a profile; None = the latest.

    Raises:
        UsageError: the run has none.
        StoreError: a trace cannot be read.
    """
    folders = profiles(paths)
    if folder is None and not folders:
        raise UsageError(
            f"{paths.directory.name} has no profile. A run is traced while it trains: workbench "
            "profile RUN; or start one that is traced: workbench profile SCRIPT_OR_RECIPE"
        )
    folder = folder or folders[-1]
    abouts = {rank: about for rank, about in accounts(folder).items() if about.get("steps")}
    problems = {rank: why for rank, why in reasons(folder).items() if rank not in abouts}
    origin = min((int(about["begun_ns"]) for about in abouts.values()), default=0)
    traces = {rank: read_trace(folder / f"rank-{rank}.trace.json.gz", origin) for rank in abouts}
    windows = {rank: _windows(about, origin) for rank, about in abouts.items()}
    ranks = [
        _rank(rank, traces[rank], windows[rank], abouts[rank], folder) for rank in sorted(abouts)
    ]
    return Profile(
        run=paths.directory.name,
        folder=folder,
        origin_ns=origin,
        ranks=tuple(ranks),
        problems=problems,
        operations=_operations(traces, windows),
        waits=_waits(traces, windows),
    )


def _number(path: Path) -> int | None:
    """The rank in ``rank-N.something``."""
    text = path.name.removeprefix("rank-").split(".", 1)[0]
    return int(text) if text.isdecimal() else None


def accounts(folder: Path) -> dict[int, dict[str, Any]]:
    """Each rank's account of its trace, where it is whole."""
    by_rank: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("rank-*.json")):
        rank, about = _number(path), read_json(path)
        if rank is None or about is None or path.name != f"rank-{rank}.json":
            continue
        listed: Any = about.get("steps")
        steps = (
            [event for event in cast("list[Any]", listed) if _is_step(event)]
            if isinstance(listed, list)
            else []
        )
        if isinstance(about.get("begun_ns"), int):
            by_rank[rank] = {**about, "steps": steps}
    return by_rank


def _is_step(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and isinstance(cast("dict[str, Any]", event).get("step"), int)
        and isinstance(cast("dict[str, Any]", event).get("end_ns"), int)
    )


def reasons(folder: Path) -> dict[int, str]:
    """Why ranks have no trace, in their own words."""
    by_rank: dict[int, str] = {}
    for path in sorted(folder.glob("rank-*.error")):
        rank = _number(path)
        if rank is not None:
            by_rank[rank] = read_file(path, _REASON_BYTES).decode("utf-8", errors="replace")
    return by_rank


def _windows(about: dict[str, Any], origin: int) -> list[_Window]:
    """Step, begin, end and seconds that the hook saw it wait for data."""
    begin = (about["begun_ns"] - origin) * 1e-9
    windows: list[_Window] = []
    for step in about["steps"]:
        end, waited = (step["end_ns"] - origin) * 1e-9, step.get("data_seconds")
        windows.append(
            (step["step"], begin, end, waited if isinstance(waited, int | float) else None)
        )
        begin = end
    return windows


def _rank(
    rank: int,
    trace: RankTrace,
    windows: list[_Window],
    about: dict[str, Any],
    folder: Path,
) -> RankProfile:
    loading = united(trace.loading)
    if not loading:  # no DataLoader of torch's: what the hook saw between two steps
        loading = united((begin, begin + waited) for _, begin, _, waited in windows if waited)
    compute = united(trace.compute)
    if trace.device == "cpu":  # to put a batch together is part of waiting for it
        compute = without(compute, loading)
    layers = [compute, united(trace.communication), united(trace.copies), loading]
    exclusive: list[list[Span]] = []
    above: list[Span] = []
    for layer in layers:
        exclusive.append(without(layer, above))
        above = united([*above, *layer])
    return RankProfile(
        rank=rank,
        device=trace.device,
        begun_seconds=windows[0][1],
        steps=tuple(_step(window, exclusive, layers[1]) for window in windows),
        memory=tuple(trace.memory),
        stop_seconds=about.get("stop_seconds"),
        export_seconds=about.get("export_seconds"),
        trace=folder / f"rank-{rank}.trace.json.gz",
    )


def _step(window: _Window, exclusive: list[list[Span]], talk: list[Span]) -> StepTime:
    step, begin, end, _ = window
    parts = [within(layer, begin, end) for layer in exclusive]
    return StepTime(
        step=step,
        wall_seconds=end - begin,
        compute_seconds=parts[0],
        exposed_seconds=parts[1],
        copies_seconds=parts[2],
        input_seconds=parts[3],
        idle_seconds=max(0.0, end - begin - sum(parts)),
        communication_seconds=within(talk, begin, end),
    )


def _operations(
    traces: dict[int, RankTrace], windows: dict[int, list[_Window]]
) -> tuple[Operation, ...]:
    """The longest operations, per step and rank."""
    calls: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    count = sum(map(len, windows.values()))
    for rank, trace in traces.items():
        begin, end = windows[rank][0][1], windows[rank][-1][2]
        for name, at, length in trace.operations:
            if begin <= at < end:
                calls[name] += 1
                seconds[name] += length
    longest = sorted(seconds, key=lambda name: -seconds[name])[:TOP_OPERATIONS]
    return tuple(
        Operation(name=name, calls=calls[name] / count, seconds=seconds[name] / count)
        for name in longest
    )


def _waits(traces: dict[int, RankTrace], windows: dict[int, list[_Window]]) -> tuple[Wait, ...]:
    """Who waits for whom, from the times at which the ranks enter the same collectives.

    The n-th collective of a name is the same one on all ranks, where all have as many of them and
    it ends on none before the last has entered: else it was another group's. A rank that computes
    meanwhile does not wait.
    """
    spans: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for name in {name for trace in traces.values() for name in trace.collectives}:
        lists = {rank: trace.collectives.get(name, []) for rank, trace in traces.items()}
        if len({len(spans) for spans in lists.values()}) == 1 and len(lists) > 1:
            for at in range(len(next(iter(lists.values())))):
                _add_waits(spans, {rank: entered[at] for rank, entered in lists.items()})
    busy = {rank: united(trace.compute) for rank, trace in traces.items()}
    waits: list[Wait] = []
    for (rank, last), waited in spans.items():
        begin, end = windows[rank][0][1], windows[rank][-1][2]
        seconds = within(without(united(waited), busy[rank]), begin, end) / len(windows[rank])
        waits.append(Wait(rank=rank, for_rank=last, seconds=seconds))
    waits.sort(key=lambda wait: -wait.seconds)
    return tuple(wait for wait in waits if wait.seconds > 0)


def _add_waits(spans: dict[tuple[int, int], list[Span]], entered: dict[int, Span]) -> None:
    """One collective: all but the last rank wait from their entering to its."""
    last = max(entered, key=lambda rank: entered[rank][0])
    latest = entered[last][0]
    if any(end < latest for _, end in entered.values()):
        return
    for rank, (begin, _) in entered.items():
        if rank != last:
            spans[rank, last].append((begin, latest))

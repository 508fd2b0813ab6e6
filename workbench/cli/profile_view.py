"""A profile for people: each rank's shares, the longest operations, who waits for whom."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from workbench.cli.tables import number
from workbench.compare.profile.values import PARTS, Profile, RankProfile
from workbench.compare.profile.vendor_tools import DCGM_FIELDS
from workbench.units import format_bytes, format_column, format_seconds

_TITLES = {"exposed": "exposed comm."}
_SHOWN_OPERATIONS = 12
_NAME_WIDTH = 60


def show_profile(profile: Profile, merged: Path, console: Console) -> None:
    """Print it."""
    if profile.ranks:
        steps = profile.ranks[0].steps
        console.print(
            f"{profile.run}: steps {steps[0].step} to {steps[-1].step}, mean of a step",
            markup=False,
        )
        console.print(_shares(profile))
        console.print()
        console.print(_operations(profile))
        console.print()
        for line in profile.sentences():
            console.print(line, markup=False, soft_wrap=True)
        _files(profile, merged, console)
    for rank, why in profile.problems.items():
        console.print(f"rank {rank} has no trace: {why}", markup=False, soft_wrap=True)


def _shares(profile: Profile) -> Table:
    titles = (_TITLES.get(part, part) for part in PARTS)
    table = Table("rank", "step", *titles, "all comm.", box=None, pad_edge=False)
    memory = any(rank.memory for rank in profile.ranks)
    if memory:
        table.add_column("peak allocated")
    walls = format_column(rank.seconds("wall") for rank in profile.ranks)
    for rank, wall in zip(profile.ranks, walls, strict=True):
        cells = [_share(rank, part) for part in (*PARTS, "communication")]
        cells += [format_bytes(_peak(rank))] if memory else []
        table.add_row(str(rank.rank), wall, *cells)
    return table


def _share(rank: RankProfile, part: str) -> str:
    seconds, wall = rank.seconds(part), rank.seconds("wall")
    share = f"{seconds / wall:.0%}" if wall > 0 else "n/a"
    return f"{format_seconds(seconds)} ({share})"


def _peak(rank: RankProfile) -> int | None:
    return max((size for _, size in rank.memory), default=None)


def _operations(profile: Profile) -> Table:
    kind = "kernel" if any(rank.device == "cuda" for rank in profile.ranks) else "operator"
    table = Table(kind, "calls/step", "own time/step", "share", box=None, pad_edge=False)
    wall = sum(rank.seconds("wall") for rank in profile.ranks) / len(profile.ranks)
    for row in profile.operations[:_SHOWN_OPERATIONS]:
        name = row.name if len(row.name) <= _NAME_WIDTH else f"{row.name[: _NAME_WIDTH - 1]}…"
        share = f"{row.seconds / wall:.0%}" if wall > 0 else "n/a"
        table.add_row(escape(name), f"{row.calls:.4g}", format_seconds(row.seconds), share)
    return table


def _files(profile: Profile, merged: Path, console: Console) -> None:
    stood = [rank.stop_seconds for rank in profile.ranks if rank.stop_seconds is not None]
    if stood:
        text = f"Training paused for {format_seconds(max(stood))} after the last of them."
        console.print(text, markup=False)
    console.print(f"traces of the ranks: {profile.folder}", markup=False, soft_wrap=True)
    console.print(f"Open https://ui.perfetto.dev and load {merged}", markup=False, soft_wrap=True)


def show_gpus(gpus: dict[str, dict[str, float]], console: Console) -> None:
    """What DCGM read meanwhile, where there is one; also while the run started and warmed up."""
    if not gpus:
        return
    names = [name for name in DCGM_FIELDS.values() if any(name in gpu for gpu in gpus.values())]
    table = Table("GPU", *(name.replace("_", " ") for name in names), box=None, pad_edge=False)
    for gpu, samples in sorted(gpus.items()):
        table.add_row(escape(gpu), *(number(samples.get(name)) for name in names))
    console.print("\nDCGM, mean from the request to the traces:", markup=False)
    console.print(table)

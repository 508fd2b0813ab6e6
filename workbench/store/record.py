"""Reads run.json (as it is, or refused with what a start lacks) and the records of its ranks."""

from __future__ import annotations

from workbench.errors import StoreError
from workbench.store.files import read_json, read_json_or_why
from workbench.store.layout import RunPaths
from workbench.store.rank_records import RankEnd, RankStart
from workbench.store.run_record import RunRecord

TO_START = ("run", "script", "arguments", "command", "environment", "working_directory")
"""What a start of the same run needs."""
TO_EXPORT = ("name", "script", "arguments", "strategy")
"""What a job on other machines needs."""


def read_run(paths: RunPaths) -> RunRecord | None:
    """The record of a run; None where it is absent, unreadable or not an object."""
    document = read_json(paths.run)
    return None if document is None else RunRecord.of(document)


def read_record(paths: RunPaths, needed: tuple[str, ...] = TO_START) -> RunRecord:
    """The record of a run with at least the fields that are `needed`.

    A field whose value is of a wrong type counts as lacking, see `shapes`.

    Raises:
        StoreError: it cannot be read, or lacks some of them.
    """
    document, why = read_json_or_why(paths.run)
    if document is None:
        raise StoreError(
            f"{paths.run} cannot be read ({why or 'no such file'}), so what to start is unknown."
        )
    lacking = [name for name in needed if name not in document]
    if lacking:
        raise StoreError(
            f"{paths.run} is damaged or not written by the workbench: it lacks "
            f"{', '.join(lacking)}. Launch the script as a new run."
        )
    return RunRecord.of(document)


def read_start(paths: RunPaths, rank: int) -> RankStart | None:
    """What a rank wrote at its start; None before, or where it cannot be read."""
    document = read_json(paths.rank_start(rank))
    return None if document is None else RankStart.of(document)


def read_end(paths: RunPaths, rank: int) -> RankEnd | None:
    """What a rank wrote at its end; None before, after SIGKILL, or where it cannot be read."""
    document = read_json(paths.rank_end(rank))
    return None if document is None else RankEnd.of(document)


def starts_ranks(paths: RunPaths) -> bool:
    """Whether the script started processes of its own that joined a process group."""
    marked = (paths.metrics / "starts-ranks").exists()
    first = read_start(paths, 0)
    return marked or (first is not None and bool(first.spawned))

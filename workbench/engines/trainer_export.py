"""What ``workbench export --trainer`` writes the configuration of: a run, a plan, or a `Job`."""

from __future__ import annotations

import json
from pathlib import Path

from workbench.describe.job import Job
from workbench.engines.export_request import plan_entry
from workbench.engines.planned import planned_job
from workbench.errors import UsageError
from workbench.store.record import read_record
from workbench.store.runs import Store


def described(target: str | None, rank: int = 1, store: str | Store | None = None) -> Job:
    """The job of a run, or of number `rank` in a file of ``workbench plan --json``.

    Raises:
        UsageError: there is no such plan, or the record does not describe its job.
        RunNotFoundError: there is no such run.
    """
    if target is None:
        raise UsageError(
            "Give what to export: a run, the output of workbench plan --json, --config FILE or "
            "--model M with the options of workbench memory."
        )
    if target.endswith(".json"):
        return _planned(Path(target).expanduser(), rank)
    where = store if isinstance(store, Store) else Store(store)
    return Job.recorded(read_record(where.find(target), ("run",)).document())


def _planned(path: Path, rank: int) -> Job:
    entry = plan_entry(path, rank)
    try:
        return planned_job(entry, json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not output of this version's workbench plan --json ({error}). Write it "
            "again: workbench plan … --json > plans.json"
        ) from error

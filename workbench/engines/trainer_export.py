"""What ``workbench export --trainer`` writes the configuration of: a run, a plan, or a `Job`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.job import Job
from workbench.describe.recorded import from_document
from workbench.engines.export_request import plan_entry
from workbench.errors import UsageError
from workbench.store.record import read_record
from workbench.store.runs import Store


def described(what: str | None, rank: int = 1, store: str | Store | None = None) -> Job:
    """The job of a run, or of number `rank` in a file of ``workbench plan --json``.

    Raises:
        UsageError: there is no such plan, or the record does not describe its job.
        RunNotFoundError: there is no such run.
    """
    if what is None:
        raise UsageError(
            "Give what to export: a run, the output of workbench plan --json, --config FILE or "
            "--model M with the options of workbench memory."
        )
    if what.endswith(".json"):
        return _planned(Path(what).expanduser(), rank)
    where = store if isinstance(store, Store) else Store(store)
    return Job.recorded(read_record(where.find(what), ("run",)).document())


def _planned(path: Path, rank: int) -> Job:
    entry = plan_entry(path, rank)
    try:
        document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["workload"]
        sizes = {name: entry[name] for name in ("micro_batch", "accumulate")}
        workload = replace(from_document(Workload, document), **sizes)
        strategy = Strategy.parse(entry["strategy"], entry["gpus"]).with_options(
            recompute=entry["recompute"],
            recompute_parts=tuple(entry["recompute_parts"]),
            offload=tuple(entry["offload"]),
        )
        nodes = int(entry["nodes"])
        cluster = Cluster.rented(entry["gpu"], gpus=entry["gpus"] // nodes, nodes=nodes)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not output of this version's workbench plan --json ({error}). Write it "
            "again: workbench plan … --json > plans.json"
        ) from error
    return Job(workload=workload, strategy=strategy, cluster=cluster)

"""Whether a run has something left of its limits before it is resumed."""

from __future__ import annotations

from typing import Any

from workbench.errors import UsageError
from workbench.launching.prepare.limits import check_limits_known
from workbench.recover.limits import RunSpending, used_up
from workbench.recover.policy import Recovery
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord


def check_limits(paths: RunPaths, run: RunRecord) -> None:
    """Refuse a run that would be stopped at once, or that no one could stop.

    Raises:
        UsageError: a limit is used up, or what it limits is not known here.
    """
    recovery = Recovery.read(run.recovery)
    view = read_json(paths.view) or {}
    energy: dict[str, Any] = view.get("energy") or {}
    spent = RunSpending(usd=view.get("usd_so_far"), kwh=energy.get("kwh"))
    why = used_up(recovery.limits, spent, paths.directory)
    if why:
        raise UsageError(why)
    check_limits_known(recovery, run.usd_per_hour, run.device, run.cluster)

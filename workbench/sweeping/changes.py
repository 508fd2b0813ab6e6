"""Which trials of a sweep trained with another script, or on other hardware, than its first."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from workbench.errors import WorkbenchError
from workbench.launching.resume.branch import rerun_request
from workbench.provenance.differences import changes, is_script_or_machine
from workbench.sweeping.files import ChangeDoc, SweepFiles
from workbench.sweeping.progress import ENDED, TrialRow


def tell_changes(files: SweepFiles, trials: Sequence[TrialRow]) -> list[str]:
    """Keep what is another now than when it was last resumed, or made; in sentences."""
    was, now = dict[str, object](), dict[str, object]()
    with contextlib.suppress(WorkbenchError):  # the controller says why nothing can be started
        for row in rerun_request(files.template)[1]:
            if is_script_or_machine(row["what"]):
                was[row["what"]], now[row["what"]] = row["was"], row["now"]
    before = files.changes()
    if now == (before[-1].get("now") if before else {}):
        return []
    first = min((trial.number for trial in trials if trial.state not in ENDED), default=len(trials))
    change: ChangeDoc = {"trial": first, "now": now, "words": changes(was, now)}
    if not change["words"] and not before:  # another name of the same host
        return []
    files.tell_change(change)
    return [noted(change)]


def noted(change: ChangeDoc) -> str:
    """A change in a sentence."""
    trial = f"From trial {change.get('trial', 0)} on"
    words = change.get("words")
    if not words:
        return f"{trial} script and machine are again those that the sweep began with."
    return (
        f"{trial}: {', '.join(words)} since the sweep began. Its trials are compared all the same; "
        "a new sweep trains all of them alike."
    )


def changed_for(told: Sequence[ChangeDoc], trial: int) -> str:
    """What was another when a trial was trained; "" = nothing."""
    of_trial = [change for change in told if change.get("trial", 0) <= trial]
    return ", ".join(of_trial[-1].get("words") or ()) if of_trial else ""

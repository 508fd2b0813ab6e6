"""One look at a choice: the checked request, or the one sentence that says why not."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import workbench as wb
from workbench.errors import sentence
from workbench.launching.prepare.build_request import MAX_CPU_RANKS
from workbench.planning.pick import StrategyPick, pick
from workbench_widgets.strategy.choice import HAND, StrategyChoice

_DECIDE_NOTHING = ("name", "warm")


class NoTargetError(ValueError):
    """No script was named yet: the form is unfinished, which is not an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one setting comes to."""

    request: wb.Request | None = None
    """What would be started; None when it cannot be."""
    problem: str = ""
    """Why it cannot, and what would work."""
    missing: str = ""
    """What has to be given before anything can be said; it is not an error."""
    target: str = ""
    """The recipe or script that was looked at; "" where it is not known."""
    why: tuple[str, ...] = ()
    """By goal: the figures of what was picked and of what it was compared with."""

    @property
    def strategy(self) -> wb.Strategy | None:
        """How the work would be spread."""
        return None if self.request is None else self.request.strategy


def look(keywords: Mapping[str, Any], choice: StrategyChoice) -> Look:
    """Dry-run the choice for `keywords`: target, arguments, cpu, name, store of ``wb.request``."""
    target = str(keywords.get("target", ""))
    try:
        why: tuple[str, ...] = ()
        if choice["goal"] == HAND:
            strategy = choice.strategy()
        else:
            picked = by_goal(keywords, choice["goal"], choice["processes"])
            strategy, why = picked.strategy, picked.why
        return Look(request=wb.request(**keywords, strategy=strategy), why=why, target=target)
    except Exception as error:  # noqa: BLE001 - whatever it is, the picker has to say it
        return Look(problem=_ended(sentence(error)), target=target)


def _ended(text: str) -> str:
    """With the full stop that a script's own message may lack: another sentence follows."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def by_goal(keywords: Mapping[str, Any], goal: str, processes: int) -> StrategyPick:
    """The strategy for a goal, of those that ``wb.request`` accepts; remembered while it is asked.

    Raises:
        UsageError: nothing fits, nothing is known of the script, or too many processes.
    """
    request_options = {
        name: value for name, value in keywords.items() if name not in _DECIDE_NOTHING
    }
    key = tuple(sorted((name, _frozen(value)) for name, value in request_options.items()))
    return _by_goal(key, goal, processes)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@functools.lru_cache(maxsize=8)
def _by_goal(items: tuple[tuple[str, Any], ...], goal: str, processes: int) -> StrategyPick:
    options = dict(items)
    single = wb.request(**options, strategy="single", processes=1)
    if single.workload is None:
        raise wb.UsageError(
            f"The model in {single.script.name} is unknown, so strategies cannot be ranked. Choose "
            "one manually or use a recipe."
        )
    cluster = single.cluster
    if single.device == "cpu":
        cluster = dataclasses.replace(cluster, gpus=(), accelerator=None)
        if processes > MAX_CPU_RANKS:
            wb.request(**options, strategy="ddp", processes=processes)  # says how many there can be
    elif processes > len(cluster.gpus):
        raise wb.UsageError(
            f"{processes} processes were requested, but {len(cluster.gpus)} GPUs are visible. Use "
            "fewer processes, or CPU ranks."
        )

    def refused(strategy: wb.Strategy) -> str:
        try:
            wb.request(**options, strategy=strategy)
        except wb.WorkbenchError as error:
            return str(error)
        return ""

    return pick(goal, single.workload, cluster, processes, allowed=refused)

"""What a run may take: hours, dollars, kWh. One rule, whatever the unit: stopped with a checkpoint.

Hours count from the launch or from a resume by hand. Dollars and kWh are the run's: all attempts
count, automatic restarts and resumes alike, so that a run which has used up its limit is resumed
only with a higher one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.store.commands import command_for
from workbench.units import format_joules, format_seconds, format_usd

_SECONDS, _JOULES = 3600.0, 3.6e6
_NEARLY = 0.999  # of a limit: with less left a run would be stopped at once


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpending:
    """What a run has taken. Unknown is None."""

    hours: float | None = None
    """Since it was last started by hand."""
    usd: float | None = None
    """In all attempts."""
    kwh: float | None = None
    """In all attempts, as far as energy is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One of the limits: a field of `Recovery`, and what it is held against."""

    name: str
    """The field of `Recovery`."""
    spent: Callable[[RunSpending], float | None]
    """What counts."""
    text: Callable[[float], str]
    """An amount for people."""
    whole_run: bool
    """Whether all attempts count, or those since the last start by hand alone."""

    @property
    def flag(self) -> str:
        """Its option."""
        return f"--{self.name.replace('_', '-')}"


LIMITS = (
    Limit(
        name="max_hours",
        spent=lambda spent: spent.hours,
        text=lambda hours: format_seconds(_SECONDS * hours),
        whole_run=False,
    ),
    Limit(name="max_usd", spent=lambda spent: spent.usd, text=format_usd, whole_run=True),
    Limit(
        name="max_kwh",
        spent=lambda spent: spent.kwh,
        text=lambda kwh: format_joules(_JOULES * kwh),
        whole_run=True,
    ),
)
NAMES = tuple(limit.name for limit in LIMITS)
"""Fields of `Recovery` that are limits."""


def sentence(name: str, most: float) -> str:
    """What is said of a run that has reached a limit.

    >>> sentence("max_usd", 40)
    'Its limit of $40.00 was reached (--max-usd).'
    """
    limit = next(limit for limit in LIMITS if limit.name == name)
    return f"Its limit of {limit.text(most)} was reached ({limit.flag})."


def reached(limits: Mapping[str, float | None], spent: RunSpending) -> str | None:
    """The first of the `limits` that a run has reached, as a sentence; None = none yet."""
    for limit in LIMITS:
        most = limits[limit.name]
        now = limit.spent(spent)
        if most is not None and now is not None and now >= most:
            return sentence(limit.name, most)
    return None


def used_up(limits: Mapping[str, float | None], spent: RunSpending, run: Path) -> str:
    """Why a run cannot continue: a limit of the whole run is used up; "" = none is.

    `run`: its folder.
    """
    for limit in LIMITS:
        most = limits[limit.name]
        now = limit.spent(spent)
        if limit.whole_run and most is not None and now is not None and now >= _NEARLY * most:
            more = float(f"{2 * now:.2g}")
            return (
                f"{run.name} has used up its limit: {limit.text(now)} of {limit.text(most)} "
                f"({limit.flag}; all attempts count). Give it a higher one: "
                f"{command_for(run, 'resume', limit.flag, f'{more:g}')}"
            )
    return ""

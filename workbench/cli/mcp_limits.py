"""What an agent may start: the limits of ``workbench mcp``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from workbench.describe.option import Option, declared
from workbench.describe.option_limits import check_declared, checked_field
from workbench.errors import UsageError
from workbench.units import format_seconds, format_usd

_READING = (
    "This server only reads. To let it start runs: workbench mcp --allow-launch --max-hours 2"
)
_OWN = {
    "--store": "The server was started for one store.",
    "--json": "Answers are JSON already.",
    "--wait": "The run is started and left alone; look with the tool show.",
    "--help-script": "It runs the script. Use the tool help.",
    "--dry-run": "Use the tool dry_run.",
    "--queue": "A queued run starts later, when nothing checks the limits.",
    "--max-hours": "Give it as the tool's max_hours.",
    "--": "Give the script's arguments as the tool's arguments.",
}
"""Options that a tool has of its own."""
_DOLLARS = {"--max-usd": "The server limits the dollars of each run; for less give max_hours."}
_LEAST_HOURS = 1 / 3600  # with less left a run would be stopped before its first step


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """What a dry run said of a run's length and price."""

    hours: float | None
    """Running time; None = unknown."""
    usd: float | None
    """Bill; None = unknown."""
    usd_per_hour: float | None
    """Price of all its machines; None = unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run has taken so far, in all its attempts."""

    hours: float = 0.0
    """Running time."""
    usd: float | None = None
    """Bill; None = unknown: then that of the hours at today's price."""

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> Spent:
        """From a run's view."""
        return cls(hours=(view.get("elapsed_seconds") or 0.0) / 3600, usd=view.get("usd_so_far"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """What each run that an agent starts must keep to."""

    allow_launch: bool = False
    """Without it nothing is started or stopped."""
    max_usd: Annotated[
        float | None,
        Option(help="Maximum predicted cost of each run.", metavar="USD", above=0, below=1e6),
    ] = None
    """Of each run; None = dollars are not limited."""
    max_hours: Annotated[
        float | None,
        Option(help="Maximum hours of each run; then it is stopped.", above=0, below=1e6),
    ] = None
    """Of each run; None = hours are not limited."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_declared(self)
        if self.allow_launch and self.max_usd is None and self.max_hours is None:
            raise UsageError(
                "--allow-launch needs a limit for each run. Give --max-hours 2, --max-usd 10, or "
                "both."
            )

    def __str__(self) -> str:
        """The limits as one sentence."""
        if not self.allow_launch:
            return "Read only."
        parts = [] if self.max_usd is None else [format_usd(self.max_usd)]
        parts += [] if self.max_hours is None else [f"{self.max_hours:g} h"]
        return f"Each run: at most {' and '.join(parts)}."

    def require_launch(self) -> None:
        """Refuse to act where the server only reads.

        Raises:
            UsageError: it does.
        """
        if not self.allow_launch:
            raise UsageError(_READING)

    def hours_for(
        self, predicted: PredictedRun, wanted: float | None = None, spent: Spent | None = None
    ) -> float:
        """After how many hours the run is stopped; `wanted`: what the agent wants it to be.

        The limits are of the whole run: what it has `spent` before it is resumed is taken off.
        Unknown hours are no reason to refuse: the run is stopped at the limit. An unknown price is
        one where dollars are limited, since no time could be derived from it.

        Raises:
            UsageError: it may not start; the message says which limit it breaks.
        """
        self.require_launch()
        if wanted is not None:
            checked_field(declared(AgentLimits)["max_hours"], wanted)
        limit = self._hours_left(predicted, spent or Spent())
        if wanted is not None and wanted <= limit:
            return wanted  # it is stopped before any limit, whatever was predicted
        if predicted.hours is not None and predicted.hours > limit:
            raise UsageError(self._too_much(predicted))
        return limit if wanted is None else min(limit, wanted)

    def words(self, own_usd: float | None = None) -> list[str]:
        """Options that hold all attempts of a run to its dollars; `own_usd`: its own limit."""
        limits = [most for most in (self.max_usd, own_usd) if most is not None]
        return [] if self.max_usd is None else ["--max-usd", f"{min(limits):.12g}"]

    def _hours_left(self, predicted: PredictedRun, spent: Spent) -> float:
        hours = [] if self.max_hours is None else [self.max_hours - spent.hours]
        if self.max_usd is not None:
            price = predicted.usd_per_hour
            if price is None:
                raise UsageError(
                    f"The price of this host is unknown, and each run may cost at most "
                    f"{format_usd(self.max_usd)}. Set WORKBENCH_USD_PER_HOUR for the server, or "
                    "start it with --max-hours alone."
                )
            usd = spent.hours * price if spent.usd is None else spent.usd
            hours += [(self.max_usd - usd) / price] if price else []
        left = min(hours, default=1e5)  # a free host, dollars alone: eleven years
        if left < _LEAST_HOURS and spent.hours:
            bill = "" if not spent.usd else f" and {format_usd(spent.usd)}"
            raise UsageError(
                f"It has had {format_seconds(3600 * spent.hours)}{bill} in all its attempts. "
                f"{self} Ask the user to resume it, or launch another run."
            )
        return left

    def _too_much(self, predicted: PredictedRun) -> str:
        bill = "" if predicted.usd is None else f" and {format_usd(predicted.usd)}"
        return (
            f"{format_seconds(3600 * (predicted.hours or 0))}{bill} are predicted. {self} Plan "
            "fewer steps, or give max_hours: the run is then stopped with a checkpoint."
        )


def check_options(options: Sequence[str], *, dollars: bool = False) -> None:
    """Refuse options that the tools decide themselves; `dollars`: --max-usd is one of them.

    Raises:
        UsageError: one is given; the message says what to use.
    """
    own = _OWN | (_DOLLARS if dollars else {})
    for word in options:
        name = word.partition("=")[0]
        if name in own:
            raise UsageError(f"{name} cannot be given here. {own[name]}")

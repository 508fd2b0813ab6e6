"""The terms of a run's gap: names, values and their JSON form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from workbench.observe.thinning import round_significant
from workbench.units import UNKNOWN, format_bytes, format_count, format_seconds, format_usd

STEP, INPUT, SLOWEST = "step", "input wait", "slowest rank"
FORWARD, BACKWARD, COMPUTE = "forward", "backward, exchange, optimizer", "compute and exchange"
PEAK, ON_CARD, BEYOND = "peak memory", "on the card", "context, library, slack"
OTHER_PROCESSES = "other processes"
TOKENS, MFU, RUN_TIME, COST = "tokens/s", "MFU", "run time", "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTerm:
    """One term."""

    what: str
    """Its name, as people call it."""
    group: str
    """time, memory, rate, money or host; the causes of a step's time: cause."""
    unit: str
    """s, bytes, tokens/s, share (of 1), usd or cores."""
    predicted: float | None = None
    """Before the run; None = nothing was predicted."""
    low: float | None = None
    """Lower end of the prediction's range; None = it had none."""
    high: float | None = None
    """Upper end."""
    measured: float | None = None
    """In the run; None = not measured."""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None where one is unknown or nothing was predicted."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured / self.predicted

    @property
    def within(self) -> bool | None:
        """Whether the measurement lies in the prediction's range; None without one of them."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high

    def text(self, value: float | None) -> str:
        """A value of this term for people.

        >>> PredictionTerm(what="step", group="time", unit="s").text(0.0213)
        '21.3 ms'
        """
        return _TEXTS.get(self.unit, format_count)(value)


def _cores(value: float | None) -> str:
    return UNKNOWN if value is None else f"{format_count(value)} cores"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


_TEXTS: dict[str, Callable[[float | None], str]] = {
    "s": format_seconds,
    "bytes": format_bytes,
    "usd": format_usd,
    "share": _share,
    "cores": _cores,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionError:
    """What a run was predicted to need beside what it took."""

    rows: tuple[PredictionTerm, ...] = ()
    """The terms; the causes follow the step they add up to."""
    explanation: str = ""
    """One to four sentences: the term that was off most, and what to do; or "as predicted"."""
    source: str | None = None
    """What the predicted times rest on: "measured here on DATE" or "catalog", and by what earlier
    runs corrected them; None = no times."""
    steady_steps: int = 0
    """Steps the measured times are medians of, warm-up and checkpoints left out."""
    final: bool = False
    """Whether the run has ended."""

    def row(self, what: str) -> PredictionTerm:
        """The term of that name; one without values where there is none."""
        matching = (term for term in self.rows if term.what == what)
        return next(matching, PredictionTerm(what=what, group="", unit=""))

    def document(self) -> dict[str, Any]:
        """Plain JSON form (`schema.ComparisonDoc`); `read` takes it back."""
        rows = [
            {key: round_significant(value) for key, value in asdict(term).items()}
            | {"ratio": round_significant(term.ratio)}
            for term in self.rows
        ]
        return {
            "final": self.final,
            "steady_steps": self.steady_steps,
            "source": self.source,
            "explanation": self.explanation,
            "rows": rows,
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> PredictionError:
        """The gap of a kept document; what does not belong there is left out."""
        names = {field.name for field in fields(PredictionTerm)}
        row_documents = cast("list[dict[str, Any]]", document.get("rows") or [])
        rows = [{key: value for key, value in row.items() if key in names} for row in row_documents]
        return cls(
            rows=tuple(
                PredictionTerm(**row) for row in rows if {"what", "group", "unit"} <= row.keys()
            ),
            explanation=document.get("explanation") or "",
            source=document.get("source"),
            steady_steps=document.get("steady_steps") or 0,
            final=bool(document.get("final")),
        )

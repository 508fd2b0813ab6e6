"""`Recovery`: what may be done for an unattended run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from workbench.describe.checks import require_choice
from workbench.describe.option import Option, declared, several
from workbench.describe.option_limits import check_declared
from workbench.describe.other_names import unknown_option
from workbench.errors import UsageError
from workbench.recover.limits import NAMES as LIMITS
from workbench.recover.stop_rule import stop_conditions

ROLLBACK_KINDS = ("nan", "spike")
ROLLBACK_WAYS = ("skip-data", "lower-lr")
CLOUDS = ("aws", "gcp")
"""Whose metadata services are known."""
_MILLION = 1e6
"""More hours, dollars or seconds are a typing mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Restarts, pre-emption and idle machines. The default changes nothing by itself."""

    restarts: Annotated[
        int,
        Option(
            help="Maximum automatic restarts, from the newest complete checkpoint.",
            least=0,
            most=1000,
        ),
    ] = 0
    """How often a failed run is started again from its newest whole checkpoint. 0: never, because
    a restart of a run that is wrong costs money."""
    backoff_seconds: Annotated[
        float,
        Option(
            help="Seconds before the first restart; doubles with each.",
            flag="backoff",
            above=0,
            below=_MILLION,
        ),
    ] = 2.0
    """Wait before the first restart; doubles with each, at most five minutes."""
    grace_seconds: Annotated[
        float | None,
        Option(
            help="Seconds from a pre-emption's notice to the end.",
            flag="grace",
            above=0,
            below=_MILLION,
        ),
    ] = None
    """From a notice of pre-emption to the end of the machine; the checkpoint and every process' end
    must fit into it. None: 120 s where AWS gives the notice, else 30 s (RunPod has about 5)."""
    preemption: Annotated[
        str | None, Option(help="Where notices come: aws, gcp, a file, a URL.")
    ] = None
    """Where notices are looked for: ``aws``, ``gcp``, a path, or a URL. None: SIGTERM only."""
    restart_on_hang: Annotated[
        bool, Option(help="End a run that hangs, and restart it while restarts are left.")
    ] = True
    """Whether a run that hangs is ended, and started again while restarts are left: at once when a
    rank's process is stopped, after two minutes when all wait for one another and no one computes,
    after a quarter of an hour when a rank may only be late. Without `restarts` never."""
    idle_minutes: Annotated[
        float,
        Option(help="Minutes without GPU activity before --on-idle runs.", above=0, below=_MILLION),
    ] = 10.0
    """GPUs (without any: processors) idle this long are a finding, and start `on_idle`."""
    max_hours: Annotated[
        float | None,
        Option(
            help="Stop with a checkpoint after so many hours.", unit="h", above=0, below=_MILLION
        ),
    ] = None
    """Counted from the launch, or from a resume by hand; automatic restarts count into it. None: no
    limit."""
    max_usd: Annotated[
        float | None,
        Option(
            help="Stop with a checkpoint after so many dollars, all attempts.",
            unit="$",
            above=0,
            below=_MILLION,
        ),
    ] = None
    """At the price of the whole host ($WORKBENCH_USD_PER_HOUR); resumes count into it. None: no
    limit."""
    max_kwh: Annotated[
        float | None,
        Option(
            help="Stop with a checkpoint after so much energy, all attempts.",
            unit="kWh",
            above=0,
            below=_MILLION,
        ),
    ] = None
    """Of GPU boards, and of processors where their counters can be read; resumes count into it.
    None: no limit."""
    rollback_on: Annotated[
        tuple[str, ...],
        Option(
            help="Go back to the checkpoint before: nan, spike (it stays), or both; '' = never.",
            metavar="KIND,KIND",
            split="commas",
        ),
    ] = ()
    """What the run goes back for by itself: a loss that is NaN in three steps running, or one that
    is still far above its level thirty steps after it rose. (): never."""
    rollback_then: Annotated[
        str,
        Option(
            help="After going back, leave out the data seen since, or halve the learning rate.",
            choices=ROLLBACK_WAYS,
            singular="way to go on",
        ),
    ] = "skip-data"
    """Without one of them the same steps would come to the same loss again."""
    max_rollbacks: Annotated[
        int, Option(help="How often a run may go back by itself.", least=1, most=100)
    ] = 2
    """From a launch, or a resume by hand."""
    stop_when: Annotated[
        str,
        Option(
            help="Stop with a checkpoint: 'eval_loss no better for 5', 'loss > 10 for 20'.",
            metavar="RULE",
        ),
    ] = ""
    """On any logged series, see `stop_rule`; ' or ' joins several. "": never."""
    on_idle: Annotated[
        tuple[str, ...], Option(help="Command when GPUs idle; no shell.", split="shell")
    ] = ()
    """Program and arguments started when the run has been idle so long; no shell."""
    on_end: Annotated[
        tuple[str, ...], Option(help="Command when the run has ended; no shell.", split="shell")
    ] = ()
    """Program and arguments started when the run has ended, whatever the outcome; no shell."""
    hooks_dry_run: Annotated[bool, Option(help="Only log those commands.")] = False
    """Only say what `on_idle` and `on_end` would start."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        object.__setattr__(self, "rollback_on", several(self.rollback_on))
        for kind in self.rollback_on:
            require_choice("reason to go back", kind, ROLLBACK_KINDS)
        check_declared(self)
        for name in ("on_idle", "on_end"):
            if isinstance(getattr(self, name), str):
                raise UsageError(
                    f"{name}={getattr(self, name)!r}: give program and arguments apart, as "
                    "('runpodctl', 'stop', 'pod', 'ID'); no shell reads it."
                )
        stop_conditions(self.stop_when)
        where = self.preemption
        if where is not None and where not in CLOUDS and "/" not in where:
            raise UsageError(
                f"preemption={where!r}: give {' or '.join(CLOUDS)}, a file as /path or ./name, or "
                "a URL."
            )

    @property
    def grace(self) -> float:
        """Seconds from a notice to the end: as given, else what the place is known for."""
        if self.grace_seconds is not None:
            return self.grace_seconds
        return 120.0 if self.preemption == "aws" else 30.0

    def notices_from(self, folder: str) -> str | None:
        """`preemption`; a path begins at the run's `folder`: its supervisor works elsewhere."""
        file = self.notice_file(folder)
        return self.preemption if file is None else str(file)

    def notice_file(self, folder: str | Path) -> Path | None:
        """The file that announces a pre-emption; None where none does: a cloud, or a URL."""
        where = self.preemption
        if where is None or where in CLOUDS or "://" in where:
            return None
        return Path(folder, Path(where).expanduser())

    @property
    def limits(self) -> dict[str, float | None]:
        """What the run may take, by the names of `recover.limits.LIMITS`."""
        return {name: getattr(self, name) for name in LIMITS}

    def document(self) -> dict[str, Any]:
        """Plain JSON form, as kept in run.json."""
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Recovery:
        """From run.json; what is missing or of another version is the default."""
        names = {field.name for field in fields(cls)}
        values = {name: value for name, value in document.items() if name in names}
        for name in ("on_idle", "on_end", "rollback_on"):
            if name in values:
                values[name] = tuple(str(word) for word in values[name])
        return cls(**values)


def recovery_of(change: Recovery | Mapping[str, Any], before: Recovery | None = None) -> Recovery:
    """As it is given; of a mapping of options `before`, or nothing, with these.

    Raises:
        UsageError: it is neither, or it has no such option.
    """
    if isinstance(change, Recovery):
        return change
    if not isinstance(change, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"recovery={change!r}: give a dict of its options, as {{'restarts': 3}}.")
    known = declared(Recovery)
    for name in change:
        if name not in known:
            raise unknown_option("option of recovery", name, known)
    return replace(before or Recovery(), **change)

"""Some steps in a row of all ranks: who waited for whom, how long, and for what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

PHASES: tuple[str, ...] = ("input", "forward", "backward", "optimizer", "checkpoint")
"""The parts of a step, in which a rank's own work is told."""
PAUSE = 3.0
"""Times the usual step: longer ones are an evaluation or a save, not the pace."""
_SHOWN_RANKS = 16  # those who wait least, and the first ones; of all others their middle
_ALWAYS_SHOWN = 4  # of thousands that wait alike, two windows would show others


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """One rank's mean step in a window, in seconds."""

    wait: float = 0.0
    """For ranks that came later."""
    own: Mapping[str, float] = field(default_factory=dict[str, float])
    """Its own work by phase (`PHASES`), waiting left out."""
    last: int = 0
    """Steps in which the others waited for it."""
    heaviest: int = 0
    """Of these, steps in which it had the most tokens or samples, by a twentieth or more."""
    queued: float = 0.0
    """For a core: time in which it could have computed. No part of its own work."""
    late: float | None = None
    """How much longer its own work takes than the middle of the others'; below 0 where it does not.
    A step counts for `PAUSE` usual ones at most."""
    late_square: float = 0.0
    """Mean square of that."""
    excess: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    """The same by phase: mean and mean square."""
    stops: float = 0.0
    """How often its process was stopped and continued, per step."""
    throttled: float = 0.0
    """For which the quota of its cgroup held its threads back."""
    tail: float = 0.0
    """How much later than for the first rank the step's last exchange ends for it: its own link,
    or that of a neighbour, and no work of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalWindow:
    """Some steps in a row, joined over all ranks."""

    time: float
    """Unix seconds of the last step's end."""
    first: int
    """The first step."""
    last: int
    """The last step."""
    steps: int
    """How many of these count: all ranks reported them, and they were no pauses."""
    step_seconds: float
    """Mean duration."""
    late_seconds: float
    """Mean over the steps of what the last rank cost, whichever it was."""
    exchange_seconds: float | None
    """Mean time from the last rank's last collective to the first rank's optimizer; None where the
    ranks do not end the backward pass with a sum that runs beside it."""
    gather_seconds: float | None = None
    """Mean time from the last rank's last collective in the optimizer to the first rank's end of
    the step; None where the optimizer has none (ZeRO gathers what each rank has updated)."""
    uneven_seconds: float = 0.0
    """Mean over the steps of the longest `RankShare.tail`."""
    ranks: Mapping[int, RankShare]
    """By rank; of more than 16 the first four, and of the others those who wait least."""
    others_wait: float = 0.0
    """Middle wait of all ranks."""
    others_own: Mapping[str, float] = field(default_factory=dict[str, float])
    """Middle own work of all ranks, by phase."""
    others_queued: float = 0.0
    """Middle wait of all ranks for a core."""
    by_messages: bool = False
    """Whether the ranks exchange messages and hardly any collectives: stages of a pipeline."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form, with rounded seconds; `read_window` takes it back."""
        return cast("dict[str, Any]", _rounded(asdict(self)))


def read_window(document: Mapping[str, Any]) -> ArrivalWindow | None:
    """The window that a line of arrivals.jsonl holds; None where it is not one."""
    try:
        shares = {int(rank): RankShare(**share) for rank, share in document["ranks"].items()}
        values: dict[str, Any] = {**document, "ranks": shares}
        window = ArrivalWindow(**values)
        numbers: tuple[Any, ...] = (
            window.time,
            window.step_seconds,
            window.late_seconds,
            window.steps,
        )
        valid = all(isinstance(number, int | float) for number in numbers)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return window if valid and window.steps > 0 and window.step_seconds > 0 else None


def least_waiting(idle: Mapping[int, float]) -> list[int]:
    """The ranks that a window shows: of many those that wait least, and the first ones.

    Windows are compared by the ranks that they share.
    """
    least = sorted(idle, key=idle.__getitem__)
    if len(least) <= _SHOWN_RANKS:
        return least
    first = sorted(idle)[:_ALWAYS_SHOWN]
    others = [rank for rank in least if rank not in first]
    return [*others[: _SHOWN_RANKS - _ALWAYS_SHOWN], *first]


def combined(windows: Iterable[ArrivalWindow]) -> ArrivalWindow | None:
    """Several windows as one; None of nothing. Ranks that some of them leave out are left out.

    Where no two ranks would be left, the earliest windows are.
    """
    some = list(windows)
    if not some:
        return None
    shared = _shared(some)
    while len(some) > 1 and len(shared) < 2:  # of many ranks each window shows some
        some = some[1:]
        shared = _shared(some)
    count = sum(window.steps for window in some)

    def mean(values: Iterable[float]) -> float:
        return sum(v * window.steps for v, window in zip(values, some, strict=True)) / count

    exchange = [window.exchange_seconds for window in some if window.exchange_seconds is not None]
    gather = [window.gather_seconds for window in some if window.gather_seconds is not None]
    return ArrivalWindow(
        time=some[-1].time,
        first=some[0].first,
        last=some[-1].last,
        steps=count,
        step_seconds=mean(window.step_seconds for window in some),
        late_seconds=mean(window.late_seconds for window in some),
        exchange_seconds=mean(exchange) if len(exchange) == len(some) else None,
        gather_seconds=mean(gather) if len(gather) == len(some) else None,
        uneven_seconds=mean(window.uneven_seconds for window in some),
        ranks={
            rank: _combined_share([window.ranks[rank] for window in some], mean)
            for rank in sorted(shared)
        },
        others_wait=mean(window.others_wait for window in some),
        others_own={
            phase: mean(window.others_own.get(phase, 0.0) for window in some) for phase in PHASES
        },
        others_queued=mean(window.others_queued for window in some),
        by_messages=all(window.by_messages for window in some),
    )


def _shared(windows: Sequence[ArrivalWindow]) -> set[int]:
    return set(windows[0].ranks).intersection(*(window.ranks for window in windows[1:]))


def _combined_share(
    shares: Sequence[RankShare], mean: Callable[[Iterable[float]], float]
) -> RankShare:
    late = [share.late for share in shares if share.late is not None]
    return RankShare(
        wait=mean(share.wait for share in shares),
        own={phase: mean(share.own.get(phase, 0.0) for share in shares) for phase in PHASES},
        last=sum(share.last for share in shares),
        heaviest=sum(share.heaviest for share in shares),
        queued=mean(share.queued for share in shares),
        late=mean(late) if len(late) == len(shares) else None,
        late_square=mean(share.late_square for share in shares),
        excess={
            phase: [
                mean(share.excess.get(phase, (0.0, 0.0))[which] for share in shares)
                for which in (0, 1)
            ]
            for phase in PHASES
        },
        stops=mean(share.stops for share in shares),
        throttled=mean(share.throttled for share in shares),
        tail=mean(share.tail for share in shares),
    )


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in cast("dict[Any, object]", value).items()}
    return value

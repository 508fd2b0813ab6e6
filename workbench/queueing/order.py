"""Which runs start now, on which devices: a pure function of the queue and the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NO_SUCH_DEVICES = "This host does not have the devices that it asks for."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """What one run of the queue asks for."""

    run: str
    """Its id."""
    count: int
    """Devices."""
    allowed: tuple[str, ...]
    """Those that would do; of these it takes the first that are free."""
    share: bool = False
    """Whether held ones would do too."""
    unknown: bool = False
    """Whether it is not known what there is, as the driver does not answer: it waits."""

    @property
    def impossible(self) -> bool:
        """Whether no free device could ever help, as far as is known now."""
        return len(self.allowed) < self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A run whose turn it is."""

    run: str
    """Its id."""
    devices: tuple[str, ...]
    """What it gets; () = it can never start."""


def due(requests: Sequence[DeviceRequest], load: Mapping[str, int]) -> list[Start]:
    """What starts now, in the order of the queue.

    `requests`: the first of the queue first. `load`: how many hold each device. One after another
    gets its devices. What a run that has to wait could use is kept from all that come after it, so
    no one passes it; others may start.

    >>> big, small = (DeviceRequest(run=f"r{n}", count=n, allowed=("0", "1")) for n in (2, 1))
    >>> due([big, small], {"0": 1, "1": 0})
    []
    >>> due([small, big], {"0": 1, "1": 0})
    [Start(run='r1', devices=('1',))]
    """
    load, reserved, starts = dict(load), set[str](), list[Start]()
    for request in requests:
        if request.unknown:
            reserved |= set(request.allowed)
            continue
        if request.impossible:
            starts.append(Start(run=request.run, devices=()))
            continue
        usable = [name for name in request.allowed if name not in reserved]
        if request.share:
            usable.sort(key=lambda name: load[name])
        else:
            usable = [name for name in usable if not load[name]]
        if len(usable) < request.count:
            reserved |= set(request.allowed)
            continue
        devices = tuple(usable[: request.count])
        for name in devices:
            load[name] += 1
        starts.append(Start(run=request.run, devices=devices))
    return starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """When a run of the queue is predicted to start and to end."""

    run: str
    """Its id."""
    start: float | None
    """Unix seconds; None = a run before it has no predicted end."""
    end: float | None
    """Unix seconds; None = its own length is not predicted either."""


def forecast(
    requests: Sequence[DeviceRequest],
    seconds: Mapping[str, float | None],
    free_at: Mapping[str, float | None],
    now: float,
) -> list[Turn]:
    """The predicted turns: each starts when its devices are free, and not before those before it.

    `seconds`: predicted length of each run. `free_at`: when each device is free; None = not known.

    >>> requests = [DeviceRequest(run=run, count=1, allowed=("0",)) for run in "ab"]
    >>> [turn.start for turn in forecast(requests, {"a": 60.0, "b": None}, {"0": 100.0}, 0.0)]
    [100.0, 160.0]
    """
    free, turns = dict(free_at), list[Turn]()
    for number, request in enumerate(requests):
        devices = sorted(request.allowed, key=lambda name: _late(free[name]))[: request.count]
        times: list[float | None] = [
            now,
            *([] if request.share else [free[name] for name in devices]),
        ]
        times += [
            turn.start
            for before, turn in zip(requests[:number], turns, strict=True)
            if not before.impossible
            and set(before.allowed) & set(request.allowed)  # else it passes
        ]
        start = None if request.impossible else _latest(times)
        length = seconds.get(request.run)
        end = None if start is None or length is None else start + length
        turns.append(Turn(run=request.run, start=start, end=end))
        if not request.impossible:
            for name in devices:  # others may hold it for longer
                later = (free[name], end) if request.share else (end,)
                free[name] = None if None in later else max(map(_late, later))
    return turns


_NEVER = float("inf")


def _late(time: float | None) -> float:
    return _NEVER if time is None else time


def _latest(times: Sequence[float | None]) -> float | None:
    latest = max(map(_late, times), default=0.0)
    return None if latest == _NEVER else latest

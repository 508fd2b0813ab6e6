"""Energy that a run's devices took: by their counters, else by their power over time.

Arithmetic alone: what is fed in comes from samples, and no clock is read here. A counter tells of
all that happened between two readings, however far apart. Without one, power is integrated by the
trapezoid rule between samples at most `GAP_SECONDS` apart; a longer gap is not counted, and said.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from workbench.units import format_some

GAP_SECONDS = 30.0
"""Between two samples of power; samples come every second at first, every five in a long run."""
JOULES_PER_KWH = 3.6e6
_NAMED = 4  # of many devices
_SLICE = "MIG-"  # how the UUID of a slice begins, see `describe.hardware.Gpu.is_slice`
_PROCESSOR = -1
"""Index of a machine's processors among its devices."""


@dataclass(slots=True)
class Account:
    """One device. Seconds are those between its first and its latest reading."""

    joules: float = 0.0
    """Counted for good."""
    counter_seconds: float = 0.0
    """Of that, by the counter."""
    power_seconds: float = 0.0
    """Of that, by power over time."""
    gap_seconds: float = 0.0
    """Not counted: nothing told of them."""
    since_joules: float = 0.0
    """By power since the counter last told; what it tells next stands in place of it."""
    since_power_seconds: float = 0.0
    since_gap_seconds: float = 0.0
    time: float | None = None
    """Of the latest sample."""
    power_w: float | None = None
    """Of the latest sample; None = it told none."""
    counter_joules: float | None = None
    """The latest known."""
    counter_time: float | None = None
    is_sampled: bool = False
    """Whether it has ever told power or a counter."""
    paused: bool = True
    """Whether the time until the next sample is not the run's."""

    def add(self, time: float, counter_joules: float | None, power_w: float | None) -> None:
        """Account for a sample: Unix seconds on its machine's clock, joules, watts."""
        if time == self.time:
            return
        self.is_sampled |= counter_joules is not None or power_w is not None
        if self.time is not None and not self.paused:
            self._integrate(max(0.0, time - self.time), power_w)
        if counter_joules is not None:
            self._count(time, counter_joules)
        self.time, self.power_w, self.paused = time, power_w, False

    def _integrate(self, seconds: float, power_w: float | None) -> None:
        if self.power_w is None or power_w is None or seconds > GAP_SECONDS:
            self.since_gap_seconds += seconds
            return
        self.since_joules += seconds * (self.power_w + power_w) / 2
        self.since_power_seconds += seconds

    def _count(self, time: float, counter_joules: float) -> None:
        before, at = self.counter_joules, self.counter_time
        if before is not None and at is not None and counter_joules >= before:
            self.joules += counter_joules - before
            self.counter_seconds += max(0.0, time - at)
            self._forget_since()
        else:  # the first one, or the driver was loaded again and counts from nothing
            self.settle()
        self.counter_joules, self.counter_time = counter_joules, time

    def settle(self) -> None:
        """What power told stays: no counter will report that time."""
        self.joules += self.since_joules
        self.power_seconds += self.since_power_seconds
        self.gap_seconds += self.since_gap_seconds
        self._forget_since()

    def _forget_since(self) -> None:
        self.since_joules = self.since_power_seconds = self.since_gap_seconds = 0.0

    def pause(self) -> None:
        """Nothing of the run is at work until the next sample but the one that is known."""
        self.settle()
        self.power_w = self.counter_joules = self.counter_time = None
        self.paused = True

    @property
    def total_joules(self) -> float | None:
        """All that was counted; None while nothing was told, or by one reading alone."""
        seconds = self.counter_seconds + self.power_seconds + self.since_power_seconds
        return self.joules + self.since_joules if seconds > 0 else None

    @property
    def uncounted_seconds(self) -> float:
        """Within its time, nothing told of."""
        return self.gap_seconds + self.since_gap_seconds

    @property
    def by_power(self) -> bool:
        """Whether part of it comes from samples of power."""
        return self.power_seconds + self.since_power_seconds > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What a run took so far."""

    joules: float | None = None
    """Of all devices that were counted; None = of none."""
    gpu_joules: float | None = None
    """Boards of the GPUs."""
    processor_joules: float | None = None
    """Processor packages of the machines whose counters can be read."""
    notes: tuple[str, ...] = field(default=())
    """What is not counted, or not by a counter; each one sentence."""


class EnergyMeter:
    """All devices of a run, on all its machines. Feed it each machine's samples."""

    def __init__(self, nodes: int = 1) -> None:
        """`nodes`: machines of the run."""
        self._nodes = nodes
        self._accounts: dict[tuple[int, int], Account] = {}
        self._slices: set[tuple[int, int]] = set()
        self._sampled: set[int] = set()

    def describe(self, node: int, gpus: Iterable[Mapping[str, Any]]) -> None:
        """What cards a machine has: documents of `describe.hardware.Gpu`."""
        for gpu in gpus:
            place = node, int(gpu["index"])
            if str(gpu.get("uuid") or "").startswith(_SLICE):
                self._slices.add(place)
            else:
                self._accounts.setdefault(place, Account())

    def add(self, node: int, sample: Mapping[str, Any]) -> None:
        """Account for a `schema.SystemLine` of a machine; one that is known changes nothing."""
        self._sampled.add(node)
        time = float(sample["time"])
        for gpu in sample.get("gpus") or ():
            place = node, int(gpu["index"])
            if place not in self._slices:
                account = self._accounts.setdefault(place, Account())
                account.add(time, _number(gpu.get("energy_joules")), _number(gpu.get("power_w")))
        processor = _number(sample.get("processor_joules"))
        place = node, _PROCESSOR
        if processor is not None or place in self._accounts:
            self._accounts.setdefault(place, Account()).add(time, processor, None)

    def pause(self) -> None:
        """An attempt begins: the time since the last sample of the one before is not the run's."""
        for account in self._accounts.values():
            account.pause()

    def energy(self) -> Energy:
        """Of the whole run so far."""
        gpus = self._sum(place for place in self._accounts if place[1] != _PROCESSOR)
        processors = self._sum(place for place in self._accounts if place[1] == _PROCESSOR)
        counted = [joules for joules in (gpus, processors) if joules is not None]
        return Energy(
            joules=sum(counted) if counted else None,
            gpu_joules=gpus,
            processor_joules=processors,
            notes=tuple(self._notes()),
        )

    def _sum(self, places: Iterable[tuple[int, int]]) -> float | None:
        joules = [self._accounts[place].total_joules for place in places]
        counted = [value for value in joules if value is not None]
        return sum(counted) if counted else None

    def _notes(self) -> Iterator[str]:
        cards = {p: account for p, account in sorted(self._accounts.items()) if p[1] != _PROCESSOR}
        silent = [place for place, account in cards.items() if not account.is_sampled]
        by_power = [place for place, account in cards.items() if account.by_power]
        gaps = {p: account.uncounted_seconds for p, account in cards.items() if account.is_sampled}
        missing = [place for place, seconds in gaps.items() if seconds > 0]
        if silent:
            yield f"No energy is counted of {self._named(silent)}: the driver tells none."
        if self._slices:
            names = self._named(sorted(self._slices))
            yield f"No energy is counted of {names}: a slice shares its card's with others."
        if by_power:
            yield f"Energy of {self._named(by_power)} is in part or whole from power samples."
        if missing:
            seconds = max(gaps.values())
            names = self._named(missing)
            yield f"Up to {seconds:.0f} s without readings are not counted of {names}."
        unread = [n for n in range(self._nodes) if (n, _PROCESSOR) not in self._accounts]
        unread = [node for node in unread if node in self._sampled]
        if unread:
            where = f" of {listed_numbers('node', unread)}" if self._nodes > 1 else ""
            yield f"Processors{where} are not counted: no RAPL counter that this user may read."
        unheard = [node for node in range(self._nodes) if node not in self._sampled]
        if unheard and self._sampled:
            yield f"Nothing is counted of {listed_numbers('node', unheard)} yet: no sample."

    def _named(self, places: Sequence[tuple[int, int]]) -> str:
        several = self._nodes > 1
        names = [f"gpu{index}" + (f" of node {node}" if several else "") for node, index in places]
        return format_some(names, _NAMED)

    def document(self) -> dict[str, Any]:
        """As kept in energy.json; `read` takes it back."""
        return {
            "devices": [
                {"node": node, "index": index, **asdict(account)}
                for (node, index), account in sorted(self._accounts.items())
            ]
        }

    def read(self, document: Mapping[str, Any]) -> None:
        """Go on from what an earlier supervisor kept; what does not belong there is left out."""
        field_names = {field.name for field in fields(Account)}
        for row in document.get("devices") or ():
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                values = {
                    name: row[name] for name in field_names & row.keys() if _fits(name, row[name])
                }
                self._accounts[int(row["node"]), int(row["index"])] = Account(**values)
                if values.get("time") is not None:
                    self._sampled.add(int(row["node"]))


def _fits(name: str, value: object) -> bool:
    if name in {"is_sampled", "paused"}:
        return isinstance(value, bool)
    optional = name in {"time", "power_w", "counter_joules", "counter_time"}
    return _number(value) is not None or (optional and value is None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value == value else None  # noqa: PLR0124  (NaN)


def listed_numbers(noun: str, numbers: Sequence[int]) -> str:
    """``node 3``, ``nodes 1, 2 and 5 more``."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {format_some(numbers, _NAMED)}"

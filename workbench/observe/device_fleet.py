"""Every device of all machines of a run: the latest of each, beside its peers; what is missing.

Up to `CURVES_MAX` devices have curves of their own in the view. Of more the view has the lowest,
the median and the highest at each moment; one device's curve is in its machine's samples.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from workbench.describe.hardware import card_name, with_parts
from workbench.observe.device_peers import COLUMNS, beside_peers
from workbench.observe.energy import listed_numbers
from workbench.observe.packed_numbers import coded, digits_of
from workbench.observe.thinning import Rule, ThinnedTable
from workbench.observe.throttle import throttle_text
from workbench.observe.view_json import TableText, encode_parts
from workbench.units import format_some

CURVES_MAX = 16
CORES_MAX = 256  # of one machine
_RECENT = 8  # samples whose mean is shown: utilisation jumps from one to the next
_SILENT_SECONDS = 30.0
_NAMED = 4  # of many that are missing
_CURVE: dict[str, Rule] = {
    "time": "last",
    "util": "mean",
    "memory_bytes": "max",
    "temperature_c": "max",
    "power_w": "mean",
}
_SPREAD: dict[str, Rule] = {
    "time": "last",
    **{f"{name}_low": "min" for name in _CURVE if name != "time"},
    **{name: "mean" for name in _CURVE if name != "time"},
    **{f"{name}_high": "max" for name in _CURVE if name != "time"},
}
CORE = "processor core"
_READINGS = {
    "util": "utilisation",
    "memory_bytes": "memory",
    "temperature_c": "temperature",
    "power_w": "power",
    "sm_clock_mhz": "clock",
    "throttle_reasons": "throttling",
}

Reading = Mapping[str, Any]


@dataclass(slots=True)
class _Device:
    node: int
    index: int
    part: int
    name: str = ""
    memory_total_bytes: int | None = None
    power_limit_w: float | None = None
    recent: deque[Reading] = field(default_factory=lambda: deque[Reading](maxlen=_RECENT))
    curve: ThinnedTable | None = None
    text: TableText | None = None

    def mean(self, name: str) -> float | None:
        values = [reading[name] for reading in self.recent if reading.get(name) is not None]
        return fmean(values) if values else None

    @property
    def answers(self) -> bool:
        last: Reading = self.recent[-1] if self.recent else dict[str, Any]()
        return any(last.get(name) is not None for name in ("util", "memory_bytes", "temperature_c"))

    def reading(self) -> dict[str, float | None]:
        """What is shown of it: `device_peers.COLUMNS`."""
        if not self.answers:
            return dict.fromkeys(COLUMNS)
        last, total = self.recent[-1], self.memory_total_bytes
        used = last.get("memory_bytes")
        share = 100 * used / total if used is not None and total else None
        values = (self.mean("util"), share, last.get("temperature_c"), self.mean("power_w"))
        return dict(zip(COLUMNS, values, strict=True))


@dataclass(slots=True)
class _Node:
    host: str | None = None
    sampled: float = 0.0
    """Time of its latest sample, by its own clock."""
    heard: float = 0.0
    """When that came, by this machine's monotonic clock."""


class Devices:
    """The devices of a run. Feed it each machine's samples; `grid` and `curves` go to the view."""

    def __init__(self, gpus: Sequence[Mapping[str, Any]], nodes: int, *, on_gpu: bool) -> None:
        """`gpus`: those of node 0, of which each of the `nodes` is expected to have as many."""
        self._on_gpu = on_gpu
        self._count = nodes
        self._each = len(gpus)
        self._nodes: dict[int, _Node] = {}
        self._devices: dict[tuple[int, int, int], _Device] = {}
        self._many = self._each * nodes > CURVES_MAX
        self._spread = ThinnedTable(_SPREAD, 60)
        self._spread_text = TableText(self._spread)
        self.describe(0, None, gpus)

    def describe(self, node: int, host: str | None, gpus: Iterable[Mapping[str, Any]]) -> None:
        """What cards a machine has: documents of `describe.hardware.Gpu`."""
        for index, part, gpu in with_parts(gpus):
            device = self._device(node, index, part)
            device.name = str(gpu.get("name") or "")
            device.memory_total_bytes = gpu.get("memory_bytes")
            device.power_limit_w = gpu.get("power_limit_w")
        if host is not None:
            self._nodes.setdefault(node, _Node()).host = host

    def _device(self, node: int, index: int, part: int) -> _Device:
        device = self._devices.get((node, index, part))
        if device is None:
            device = self._devices[node, index, part] = _Device(node, index, part)
            if self._on_gpu and not self._many:
                rows = 120 if self._each * self._count <= 2 else 60
                rows = rows if self._each * self._count <= 8 else 30
                device.curve = ThinnedTable(_CURVE, rows)
                device.text = TableText(device.curve)
        return device

    def add(self, node: int, sample: Mapping[str, Any]) -> None:
        """Take in a `schema.SystemLine` of a machine; one that is known already changes nothing."""
        at = float(sample["time"])
        about = self._nodes.setdefault(node, _Node())
        if at == about.sampled:
            return
        about.sampled, about.heard = at, time.monotonic()
        readings = sample.get("gpus") or ()
        if not self._on_gpu:
            cores = (sample.get("cores") or ())[:CORES_MAX]
            readings = [{"index": index, "util": percent} for index, percent in enumerate(cores)]
        for index, part, reading in with_parts(readings):
            device = self._device(node, index, part)
            device.recent.append(reading)
            if device.curve is not None:
                device.curve.append({"time": at, **reading})
        if self._many and node == 0:
            self._add_spread(at)

    def _add_spread(self, at: float) -> None:
        """The devices of all machines at this moment, as far as they told."""
        row: dict[str, float | None] = {"time": at}
        latest = [device.recent[-1] for device in self._devices.values() if device.recent]
        for name in _CURVE:
            values = [reading[name] for reading in latest if reading.get(name) is not None]
            if name != "time" and values:
                row |= {f"{name}_low": min(values), f"{name}_high": max(values)}
                row[name] = median(values)
        self._spread.append(row)

    def grid(self) -> dict[str, Any] | None:
        """See `schema.ViewDoc`; None where nothing is known of any device."""
        ordered = [device for _, device in sorted(self._devices.items())]
        missing = self._missing()
        if not ordered and not missing:
            return None
        named = {(d.name, d.memory_total_bytes, d.power_limit_w): None for d in ordered}
        models = {key: number for number, key in enumerate(named)}
        of = [models[d.name, d.memory_total_bytes, d.power_limit_w] for d in ordered]
        readings = [device.reading() for device in ordered]
        peers = beside_peers([self._label(d) for d in ordered], of, readings, judged=self._on_gpu)
        digits = digits_of(len(ordered))
        masks = [d.recent[-1].get("throttle_reasons") if d.recent else None for d in ordered]
        slowed = [throttle_text(mask) for mask in masks]
        named_slow = dict.fromkeys(["", *(text for text in slowed if text is not None)])
        reasons = {text: number for number, text in enumerate(named_slow)}
        return {
            "kind": "gpu" if self._on_gpu else "core",
            "models": [
                {"name": name, "memory_total_bytes": memory, "power_limit_w": limit, "usual": usual}
                for (name, memory, limit), usual in zip(models, peers.usual, strict=True)
            ],
            "nodes": self._node_rows(ordered),
            "model": of if len(models) > 1 else [],
            **{name: coded([[device[name] for device in readings]], digits) for name in COLUMNS},
            "deviation": coded([peers.deviation], digits),
            "throttle": [None if text is None else reasons[text] for text in slowed],
            "reasons": list(reasons),
            "outliers": peers.outliers,
            "missing": missing,
        }

    def _node_rows(self, ordered: Sequence[_Device]) -> list[dict[str, Any]]:
        """Machines in order; the columns hold their devices one machine after the other."""
        by_node: dict[int, list[_Device]] = {}
        for device in ordered:
            by_node.setdefault(device.node, []).append(device)
        rows: list[dict[str, Any]] = []
        for node, devices in by_node.items():
            row: dict[str, Any] = {"node": node, "count": len(devices)}
            host = self._nodes.get(node, _Node()).host
            row |= {"host": host} if host else {}
            own = [device.index for device in devices]
            row |= {} if own == list(range(len(own))) else {"index": own}
            parts = [self._part(device) for device in devices]
            rows.append(row | ({} if set(parts) == {None} else {"part": parts}))
        return rows

    def _part(self, device: _Device) -> int | None:
        """Which slice of its card it is; None where no other one of it is here."""
        several = (device.node, device.index, 1) in self._devices
        return device.part if several else None

    def _label(self, device: _Device) -> str:
        own = self._own_name(device)
        return own + (f" of node {device.node}" if self._count > 1 else "")

    def _own_name(self, device: _Device) -> str:
        if not self._on_gpu:
            return f"core {device.index}"
        return card_name(device.index, self._part(device))

    def _missing(self) -> list[str]:
        """Sentences for people: whose readings are not there."""
        now = time.monotonic()
        sampled = {node: state for node, state in self._nodes.items() if state.sampled}
        silent = [node for node in range(self._count) if node not in sampled]
        stale = [n for n, node in sorted(sampled.items()) if now - node.heard > _SILENT_SECONDS]
        sentences: list[str] = []
        if silent:
            sentences.append(f"No readings yet from {listed_numbers('node', silent)}.")
        if stale:
            sentences.append(
                f"No news for {_SILENT_SECONDS:.0f} s from {listed_numbers('node', stale)}."
            )
        if self._on_gpu:
            lost = [
                d for _, d in sorted(self._devices.items()) if d.node in sampled and not d.answers
            ]
            if lost:
                labels = format_some([self._label(device) for device in lost], _NAMED)
                sentences.append(f"No readings from the driver for {labels}.")
            sentences += self._untold([d for d in self._devices.values() if d.answers])
        return sentences

    def _untold(self, devices: Sequence[_Device]) -> Iterator[str]:
        """What the driver tells nothing of, for cards that answer otherwise."""
        for name, words in _READINGS.items():
            untold = [d for d in devices if d.recent[-1].get(name) is None]
            if untold:
                labels = format_some([self._label(device) for device in untold], _NAMED)
                yield f"The driver does not tell the {words} of {labels}."

    def _about(self, device: _Device) -> dict[str, Any]:
        several, part = self._count > 1, self._part(device)
        own = card_name(device.index, part)
        return {
            "id": f"n{device.node} {own}" if several else own,
            "node": device.node,
            "index": device.index,
            **({} if part is None else {"part": part}),
            "name": device.name,
            "memory_total_bytes": device.memory_total_bytes,
            "power_limit_w": device.power_limit_w,
        }

    def curves(self) -> str:
        """Each device's own curve, where there are few, as JSON; only what is new is encoded."""
        texts = (
            encode_parts(self._about(device), {"series": device.text.text()}).decode()
            for _, device in sorted(self._devices.items())
            if device.text is not None
        )
        return f"[{','.join(texts)}]"

    def spread(self) -> str:
        """Lowest, median and highest of all devices, where they are too many for curves; JSON."""
        return self._spread_text.text() if self._many else "{}"

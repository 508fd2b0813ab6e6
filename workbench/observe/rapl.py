"""Energy of the processors, as Linux counts it (RAPL), where this user may read that.

``/sys/class/powercap/intel-rapl:N`` is package N, also on AMD; ``intel-rapl:N:M`` named "dram" its
memory. Since 2020 most systems let root alone read them (CVE-2020-8694). They count for the whole
machine, whoever uses it.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

ROOT = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")
_PART = re.compile(r"intel-rapl:\d+:\d+")


class ProcessorEnergy:
    """Adds up the counters of this machine; each starts again at its range."""

    def __init__(self, root: Path = ROOT) -> None:
        """`root`: where the kernel shows them."""
        self._zones = list(_zones(root))
        self._before: dict[Path, float] = {}
        self._turns: dict[Path, float] = {}

    def joules(self) -> float | None:
        """Since a moment that stays the same; None where a counter cannot be read."""
        total = 0.0
        for zone in self._zones:
            now = _microjoules(zone / "energy_uj")
            if now is None:
                return None
            if now < self._before.get(zone, 0.0):
                span = _microjoules(zone / "max_energy_range_uj") or 0.0
                self._turns[zone] = self._turns.get(zone, 0.0) + span
            self._before[zone] = now
            total += now + self._turns.get(zone, 0.0)
        return total / 1e6 if self._zones else None


def _zones(root: Path) -> list[Path]:
    """Packages, and their memory where that is counted beside them."""
    zones: list[Path] = []
    with contextlib.suppress(OSError):
        for zone in sorted(root.iterdir()):
            name = _text(zone / "name")
            package = _PACKAGE.fullmatch(zone.name) and name.startswith("package")
            if package or (_PART.fullmatch(zone.name) and name == "dram"):
                zones.append(zone)
    return zones


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _microjoules(path: Path) -> float | None:
    text = _text(path)
    return float(text) if text.isdecimal() else None

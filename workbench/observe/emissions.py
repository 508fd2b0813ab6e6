"""Energy as people ask for it: kWh, tokens for a joule, and CO2e by a stated factor of the grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.observe.energy import JOULES_PER_KWH, Energy
from workbench.store.schema import EnergyDoc
from workbench.units import UNKNOWN, format_grams, format_joules

WORLD_GCO2E_PER_KWH = 445.0
WORLD_SOURCE = "world average of 2024 (IEA, Electricity 2025, February 2025; CO2 alone)"
"""www.iea.org/reports/electricity-2025/emissions. Countries lie between about 20 and 700."""
FROM_OPTION = "given (--grid-co2e)"


def energy_document(energy: Energy, tokens: int | None, grid: float | None) -> EnergyDoc:
    """The view's ``energy``.

    Args:
        energy: What was counted.
        tokens: What the steps consumed meanwhile; None = unknown.
        grid: Grams of CO2e for a kWh where the machines stand; None = not given.
    """
    factor = WORLD_GCO2E_PER_KWH if grid is None else grid
    kwh = None if energy.joules is None else energy.joules / JOULES_PER_KWH
    return {
        "joules": _rounded(energy.joules),
        "gpu_joules": _rounded(energy.gpu_joules),
        "processor_joules": _rounded(energy.processor_joules),
        "kwh": _rounded(kwh),
        "tokens": tokens,
        "tokens_per_joule": _rounded(tokens / energy.joules if tokens and energy.joules else None),
        "co2e_grams": _rounded(None if kwh is None else kwh * factor),
        "grid_gco2e_per_kwh": factor,
        "grid_source": WORLD_SOURCE if grid is None else FROM_OPTION,
        "notes": list(energy.notes),
    }


def energy_text(document: Mapping[str, Any] | None) -> str:
    """A view's ``energy`` in a line; "" where nothing was counted.

    >>> energy_text({"joules": 7.2e6, "tokens_per_joule": 0.5, "co2e_grams": 890.0,
    ...              "grid_gco2e_per_kwh": 445.0, "grid_source": "given (--grid-co2e)"})
    '2 kWh, 0.5 tokens/J, 890 g CO2e at 445 g/kWh: given (--grid-co2e)'
    """
    energy = document or {}
    joules, rate = energy.get("joules"), energy.get("tokens_per_joule")
    if joules is None:
        return ""
    tokens = "" if rate is None else f", {rate:.3g} tokens/J"
    factor = energy.get("grid_gco2e_per_kwh") or WORLD_GCO2E_PER_KWH
    emitted = format_grams(energy.get("co2e_grams"))
    where = energy.get("grid_source") or UNKNOWN
    return f"{format_joules(joules)}{tokens}, {emitted} CO2e at {factor:g} g/kWh: {where}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")

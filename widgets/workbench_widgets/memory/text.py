"""The memory calculator without JavaScript: the same figures as lines of text."""

from __future__ import annotations

from typing import Any

from workbench.units import format_bytes

_BAR = 40  # characters of the longest bar
_SWITCHES_MAX = 6
_NUMBERS = {"allocated": "allocated", "reserved": "reserved", "on_card": "on the card"}


def as_text(figure: dict[str, Any], advice: dict[str, Any]) -> str:
    """Figure and advice for terminals, screen readers and pages without JavaScript."""
    lines = [figure["headline"], figure["setting"], "", *_bars(figure), ""]
    lines += [f"  {card['name']}: {card['says']}" for card in figure["cards"]]
    lines += ["", f"Highest: {figure['peak']}."]
    lines += [f"  {sentence}" for sentence in advice.get("why", [])]
    rows = advice.get("switches", [])[:_SWITCHES_MAX]
    if rows:
        lines += ["", "Ways to save memory:"]
    for row in rows:
        saved = format_bytes(-row["saves"])
        lines += [f"  {saved:>10}  {row['name']}", f"  {'':>10}  {row['cost']}"]
    return "\n".join(lines)


def _bars(figure: dict[str, Any]) -> list[str]:
    parts = figure["parts"]
    largest = max((part["bytes"] for part in parts), default=1)
    lines = []
    for part in parts:
        bar = "#" * round(_BAR * part["bytes"] / largest)
        lines.append(f"  {part['name']:<24}{format_bytes(part['bytes']):>10}  {bar}".rstrip())
    numbers = [f"  = {name:<22}{format_bytes(figure[key]):>10}" for key, name in _NUMBERS.items()]
    return [*lines, *numbers]

"""The cost calculator without JavaScript: the same figures as lines of text."""

from __future__ import annotations

from typing import Any

_BAR = 30  # characters of the longest bar


def as_text(figure: dict[str, Any]) -> str:
    """The figure for terminals, screen readers and pages without JavaScript."""
    offer = figure["offer"]
    marks = f" ({', '.join(offer['marks'])})" if offer["marks"] else ""
    lines = [figure["headline"], figure["setting"], offer["says"] + marks]
    lines += [figure["lacks"]] if figure["lacks"] else []
    lines += [f"Price: {offer['source'] or 'n/a'}, {offer['date']}", ""]
    lines += [
        f"  {one['name']:<16}{one['value']:>14}  {one['says']}".rstrip()
        for one in figure["numbers"]
    ]
    lines += ["", *bill_lines(figure["bill"]), "", f"Step: {figure['step']['says']}"]
    lines += part_lines(figure["step"]["parts"])
    lines += ["", figure["spot"]["verdict"]]
    return "\n".join(lines)


def bill_lines(bill: dict[str, Any]) -> list[str]:
    """Term by term, the sources below."""
    lines = [f"  {one['name']:<24}{one['says']:>12}  {one['how']}" for one in bill["terms"]]
    lines.append(f"  {'= finished run':<24}{bill['total']:>12}")
    sources = dict.fromkeys(
        f"{one['source']}, {one['date'] or 'undated'}" for one in bill["terms"] if one["source"]
    )
    return [*lines, *(f"  Source: {source}" for source in sources)]


def part_lines(parts: list[dict[str, Any]]) -> list[str]:
    """Parts with bars."""
    most = max((part["share"] for part in parts), default=1.0)
    lines: list[str] = []
    for part in parts:
        bar = "#" * round(_BAR * part["share"] / most)
        lines.append(f"  {part['name']:<38}{part['says']:>18}  {bar}".rstrip())
    return lines

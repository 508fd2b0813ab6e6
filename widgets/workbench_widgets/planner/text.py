"""The planner without JavaScript: the same answer as lines of text."""

from __future__ import annotations

from typing import Any

_ROWS = 10


def as_text(
    figure: dict[str, Any],
    points: dict[str, Any],
    story: dict[str, Any],
    rejected: dict[str, Any],
) -> str:
    """Table, sentences and counts for terminals, screen readers and pages without JavaScript."""
    lines = [figure["headline"], figure["setting"]]
    if figure["kept"]:
        lines += ["", f"{'':<5}{'where':<40}{'time':>12}{'cost':>12}  layout"]
    for row, at in enumerate(figure["kept"][:_ROWS]):
        one = points["rows"][at]
        mark = f"{row + 1}{' *' if at in figure['front'] else ''}"
        marks = f"  ({', '.join(one['marks'])})" if one["marks"] else ""
        numbers = f"{one['time']:>12}{one['cost']:>12}"
        lines.append(f"{mark:<5}{one['where']:<40}{numbers}  {one['layout']}{marks}")
    if figure["kept"]:
        lines.append("* no other plan is both cheaper and faster")
    if story.get("explain"):
        lines += ["", *story["explain"]]
    if story.get("sensitivity"):
        lines += ["", *(one["says"] for one in story["sensitivity"])]
    groups = [*story.get("lost", []), *rejected.get("groups", [])]
    if groups:
        lines += ["", "Rejected layouts:"]
        lines += [f"  {one['count']:>9,}  {one['kind']}" for one in groups]
    return "\n".join(lines)

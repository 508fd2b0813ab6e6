"""What a soak showed, as text: rounds by strategy, victim and damage, failures, costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from .soak_plan import Plan

Line = Mapping[str, Any]
_OF: dict[str, Callable[[Line], str]] = {
    "strategy": lambda line: line["plan"]["strategy"],
    "victim": lambda line: " and ".join(line["plan"]["victims"]),
    "damage": lambda line: (
        line["plan"]["damage"] if line["damaged"] or line["damaged_restarts"] else "none"
    ),
}


def summary(rounds: Sequence[Line]) -> str:
    """The whole text."""
    failed = [line for line in rounds if line["why"] and not line["skipped"]]
    skipped = [line for line in rounds if line["skipped"]]
    played = [line for line in rounds if not line["skipped"]]
    of_damaged = sum(line["damaged"] for line in played)
    of_restarts = sum(line["damaged_restarts"] for line in played)
    lines = [
        f"{len(played)} rounds, {len(failed)} wrong, {len(skipped)} skipped",
        f"{sum(line['resumes'] for line in played)} resumes by hand, {of_damaged} after damage",
        f"{of_restarts} automatic restarts after damage",
    ]
    for title, group in _OF.items() if played else ():
        lines += ["", f"{title:46} rounds  wrong  s (median, most)  CPU s (mean)"]
        names = sorted({group(line) for line in played})
        lines += [_row(name, [one for one in played if group(one) == name]) for name in names]
    lines += [f"skipped: {_plan(line)}: {line['why']}" for line in skipped]
    for line in failed:
        lines += ["", f"round {_plan(line).number} ({_plan(line)}): {line['why']}"]
        lines += [f"  again: {_plan(line).command}"]
    return "\n".join(lines)


def _row(name: str, lines: Sequence[Line]) -> str:
    wrong = sum(bool(line["why"]) for line in lines)
    seconds = [line["seconds"] for line in lines]
    cpu_seconds = mean(line["cpu_seconds"] for line in lines)
    times = f"{median(seconds):.1f}, {max(seconds):.1f}"
    return f"{name:46} {len(lines):6} {wrong:6}  {times:>16}  {cpu_seconds:12.1f}"


def _plan(line: Line) -> Plan:
    return Plan(**line["plan"] | {"victims": tuple(line["plan"]["victims"])})

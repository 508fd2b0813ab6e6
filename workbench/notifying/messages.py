"""What there is to tell about a run, as messages of a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.notifying.targets import Level
from workbench.store.commands import command_for
from workbench.store.findings import Finding
from workbench.store.secrets import hide_known
from workbench.units import UNKNOWN, format_seconds, format_usd

_GOOD = {"succeeded", "stopped"}
_MOST = 1500  # characters of a message: less than any service takes
_ORDER: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, before it is given to a service."""

    title: str
    """One line: which run, and what."""
    body: str
    """Evidence, cause and next command, a line each."""
    severity: Level
    """The worst of what it tells."""


def reaches(finding: Finding, least: Level) -> bool:
    """Whether a target that wants `least` and worse gets the finding."""
    return least != "none" and _ORDER.index(finding.severity) <= _ORDER.index(least)


def about_findings(
    name: str, run: Path, findings: Sequence[Finding], before: Mapping[str, str]
) -> Message:
    """Of findings that stand, worst first.

    `run`: the run's folder. `before`: id -> the kind by which it was told first.
    """
    worst = findings[0]
    title = f"{name}: {worst.kind}"
    if len(findings) > 1:
        title += f" and {len(findings) - 1} more"
    lines: list[str] = []
    for finding in findings:
        at = "" if finding.step is None else f" (step {finding.step:,})"
        first = f", told before as {before[finding.id]}" if finding.id in before else ""
        lines += [
            f"{finding.severity}: {finding.kind}{at}{first}",
            finding.evidence,
            finding.cause,
            finding.next_for(run),
            "",
        ]
    return _message(title, [*lines, f"All of it: {command_for(run, 'diagnose')}"], worst.severity)


def about_restart(name: str, run: Path, restarts: int, allowed: int, why: str) -> Message:
    """Of a run that was started again by itself; `restarts` = 0: it was rolled back."""
    made = f"It was started again by itself: restart {restarts} of at most {allowed}."
    text = made if restarts else "It was rolled back by itself."
    lines = [text, *([why] if why else []), f"Why: {command_for(run, 'diagnose')}"]
    return _message(f"{name}: {'restarted' if restarts else 'rolled back'}", lines, "warning")


def about_end(name: str, run: Path, outcome: str, summary: dict[str, Any]) -> Message:
    """Of a run that has ended; `summary` as ``workbench show --json`` has it."""
    loss, usd = summary.get("loss_last"), summary.get("usd_so_far")
    figures = [
        f"{summary.get('steps') or 0:,} steps",
        f"loss {UNKNOWN if loss is None else f'{loss:.4g}'}",
        format_seconds(summary.get("elapsed_seconds")),
        *([] if usd is None else [format_usd(usd)]),
    ]
    good = outcome in _GOOD
    after = command_for(run, "show" if good else "diagnose")
    lines = [summary.get("message") or "", ", ".join(figures), f"More: {after}"]
    return _message(f"{name}: {outcome}", lines, "note" if good else "error")


def joined(messages: Sequence[Message]) -> Message:
    """Several that waited, as one."""
    if len(messages) == 1:
        return messages[0]
    worst = min(messages, key=lambda message: _ORDER.index(message.severity))
    lines = [line for message in messages for line in (message.title, message.body, "")]
    return _message(f"{worst.title}, and {len(messages) - 1} more", lines, worst.severity)


def _message(title: str, lines: Sequence[str], severity: Level) -> Message:
    """Without secrets, and short enough for every service."""
    body = hide_known("\n".join(lines).strip())
    if len(body) > _MOST:
        body = f"{body[:_MOST]} …"
    return Message(title=hide_known(title)[:200], body=body, severity=severity)

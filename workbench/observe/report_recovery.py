"""What report.html says of a run's troubles: findings, attempts and what they cost, checkpoints."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from workbench.store.findings import Finding, parse_findings, read_findings
from workbench.store.layout import RunPaths
from workbench.store.starts import read_attempts
from workbench.units import format_bytes, format_seconds, format_usd

STYLE = """
.finding{border-left:4px solid var(--mute);padding:6px 14px 8px;margin:10px 0;
background:var(--card);overflow-wrap:anywhere}.finding.error{border-color:var(--c4)}.finding.warning{border-color:var(--c5)}
.finding.note{border-color:var(--c0)}.finding p{margin:2px 0}.finding h3{font-size:15px;margin:0}
.finding.cleared{opacity:.75}td.wide{overflow-wrap:anywhere;max-width:560px}
"""
_MOST_CHARACTERS = 2000
_MOST = 100  # attempts and checkpoints told; a crash loop must not make a page of megabytes

REHEARSED_KIND = "rehearsed"
"""The kind of a checkpoint in the view of a rehearsal, which writes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWork:
    """What the restarts of a run cost, and the rewinds of its script within an attempt."""

    steps: int
    """Optimizer steps that were made twice, since they lay behind the checkpoint resumed from."""
    repeat_seconds: float | None
    """Time for making them again, at the median step."""
    pause_seconds: float
    """From the end of an attempt to the start of the next one."""
    usd: float | None
    """The repetition at the run's price; None = price or step time unknown. Pauses are left out,
    as in the run's cost so far: nothing tells whether the machines were rented meanwhile."""


def lost(attempts: Sequence[Mapping[str, Any]], view: Mapping[str, Any]) -> LostWork | None:
    """What restarts and rewinds took, from attempts.jsonl and the view; None when there was none.

    >>> end = {"event": "end", "attempt": 1, "time": 190.0, "last_step": 71}
    >>> start = {"event": "start", "attempt": 2, "time": 200.0, "first_step": 60}
    >>> lost([end, start], {"step_seconds_median": 2.0, "usd_per_hour": 36.0})
    LostWork(steps=11, repeat_seconds=22.0, pause_seconds=10.0, usd=0.22)
    """
    redone = int(_number(view, "steps_redone") or 0)
    steps, pause, ended, again = redone, 0.0, None, redone > 0
    for line in attempts:
        if line.get("event") == "end":
            ended = line
        elif ended is not None:
            again = True
            last_step, first_step = (
                _number(ended, "last_step") or 0,
                _number(line, "first_step") or 0,
            )
            steps += max(0, int(last_step - first_step))
            pause += max(0.0, (_number(line, "time") or 0.0) - (_number(ended, "time") or 0.0))
            ended = None
    if not again:
        return None
    median, price = _number(view, "step_seconds_median"), _number(view, "usd_per_hour")
    repeat = None if median is None else steps * median
    usd = None if repeat is None or price is None else repeat * price / 3600
    return LostWork(steps=steps, repeat_seconds=repeat, pause_seconds=pause, usd=usd)


def troubles(paths: RunPaths, view: Mapping[str, Any]) -> str:
    """Findings, attempts and checkpoints as inert HTML; sections without content are left out."""
    findings = read_findings(paths) or parse_findings(view.get("findings"))
    attempts = read_attempts(paths) or _documents(view.get("attempts"))
    parts = [_findings(findings), _attempts(attempts, view), _checkpoints(view)]
    return "\n".join(part for part in parts if part)


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<h2>Findings</h2><p>No findings.</p>"
    standing = [finding for finding in findings if finding.cleared_at is None]
    cleared = [finding for finding in findings if finding.cleared_at is not None]
    return "<h2>Findings</h2>" + "".join(
        _finding(finding) for finding in [*standing, *cleared[:_MOST]]
    )


def _finding(finding: Finding) -> str:
    cleared, severity = finding.cleared_at is not None, finding.severity
    words = [
        f"{severity}, {_over(finding)}" if cleared else severity,
        finding.place,
        *([] if finding.step is None else [f"since step {finding.step}"]),
        f"{100 * finding.confidence:.0f} % sure",
    ]
    about = html.escape(" · ".join(words))
    kind = html.escape(finding.kind.replace("-", " "))
    cause, evidence, action = (
        html.escape(text[:_MOST_CHARACTERS])
        for text in (finding.cause, finding.evidence, finding.next)
    )
    return (
        f'<div class="finding {severity}{" cleared" if cleared else ""}">'
        f"<h3>{kind} <small>{about}</small></h3><p>{cause}</p>"
        f'<p class="mute">Evidence: {evidence}</p><p>Next: {action}</p></div>'
    )


def _over(finding: Finding) -> str:
    by = finding.replaced_by
    return "cleared" if by is None else f"replaced by {by}"


def _repeated(cost: LostWork) -> str:
    """How many steps were made twice, and what that took, as far as it is known."""
    if cost.steps == 0:
        return "no step was made twice"
    took = [] if cost.repeat_seconds is None else [format_seconds(cost.repeat_seconds)]
    price = "" if cost.usd is None else f": {format_usd(cost.usd)}"
    return f"{cost.steps} step{_were(cost.steps)} made twice" + "".join(
        f" ({text} at the median step{price})" for text in took
    )


def _attempts(attempts: list[dict[str, Any]], view: Mapping[str, Any]) -> str:
    cost = lost(attempts, view)
    if cost is None:
        return ""
    rows = list[str]()
    for line in attempts[-2 * _MOST :]:
        start = line.get("event") == "start"
        step = _number(line, "first_step" if start else "last_step")
        at = _number(line, "time")
        cells = [
            f"attempt {_text(line, 'attempt')} {'began' if start else 'ended'}",
            "n/a" if at is None else _clock(at),
            "n/a" if step is None else f"{step:.0f}",
            _text(line, "why" if start else "message", ""),
        ]
        rows.append(_row(cells))
    sentence = (
        f"Restarts and rewinds: {_repeated(cost)}; {format_seconds(cost.pause_seconds)} passed "
        "between attempts, which the cost so far leaves out."
    )
    head = "<tr><th></th><th>when</th><th>step</th><th></th></tr>"
    return f"<h2>Attempts</h2><table>{head}{''.join(rows)}</table><p>{html.escape(sentence)}</p>"


def _were(count: int) -> str:
    return " was" if count == 1 else "s were"


def _checkpoints(view: Mapping[str, Any]) -> str:
    checkpoints = _documents(view.get("checkpoints"))[:_MOST]
    if not checkpoints:
        return ""
    rows = list[str]()
    for checkpoint in checkpoints:
        step, size, at = (_number(checkpoint, name) for name in ("step", "bytes", "saved_at"))
        cells = [
            "n/a" if step is None else f"{step:.0f}",
            format_bytes(None if size is None else int(size)),
            "n/a" if at is None else _clock(at),
            html.escape(verified_text(checkpoint)),
            _text(checkpoint, "path"),
        ]
        rows.append(_row(cells))
    head = "<tr><th>step</th><th>size</th><th>saved</th><th>verified</th><th>where</th></tr>"
    return f"<h2>Checkpoints</h2><table>{head}{''.join(rows)}</table>"


def verified_text(checkpoint: Mapping[str, Any]) -> str:
    """What is known of a checkpoint of the view, in a word or two."""
    if checkpoint.get("kind") == REHEARSED_KIND:
        return "rehearsed, not written"
    if checkpoint.get("problem"):
        return f"broken: {checkpoint['problem']}"
    return "complete" if checkpoint.get("sealed") else "not verified yet"


def _row(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f'<td class="wide">{cell}</td>' for cell in cells) + "</tr>"


def _text(row: Mapping[str, Any], name: str, unknown: str = "n/a") -> str:
    value = row.get(name)
    return html.escape(unknown if value is None else str(value)[:_MOST_CHARACTERS])


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _clock(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "n/a"


def _documents(value: Any) -> list[dict[str, Any]]:
    """The objects of a list, whatever else it holds."""
    if not isinstance(value, list):
        return []
    return [
        cast("dict[str, Any]", row) for row in cast("list[Any]", value) if isinstance(row, dict)
    ]

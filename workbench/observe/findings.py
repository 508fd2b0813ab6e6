"""The findings of a run as its directory keeps them: one reader for all who tell of them.

`show`, view.json, report.html, the trackers and `diagnose` say the same because they read the same:
what the supervisor's rules wrote, and the verdict's own finding where it came after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from workbench.store.files import read_json
from workbench.store.layout import RunPaths

_WORDS = ("kind", "evidence", "cause", "next")
_SEVERITIES = ("error", "warning", "note")
_OTHERS = ("confidence", "severity", "rank", "step", "seen_at", "cleared_at")
FIELDS = (*_WORDS, *_OTHERS)
"""Of a finding's document; a test holds them and `diagnose.finding.Finding` together."""


def kept_findings(paths: RunPaths) -> list[dict[str, Any]] | None:
    """What was found so far, worst first; None where nobody has looked."""
    if not paths.findings.exists():
        return None
    found = read_documents((read_json(paths.findings) or {}).get("findings"))
    end = read_json(paths.exit) or {}
    last = finding_document(end.get("finding"))
    if last is not None and _key(last) not in {_key(one) for one in found}:
        found.append(last | {"seen_at": last["seen_at"] or _number(end.get("ended_at"))})
    return sorted(found, key=_badness)


def read_documents(listed: object) -> list[dict[str, Any]]:
    """The findings among what a file lists; what is none is left out."""
    entries = cast("list[Any]", listed) if isinstance(listed, list) else []
    return [one for entry in entries if (one := finding_document(entry)) is not None]


def finding_document(entry: object) -> dict[str, Any] | None:
    """A finding with all its fields, unknown ones None; None when it is no finding."""
    if not isinstance(entry, Mapping):
        return None
    known = cast("Mapping[str, Any]", entry)
    document = {name: known.get(name) for name in FIELDS}
    if not all(isinstance(document[name], str) for name in _WORDS):
        return None
    if _number(document["confidence"]) is None:
        return None
    if document["severity"] not in _SEVERITIES:
        document["severity"] = "warning"
    return document


def _badness(one: Mapping[str, Any]) -> tuple[bool, int, float]:
    """Standing before cleared, errors first, then by when it was seen."""
    severity = _SEVERITIES.index(one["severity"])
    return one["cleared_at"] is not None, severity, _number(one["seen_at"]) or 0.0


def _key(one: Mapping[str, Any]) -> tuple[Any, Any]:
    return one["kind"], one["rank"]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)

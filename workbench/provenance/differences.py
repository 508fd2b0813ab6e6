"""What a run was made from, flat, so that two runs can be set beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

_WORDS = ("commit", "uncommitted changes", "Python", "package ", "file ", "data ", "variable ")
_DIGITS = 12  # of a SHA-256: enough to tell two apart by eye


def described(run: Mapping[str, Any]) -> dict[str, Any]:
    """What -> value, of a run.json: host, commit, changes, files, packages, data, variables."""
    found = _machine(run.get("cluster") or {})
    known: dict[str, Any] | None = run.get("provenance")
    if known is None:
        return found
    found |= {
        "commit": known.get("commit"),
        "uncommitted changes": _short(known.get("changes_sha256")),
        "Python": known.get("python"),
    }
    found |= {f"file {name}": _short(digest) for name, digest in _table(known, "files").items()}
    found |= {f"package {name}": version for name, version in _table(known, "packages").items()}
    found |= {f"variable {name}": value for name, value in _table(known, "environment").items()}
    parts = cast("list[dict[str, Any]]", known.get("data") or [])
    began: Mapping[str, Any] = run.get("resumed_from") or {}
    for part in parts:
        if part.get("path") == began.get("checkpoint"):
            continue  # a fork's arguments name it
        name = f"data {part.get('option') or part.get('path')}"
        found[name] = f"{part.get('path')}, {part.get('bytes')} bytes, {_short(part.get('sha256'))}"
    return found


def is_of_provenance(name: str) -> bool:
    """Whether only a run whose provenance is known can have a value of that name."""
    return name.startswith(_WORDS)


def _table(known: Mapping[str, Any], name: str) -> dict[str, str]:
    return known.get(name) or {}


def _short(digest: Any) -> str | None:
    return None if digest is None else str(digest)[:_DIGITS]


def _machine(cluster: Mapping[str, Any]) -> dict[str, Any]:
    gpus = cast("list[dict[str, Any]]", cluster.get("gpus") or [])
    names = sorted({str(one.get("name")) for one in gpus})
    return {
        "GPUs": f"{len(gpus)} x {', '.join(names)}" if gpus else None,
        "host": cluster.get("name"),
        "CPU": cluster.get("cpu_name"),
    }


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``{"what", "was", "now"}`` for all that is another in the run.json `after` than in `before`.

    Where `before` was recorded without a provenance, one row says so in place of all the others.
    """
    was, now = described(before), described(after)
    if before.get("provenance") is None:
        now = {name: now[name] for name in was}
    rows = [
        {"what": name, "was": was.get(name), "now": now.get(name)}
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]
    if before.get("provenance") is None:
        rows.append({"what": "provenance", "was": None, "now": "recorded"})
    return rows

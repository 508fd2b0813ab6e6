"""What a run was made from, flat, so that two runs can be set beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.store.run_record import RunRecord

_WORDS = ("commit", "uncommitted changes", "Python", "package ", "file ", "data ", "variable ")
_DIGITS = 12  # of a SHA-256: enough to tell two apart by eye


def described(run: RunRecord) -> dict[str, Any]:
    """What -> value, of a run.json: host, commit, changes, files, packages, data, variables."""
    values, provenance = _machine(run.cluster), run.provenance
    if provenance is None:
        return values
    values |= {
        "commit": provenance.get("commit"),
        "uncommitted changes": _short(provenance.get("changes_sha256")),
        "Python": provenance.get("python"),
    }
    values |= {
        f"file {name}": _short(digest) for name, digest in provenance.get("files", {}).items()
    }
    values |= {f"package {name}": text for name, text in provenance.get("packages", {}).items()}
    values |= {f"variable {name}": text for name, text in provenance.get("environment", {}).items()}
    for part in provenance.get("data", ()):
        if part.get("path") == (run.resumed_from or {}).get("checkpoint"):
            continue  # a fork's arguments name it
        name = f"data {part.get('option') or part.get('path')}"
        if name in values:  # several files of one option
            name = f"{name} {part.get('path')}"
        values[name] = (
            f"{part.get('path')}, {part.get('bytes')} bytes, {_short(part.get('sha256'))}"
        )
    return values


def is_of_provenance(name: str) -> bool:
    """Whether only a run whose provenance is known can have a value of that name."""
    return name.startswith(_WORDS)


def _short(digest: Any) -> str | None:
    return None if digest is None else str(digest)[:_DIGITS]


def _machine(cluster: Mapping[str, Any]) -> dict[str, Any]:
    gpus: list[dict[str, Any]] = cluster.get("gpus") or []
    names = sorted({str(gpu.get("name")) for gpu in gpus})
    return {
        "GPUs": f"{len(gpus)} x {', '.join(names)}" if gpus else None,
        "host": cluster.get("name"),
        "CPU": cluster.get("cpu_name"),
    }


def differences(before: RunRecord, after: RunRecord) -> list[dict[str, Any]]:
    """``{"what", "was", "now"}`` for all that is another in the run.json `after` than in `before`.

    Where `before` was recorded without a provenance, one row says so in place of all the others.
    """
    was, now = described(before), described(after)
    if before.provenance is None:
        now = {name: now[name] for name in was}
    rows = [
        {"what": name, "was": was.get(name), "now": now.get(name)}
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]
    if before.provenance is None:
        rows.append({"what": "provenance", "was": None, "now": "recorded"})
    return rows

"""What a run was made from, flat, so that two runs can be set beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.store.run_record import RunRecord
from workbench.units import UNKNOWN

_WORDS = ("commit", "uncommitted changes", "Python", "package ", "file ", "data ", "variable ")
_FILE, _HOST = "file ", "host"
_MACHINE = ("GPUs", _HOST, "CPU")
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


def script_and_machine(run: RunRecord) -> dict[str, Any]:
    """The part of `described` without which two results are not of the same work: What -> value."""
    return {name: value for name, value in described(run).items() if is_script_or_machine(name)}


def is_script_or_machine(name: str) -> bool:
    """Whether a value of that name is in `script_and_machine`."""
    return name in _MACHINE or name.startswith(_FILE)


def changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is another now, of two `script_and_machine`, in words; the host's name is not told.

    An older record may know neither its machine nor the script's files: nothing is told of those.

    >>> changes({"file a.py": "12", "CPU": "x"}, {"file a.py": "34", "CPU": "y"})
    ['a.py has changed', 'the CPU is y, not x']
    >>> changes({"host": None, "CPU": None}, {"host": "a", "CPU": "y", "file a.py": "12"})
    []
    """
    told = list[str]()
    knows_files = any(name.startswith(_FILE) for name in was)
    knows_machine = any(was.get(name) is not None for name in _MACHINE)
    for name in dict.fromkeys((*was, *now)):
        before, after = was.get(name), now.get(name)
        is_known = knows_files if name.startswith(_FILE) else knows_machine
        if name == _HOST or before == after or not is_known:
            continue
        if name.startswith(_FILE):
            verb = "is new" if before is None else "is gone" if after is None else "has changed"
            told.append(f"{name.removeprefix(_FILE)} {verb}")
        else:
            is_many = "are" if name == "GPUs" else "is"
            told.append(f"the {name} {is_many} {after or UNKNOWN}, not {before or UNKNOWN}")
    return told


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

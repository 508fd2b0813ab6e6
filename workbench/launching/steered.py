"""What was set while a run trained, for the attempts that come after."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from workbench.launching.capture.overrides import STEERED, Override
from workbench.launching.capture.steering import GO
from workbench.launching.supervise.rollback_environment import (
    RATE_VARIABLE,
    rollback_environment,
)
from workbench.store.files import read_file, read_json
from workbench.store.layout import RunPaths
from workbench.store.starts import read_attempts

_DECISION_BYTES = 400


_OPTIONS = {"lr": {"learning_rate", "max_lr", "peak_lr", "base_lr"}, "weight_decay": {"wd"}}
"""Other names under which scripts take a value of the optimizer."""


def steered(paths: RunPaths, first_step: int) -> list[dict[str, Any]]:
    """The changes of values that an attempt from `first_step` on begins with or comes to again.

    Of those that lie ahead the factor is not told: the schedule is met again where they begin.
    """
    changes: list[dict[str, Any]] = []
    for _, change in _set(paths):
        behind = change["first"] <= first_step
        changes.append(change if behind else {**change, "factor": None, "own": None})
    return changes


def _set(paths: RunPaths) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each change that still counts, with the name of its request."""
    gone: set[tuple[str, str]] | None = None
    for folder in sorted(paths.steering.glob("*-set")) if paths.steering.is_dir() else ():
        result = read_json(folder / "result-0.json") or {}
        if result.get("done") is not True or _decision(folder) != GO:
            continue
        gone = _replaced_pairs(paths) if gone is None else gone
        for document in result.get("changes") or ():
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a file that was damaged
                change = Override.read(document).document()
                if (folder.name, change["name"]) not in gone:
                    yield folder.name, change


def _replaced_pairs(paths: RunPaths) -> set[tuple[str, str]]:
    """Requests and names that the arguments of a resume have replaced."""
    pairs = set[tuple[str, str]]()
    for line in read_attempts(paths):
        listed: Any = line.get("unset")
        for entry in cast("list[Any]", listed) if isinstance(listed, list) else ():
            if isinstance(entry, list) and len(cast("list[Any]", entry)) == 2:
                request, name = cast("list[Any]", entry)
                pairs.add((str(request), str(name)))
    return pairs


def replaced_by(paths: RunPaths, words: Sequence[str]) -> list[list[str]]:
    """Request and name of each change whose value these arguments of the script replace."""
    return [
        [request, change["name"]] for request, change in _set(paths) if _give(words, change["name"])
    ]


def _give(words: Sequence[str], name: str) -> bool:
    """Whether one of the arguments is a value of this name."""
    return not {name, *_OPTIONS.get(name, ())}.isdisjoint(map(_bare, words))


def _bare(word: str) -> str:
    """The name that an argument gives: ``lr`` of ``--lr=1e-4`` and of ``optimizer.lr=1e-4``."""
    return word.partition("=")[0].lstrip("-").replace("-", "_").rpartition(".")[2]


def still_counts(paths: RunPaths, words: Sequence[str], first_step: int) -> tuple[str, ...]:
    """What a resume with new arguments says of values that were set, or lowered, on the way."""
    gone, name = {tuple(pair) for pair in replaced_by(paths, words)}, paths.directory.name
    current, replaced = list[str](), list[str]()
    for request, change in _set(paths):
        (replaced if (request, change["name"]) in gone else current).append(_change_text(change))
    notes = list[str]()
    if replaced:
        notes.append(
            f"The arguments replace what was set while {name} trained: {', '.join(replaced)}."
        )
    if current and words:
        notes.append(
            f"What was set while {name} trained still counts: {', '.join(current)}. Change it with "
            "workbench set."
        )
    lowered = rollback_environment(read_attempts(paths), first_step).get(RATE_VARIABLE)
    if lowered is not None and _give(words, "lr"):
        notes.append(f"Rollbacks have lowered the learning rate: {lowered} times what is given.")
    return tuple(notes)


def _change_text(change: Mapping[str, Any]) -> str:
    return f"{change['name']}={change['value']:g} at step {change['first']:,}"


def _decision(folder: Path) -> str:
    try:
        return read_file(folder / "decision", _DECISION_BYTES).decode()
    except (OSError, ValueError):
        return ""


def steered_environment(paths: RunPaths, first_step: int) -> dict[str, str]:
    """What tells the ranks of an attempt the values that were changed in those before."""
    changes = steered(paths, first_step)
    return {STEERED: json.dumps(changes)} if changes else {}


def dropped_note(paths: RunPaths) -> tuple[str, ...]:
    """A sentence where a new run lacks the values that were set while this one trained."""
    names = [_change_text(change) for change in steered(paths, 0)]
    if not names:
        return ()
    was = f"What was set while {paths.directory.name} trained is not kept: {', '.join(names)}."
    return (f"{was} Set it again with workbench set, or give it as an argument.",)

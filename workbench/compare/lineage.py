"""Which run began from which: rows of the table as trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.observe.rows import trial_of
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.names import is_id
from workbench.store.run_record import RunRecord
from workbench.store.runs import Store

_MOST_RUNS = 200  # of one picture; records may name each other without end


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One run in its tree."""

    row: Mapping[str, Any]
    """Its row."""
    depth: int = 0
    """0 = the root of a tree, or a run whose parent is not among the rows."""
    prefix: str = ""
    """Lines of the tree to draw before its id, for example ``"│ └ "``."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form of its place in the tree."""
        names = ("resumed_from", "resumed_step", "rerun_of")
        return {
            "run": self.row["run"],
            "depth": self.depth,
            "prefix": self.prefix,
            "origin": origin_text(self.row),
            **{name: self.row.get(name) for name in names},
        }


def parent_of(row: Mapping[str, Any]) -> str | None:
    """The run that it is a rerun of, or whose checkpoint it began from; None = neither."""
    return row.get("rerun_of") or row.get("resumed_from")


def origin_text(row: Mapping[str, Any]) -> str:
    """What a run began from, or whose trial it is, for people; "" = from nothing.

    >>> origin_text({"resumed_from": "gpt-ddp", "resumed_step": 400})
    'step 400 of gpt-ddp'
    """
    if row.get("rerun_of"):
        return f"rerun of {row['rerun_of']}"
    if not row.get("resumed_from"):
        return f"{row['sweep']}: {row['trial']}" if row.get("sweep") else ""
    step = row.get("resumed_step")
    at = "a checkpoint" if step is None else f"step {step}"
    return f"{at} of {row['resumed_from']}"


def trees(rows: Iterable[Mapping[str, Any]]) -> list[Branch]:
    """The rows with each run below the one that it began from, the oldest of several first.

    A tree stands where the first of its runs stood.
    """
    every = {str(row["run"]): row for row in rows}
    root = _roots(every)
    children: dict[str, list[str]] = {}
    for run, row in every.items():
        if root[run] != run:
            children.setdefault(str(parent_of(row)), []).append(run)
    branches: list[Branch] = []
    waiting = [(run, "", "", 0) for run in reversed(dict.fromkeys(root.values()))]
    while waiting:  # no recursion: runs that go on from one another may be thousands
        run, prefix, below, depth = waiting.pop()
        branches.append(Branch(row=every[run], depth=depth, prefix=prefix))
        own = sorted(children.get(run, ()), key=lambda child: every[child].get("created_at") or 0.0)
        for child in reversed(own):
            sign, line = ("└ ", "  ") if child == own[-1] else ("├ ", "│ ")
            waiting.append((child, f"{below}{sign}", f"{below}{line}", depth + 1))
    return branches


def ancestry(store: Store, runs: Iterable[str]) -> list[Branch]:
    """The runs of those ids and all that they began from, as trees; runs that are gone are none."""
    rows: dict[str, dict[str, Any]] = {}
    waiting = list(runs)
    while waiting and len(rows) < _MOST_RUNS:
        run = waiting.pop(0)
        document = read_json(RunPaths(store.root / run).run) if is_id(run) else None
        if document is None or run in rows:
            continue
        rows[run] = {"run": run, "created_at": document.get("created_at"), **origin(document)}
        waiting += filter(None, [parent_of(rows[run])])
    return trees(rows.values())


def origin(run: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a row about what the run of this run.json began from."""
    began: Mapping[str, Any] = run.get("resumed_from") or {}
    return {
        "resumed_from": began.get("run"),
        "resumed_step": began.get("step"),
        "rerun_of": run.get("rerun_of"),
        **trial_of(RunRecord.of(run)),
    }


def _roots(every: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The root of each run's tree.

    Records may name each other in a circle: each run of one, or that leads to one, is a root then.
    """
    roots: dict[str, str] = {}
    circular: set[str] = set()
    for run in every:
        passed: dict[str, None] = {}
        now: str | None = run
        while now is not None and now in every and now not in roots and now not in passed:
            passed[now] = None
            now = parent_of(every[now])
        if now in passed or now in circular:
            circular.update(passed)
            roots.update({member: member for member in passed})
        elif passed:
            root = next(reversed(passed)) if now is None else roots.get(now, next(reversed(passed)))
            roots.update(dict.fromkeys(passed, root))
    return roots

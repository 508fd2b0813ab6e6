"""`Finding`: one thing that is wrong with a run, and the one reader of what was found.

`show`, view.json, report.html, the trackers and `diagnose` say the same because they read the same:
what the supervisor's rules wrote, and the verdict's own finding where it came after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from workbench.store.commands import command_for
from workbench.store.files import read_json
from workbench.store.layout import RunPaths

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
HANGS = frozenset({"hang", "deadlock", "stopped-rank", "gil-held"})
"""Kinds of standstills. An error never ends by itself; a warning may: a rank is late."""
_OF_A_RUN = "adopt|attach|checkpoints|diagnose|doctor|logs|metrics|profile|rerun|resume|show|stop"
_STORE = r"""(?: --store (?:'[^']*'|"'"|[\w@%+=:/-]|[.,](?=[\w/]))+)?"""  # as shlex.quote writes it
_COMMAND = re.compile(
    rf"workbench ({_OF_A_RUN})\b((?: (?:--(?!store\b)[a-z-]+|[\w.-]*\d[\w-]*|last|RUN)(?!\w))*)"
    + _STORE
)
_FULL_COMMAND = re.compile(r"workbench (?:node|push) .+")  # these end the sentence
EXIT_HANG = "exit-hang"
"""The training is over, and a process does not end."""
CERTAIN_HANGS = frozenset({"stopped-rank", EXIT_HANG})
"""Standstills that nothing healthy looks like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Evidence, likely cause and next move. One of a kind per rank stands at a time."""

    kind: str
    """What it is: ``nan-loss``, ``hang``, ``straggler``, ``out-of-memory`` …"""
    evidence: str
    """The numbers it rests on, in one sentence."""
    cause: str
    """The likely cause, in one sentence that names the rank where there is one."""
    next: str
    """What to do now, in one sentence."""
    confidence: float
    """0 to 1: how sure the cause is, given the evidence."""
    severity: Severity = "warning"
    """``error``: the run is lost, or worthless if it continues; ``warning``: it wastes time or
    money; ``note``: worth knowing."""
    rank: int | None = None
    """The rank it is about; None = the run as a whole."""
    node: int | None = None
    """The machine it is about, counted from 0; None = not tied to one."""
    gpu: int | None = None
    """The GPU it is about, by the driver's index on that machine; None = not tied to one."""
    step: int | None = None
    """Optimizer step at which it began; None = not tied to one."""
    seen_at: float | None = None
    """Unix seconds at which it was first seen."""
    cleared_at: float | None = None
    """Unix seconds at which it had gone again; None = it stands."""
    replaced_by: str | None = None
    """`id` of the finding that gives a better cause of the same; None = nothing took its place."""

    ended_run: bool = False
    """Whether it is what ended the run, or this attempt of it: it is told before all others."""
    phase: str | None = None
    """The part of the step in which a late rank is late; None = not told."""
    lost_share: float | None = None
    """What it costs, as a share of the step; None = unknown."""
    lost_usd_per_hour: float | None = None
    """What it costs in money; None = unknown, or no one pays by the hour."""

    @property
    def key(self) -> tuple[str, int | None]:
        """Two findings with the same key are the same one, seen twice."""
        return self.kind, self.rank

    @property
    def id(self) -> str:
        """The key as one word: ``straggler@1``, ``nan-loss``."""
        return self.kind if self.rank is None else f"{self.kind}@{self.rank}"

    @property
    def place(self) -> str:
        """What it is of, in words: a rank, else a GPU or a machine, else the whole run."""
        if self.rank is not None:
            return f"rank {self.rank}"
        if self.gpu is not None:
            return f"gpu{self.gpu}" + (f" of node {self.node}" if self.node else "")
        return f"node {self.node}" if self.node else "whole run"

    def next_command(self, run: Path) -> str:
        """The command that `next` names, for the run in the folder `run`; else the one for more."""
        if (full := _FULL_COMMAND.search(self.next)) is not None:
            return full[0]
        if (named := _COMMAND.search(self.next)) is not None:
            return _completed(named, run)
        where = [] if self.rank is None else ["--rank", str(self.rank)]
        return command_for(run, "logs", *where, "--tail", "40")

    def next_for(self, run: Path) -> str:
        """`next`, its command as it is typed for the run in the folder `run`."""
        return _COMMAND.sub(lambda named: _completed(named, run), self.next)

    def document(self) -> dict[str, Any]:
        """Plain JSON form; `read` takes it back."""
        return asdict(self)

    def answer(self, run: Path) -> dict[str, Any]:
        """What every face prints of it: the document, its id and the next command.

        `run`: the run's folder.
        """
        document = {**self.document(), "next": self.next_for(run)}
        return {"id": self.id, **document, "next_command": self.next_command(run)}

    @classmethod
    def read(cls, document: object) -> Finding | None:
        """The finding that a file holds; None where it is not one."""
        if not isinstance(document, Mapping):
            return None
        mapping = cast("Mapping[str, Any]", document)
        values = {field.name: mapping[field.name] for field in fields(cls) if field.name in mapping}
        if not all(
            isinstance(values.get(name), str) for name in ("kind", "evidence", "cause", "next")
        ):
            return None
        if _number(values.get("confidence")) is None:
            return None
        if values.get("severity") not in SEVERITIES:
            values["severity"] = "warning"
        return cls(**values)


def _completed(command: re.Match[str], run: Path) -> str:
    """A match of `_COMMAND` with the run's id and store."""
    verb, words = command[1], command[2].split()
    if verb == "doctor":
        return command[0].strip()
    options = [word for word in words if word not in {"last", "RUN", run.name}]
    return command_for(run, verb, *options)


def is_for_good(finding: Finding) -> bool:
    """Whether it is a standstill that does not end by itself; else a rank may only be late."""
    return finding.kind in HANGS and finding.severity == "error"


def read_findings(paths: RunPaths) -> list[Finding] | None:
    """What the run directory has, worst first; None where no rule has looked."""
    if not paths.findings.exists():
        return None
    findings = parse_findings((read_json(paths.findings) or {}).get("findings"))
    end = read_json(paths.exit) or {}
    last = Finding.read(end.get("finding"))
    if last is not None and last.key not in {finding.key for finding in findings}:
        findings.append(replace(last, seen_at=last.seen_at or _number(end.get("ended_at"))))
    if last is not None and end.get("outcome") != "succeeded":
        findings = [
            replace(finding, ended_run=True) if finding.key == last.key else finding
            for finding in findings
        ]
    return worst_first(findings)


def parse_findings(listed: object) -> list[Finding]:
    """The findings among what a file lists."""
    entries = cast("list[Any]", listed) if isinstance(listed, list) else []
    return [finding for entry in entries if (finding := Finding.read(entry)) is not None]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Standing ones before cleared ones, what ended the run, errors, then by when seen."""
    return sorted(
        findings,
        key=lambda finding: (
            finding.cleared_at is not None,
            not finding.ended_run,
            SEVERITIES.index(finding.severity),
            _number(finding.seen_at) or 0.0,
        ),
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)

"""Machines of a run that are gone, cut off, or never came; never an arbitrary rank of theirs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.diagnose.evidence import Evidence
from workbench.diagnose.facts import SILENT_SECONDS, NodeFacts
from workbench.store.findings import Finding
from workbench.units import format_seconds

LOST = "node-lost"
MISSING = "node-missing"
FAILED = "node-failed"


def node_command(directory: Path, node: int) -> str:
    """What to type on machine `node`."""
    return f"workbench node {shlex.quote(str(directory))} --rank {node}"


def lost(nodes: Sequence[NodeFacts], step: int, directory: Path) -> Finding | None:
    """The finding about the machines that are lost; None when none is."""
    gone = [node for node in nodes if node.lost]
    if not gone:
        return None
    first = gone[0]
    names = " and ".join(facts.name for facts in gone)
    return Finding(
        kind=LOST,
        step=step,
        severity="error",
        confidence=0.95,
        evidence="; ".join(_evidence(facts) for facts in gone) + f"; last step {step}",
        cause=f"{names} {'are' if len(gone) > 1 else 'is'} {_how(first)}",
        next=(
            "Look at the machine and its network. Its agent rejoins by itself. If the machine was "
            f"restarted, run there: {node_command(directory, first.node)}"
        ),
    )


def _how(facts: NodeFacts) -> str:
    if facts.anew:
        return f"restarted; its {facts.ranks} are lost"
    if facts.unreachable_seconds:
        return f"disconnected from node 0: its {facts.ranks} and the others wait for each other"
    return f"silent: its {facts.ranks} are lost, or it lost the shared storage"


def _evidence(facts: NodeFacts) -> str:
    if facts.anew:
        return f"node {facts.node}'s agent is a different process than at the start of the attempt"
    if facts.unreachable_seconds:
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - facts.unreachable_seconds))
        return (
            f"node {facts.node} has not reached node 0's address since {since} "
            f"({format_seconds(facts.unreachable_seconds)})"
        )
    return f"node {facts.node} wrote no status for {format_seconds(facts.silent_seconds)}"


def missing(nodes: Sequence[NodeFacts], waited: float, command: str, step: int) -> Finding:
    """The finding about machines that did not join in time."""
    absent = [node for node in nodes if node.node and node.phase != "ready"]
    names = " and ".join(facts.name for facts in absent)
    heard = [
        facts
        for facts in absent
        if facts.phase is not None and facts.silent_seconds < SILENT_SECONDS
    ]
    why = f"{names} did not join within {format_seconds(waited)}"
    if heard:
        why = f"{names} did not reach node 0's address within {format_seconds(waited)}"
    return Finding(
        kind=MISSING,
        step=step,
        severity="error",
        confidence=0.95,
        evidence=f"{len(nodes) - len(absent)} of {len(nodes)} nodes were ready",
        cause=why,
        next="Open the rendezvous port between the machines, or launch with another --address."
        if heard
        else f"Run on each machine: {command}",
    )


def failed(facts: NodeFacts, step: int) -> Finding:
    """The finding about a machine whose launcher ended while the others' ran on."""
    code = facts.exit_code
    how = "ended unseen" if code is None else f"ended with exit code {code}"
    return Finding(
        kind=FAILED,
        step=step,
        severity="error",
        confidence=0.8,
        evidence=facts.message or f"logs/launcher-node-{facts.node}.log; last step {step}",
        cause=f"The launcher of {facts.name} {how}; its {facts.ranks} are lost"
        if facts.message is None
        else f"{facts.name} could not start its {facts.ranks}",
        next=f"See logs/launcher-node-{facts.node}.log of the run, and the logs of its "
        f"{facts.ranks}.",
    )


def node_lost(evidence: Evidence) -> Iterator[Finding]:
    """A machine of several is gone or cut off."""
    finding = lost(evidence.facts.nodes, evidence.steps, evidence.paths.directory)
    if finding is not None and evidence.facts.phase != "ended":
        yield finding


RULES = (node_lost,)

"""Machines of a run that are gone, cut off, or never came; never an arbitrary rank of theirs."""

from __future__ import annotations

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
    return f"workbench node {directory} --rank {node}"


def lost(nodes: Sequence[NodeFacts], step: int, directory: Path) -> Finding | None:
    """The finding about the machines that are lost; None when none is."""
    gone = [one for one in nodes if one.lost]
    if not gone:
        return None
    first = gone[0]
    names = " and ".join(one.name for one in gone)
    return Finding(
        kind=LOST,
        step=step,
        severity="error",
        confidence=0.95,
        evidence="; ".join(_evidence(one) for one in gone) + f"; last step {step}",
        cause=f"{names} {'are' if len(gone) > 1 else 'is'} {_how(first)}",
        next=(
            "Look at the machine and its network. Its agent rejoins by itself. If the machine was "
            f"restarted, run there: {node_command(directory, first.node)}"
        ),
    )


def _how(one: NodeFacts) -> str:
    if one.anew:
        return f"restarted; its {one.ranks} are lost"
    if one.unreachable_seconds:
        return f"disconnected from node 0: its {one.ranks} and the others wait for each other"
    return f"silent: its {one.ranks} are lost, or it lost the shared storage"


def _evidence(one: NodeFacts) -> str:
    if one.anew:
        return f"node {one.node}'s agent is a different process than at the start of the attempt"
    if one.unreachable_seconds:
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - one.unreachable_seconds))
        return (
            f"node {one.node} has not reached node 0's address since {since} "
            f"({format_seconds(one.unreachable_seconds)})"
        )
    return f"node {one.node} wrote no status for {format_seconds(one.silent_seconds)}"


def missing(nodes: Sequence[NodeFacts], waited: float, command: str, step: int) -> Finding:
    """The finding about machines that were waited for in vain."""
    who = [one for one in nodes if one.node and one.phase != "ready"]
    names = " and ".join(one.name for one in who)
    heard = [one for one in who if one.phase is not None and one.silent_seconds < SILENT_SECONDS]
    why = f"{names} did not join within {format_seconds(waited)}"
    if heard:
        why = f"{names} did not reach node 0's address within {format_seconds(waited)}"
    return Finding(
        kind=MISSING,
        step=step,
        severity="error",
        confidence=0.95,
        evidence=f"{len(nodes) - len(who)} of {len(nodes)} nodes were ready",
        cause=why,
        next="Open the rendezvous port between the machines, or launch with another --address."
        if heard
        else f"Run on each machine: {command}",
    )


def failed(one: NodeFacts, step: int) -> Finding:
    """The finding about a machine whose launcher ended while the others' ran on."""
    code = one.exit_code
    how = "ended unseen" if code is None else f"ended with exit code {code}"
    return Finding(
        kind=FAILED,
        step=step,
        severity="error",
        confidence=0.8,
        evidence=one.message or f"logs/launcher-node-{one.node}.log; last step {step}",
        cause=f"The launcher of {one.name} {how}; its {one.ranks} are lost"
        if one.message is None
        else f"{one.name} could not start its {one.ranks}",
        next=f"See logs/launcher-node-{one.node}.log of the run, and the logs of its {one.ranks}.",
    )


def node_lost(evidence: Evidence) -> Iterator[Finding]:
    """A machine of several is gone or cut off."""
    finding = lost(evidence.facts.nodes, evidence.steps, evidence.paths.directory)
    if finding is not None and evidence.facts.phase != "ended":
        yield finding


RULES = (node_lost,)

"""Ranks on several machines: what a machine tells of its own, and how the others read it."""

from __future__ import annotations

import time

from workbench.diagnose.facts import RankFacts, rank_facts
from workbench.observe.pulse import Pulse
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.node_schema import NodeRank
from workbench.store.run_record import RunRecord
from workbench.store.schema import ProcessDoc


def ranks_of(node: int, run: RunRecord) -> range:
    """The global ranks of one machine: equal shares, node 0's first."""
    each = run.processes // run.nodes
    return range(node * each, (node + 1) * each)


def tell(paths: RunPaths, ranks: range) -> dict[str, NodeRank]:
    """What only this machine can see of its ranks, for the others."""
    told: dict[str, NodeRank] = {}
    for rank in ranks:
        start = read_json(paths.rank_start(rank)) or {}
        process: ProcessDoc | None = start.get("process")
        if process is None or process["boot_id"] != processes.boot_id():
            continue
        told[str(rank)] = _document(rank_facts(paths, rank, process), process)
    return told


def _document(facts: RankFacts, process: ProcessDoc) -> NodeRank:
    pulse = facts.pulse
    document = NodeRank(
        process=process,
        alive=facts.alive,
        process_state=facts.process_state,
        rss_bytes=facts.rss_bytes,
        cpu_seconds=facts.cpu_seconds,
    )
    if pulse is not None:
        document |= NodeRank(
            beats=pulse.beats,
            steps=pulse.steps,
            phase=pulse.phase,
            age_seconds=round(pulse.age_seconds(time.monotonic()), 3),
        )
    return document


def hear(
    paths: RunPaths, rank: int, process: ProcessDoc | None, told: NodeRank | None, age: float
) -> RankFacts:
    """The facts of a rank on another machine, which told of it `age` seconds ago."""
    ended = paths.rank_end(rank).exists()
    if told is None or process is None or told.get("process") != process:
        return RankFacts(process=process, alive=process is not None and not ended, ended=ended)
    known = {name: told.get(name) for name in ("process_state", "rss_bytes", "cpu_seconds")}
    return RankFacts(
        process=process,
        alive=bool(told.get("alive")),
        pulse=_pulse(told, age),
        ended=ended,
        **known,  # pyright: ignore[reportArgumentType]
    )


def _pulse(told: NodeRank, age: float) -> Pulse | None:
    """Its pulse on this machine's clocks."""
    beats, steps = told.get("beats"), told.get("steps")
    phase, since = told.get("phase"), told.get("age_seconds")
    if beats is None or steps is None or phase is None or since is None:
        return None
    return Pulse(
        beats=beats,
        steps=steps,
        phase=phase,
        time=time.time() - since - age,
        monotonic=time.monotonic() - since - age,
    )

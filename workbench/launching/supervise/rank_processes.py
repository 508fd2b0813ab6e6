"""The processes of a run's ranks: found, followed, and compared with what was asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from workbench.launching.log import log
from workbench.launching.supervise.run_state import RunState
from workbench.observe.rank_count import rank_count
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.record import read_end

if TYPE_CHECKING:
    from workbench.diagnose.facts import NodeFacts, RankFacts
    from workbench.launching.supervise.nodes import RunNodes
    from workbench.store.node_schema import NodeDoc

WORLD_CHECK_SECONDS = 5.0


class RankProcesses:
    """The ranks of the present attempt, on this node and the others."""

    def __init__(self, state: RunState, nodes: RunNodes | None = None) -> None:
        """`nodes`: None where the run has this node alone."""
        self._state = state
        self._nodes = nodes

    def find(self) -> None:
        """Note the ranks that have reported, and those that are gone since."""
        state = self._state
        for rank in range(state.world_size_asked):
            if rank not in state.ranks:
                start = read_json(state.paths.rank_start(rank)) or {}
                if start.get("process") is not None:
                    state.ranks[rank] = start["process"]
        for rank, process in state.ranks.items():
            here = self._nodes is None or self._nodes.is_here(rank)
            alive = processes.is_alive(process) if here else self.facts(rank).alive
            if rank not in state.vanished and not alive:
                state.vanished[rank] = time.time()

    @property
    def spawned(self) -> bool:
        """Whether a process that the script itself started is recorded as its rank."""
        return bool((read_json(self._state.paths.rank_start(0)) or {}).get("spawned"))

    def follow_spawned(self) -> None:
        """Watch the processes that train instead of the one that waits for them."""
        state = self._state
        if state.world_size_asked == 1 and 0 in state.ranks:
            start = read_json(state.paths.rank_start(0)) or {}
            if start.get("spawned") and isinstance(start.get("process"), dict):
                state.ranks[0] = start["process"]
            for rank in range(1, rank_count(state.paths, state.run.processes)):
                later = read_json(state.paths.rank_start(rank)) or start
                state.ranks[rank] = later["process"]

    def facts(self, rank: int) -> RankFacts:
        """What is known of a rank, on whatever node it runs."""
        from workbench.diagnose.facts import rank_facts  # noqa: PLC0415  (after the launcher)

        process = self._state.ranks[rank]
        if self._nodes is None or self._nodes.is_here(rank):
            return rank_facts(self._state.paths, rank, process)
        return self._nodes.peers.rank_facts(rank, process)

    def all_facts(self) -> dict[int, RankFacts]:
        """What is known of each rank at this moment."""
        return {rank: self.facts(rank) for rank in self._state.ranks}

    def node_facts(self) -> tuple[NodeFacts, ...]:
        """Each node at this moment; empty where there is one."""
        return () if self._nodes is None else self._nodes.peers.facts()

    def other_hardware(self) -> Iterator[tuple[int, NodeDoc]]:
        """What the other nodes told of their hardware; nothing where there is one node."""
        return iter(()) if self._nodes is None else self._nodes.peers.hardware()

    def check_world(self, seconds_since_first_step: float | None) -> None:
        """Compare the ranks asked for with the process group's size; report a difference.

        The ranks report it as soon as their group is formed. Ranks without one are known to train
        alone only a while after the first step.
        """
        state = self._state
        if state.world_size is not None:
            return
        starts = [read_json(state.paths.rank_start(rank)) for rank in state.ranks]
        sizes = [start.get("group_world_size") for start in starts if start]
        known_sizes = [size for size in sizes if isinstance(size, int)]
        if any(start and start.get("spawned") for start in starts):  # as many as it wants
            state.world_size = max(known_sizes, default=None)
            if state.world_size is not None:
                count = state.world_size
                state.group = f"The script started its {count} rank{'s' * (count > 1)} itself."
                state.message = state.message or state.group
            return
        expected = state.world_size_asked
        late = (seconds_since_first_step or 0) > WORLD_CHECK_SECONDS
        if (known_sizes and max(known_sizes) == expected) or (
            expected == 1 and starts and not known_sizes
        ):
            state.world_size = expected
        elif len(known_sizes) == expected or late:
            state.world_size = max(known_sizes, default=1)
            if state.world_size != expected:
                state.message = state.group = (
                    f"{expected} processes were asked for, but the script formed a group of "
                    f"{state.world_size}: {len(state.ranks)} independent trainings may be running. "
                    "Check that the script uses Accelerator() or init_process_group()."
                )
                log(state.message)


def rank_documents(paths: RunPaths, ranks: Mapping[int, RankFacts]) -> dict[int, dict[str, object]]:
    """What the view says of each rank."""
    documents: dict[int, dict[str, object]] = {}
    for rank, facts in ranks.items():
        end = None if facts.alive else read_end(paths, rank)
        documents[rank] = {
            "pid": facts.process and facts.process["pid"],
            "alive": facts.alive,
            "rss_bytes": facts.rss_bytes,
            "phase": facts.pulse.phase if facts.pulse and facts.alive else None,
            "process_state": facts.process_state,
            "ended": None if facts.alive else (end and end.problem) or ("ok" if end else "lost"),
        }
    return documents

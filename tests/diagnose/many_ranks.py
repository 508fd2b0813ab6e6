"""A run directory of many ranks, as they and their supervisor write it, and what a look at it costs.

    python -m tests.diagnose.many_ranks [--ranks 1024] [--looks 12] [--profile]

One rank is slow. The files are full: the ranks' rings hold all the calls that they keep.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import struct
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.diagnose.sample import run_document
from workbench.diagnose.diagnoser import Diagnoser
from workbench.diagnose.facts import Facts, RankFacts, rank_facts
from workbench.observe.events import MetricStream
from workbench.store.files import append_line
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.processes import identify
from workbench.store.run_record import RunRecord
from workbench.store.schema import PULSE_FORMAT, PULSE_MAGIC

STEP = 0.2
CALLS = 2048  # that a rank's file keeps
LAYERS = 24  # calls in a step
SLOW, LAG = 7, 0.06
WEIGHTS = 8  # that are looked at


@dataclass(slots=True)
class ManyRanks:
    """Writes the files of a run of `ranks`, step by step."""

    paths: RunPaths
    """Where."""
    ranks: int
    """How many."""
    begun: float = 1_795_000_000.0
    """Unix seconds of step 0."""
    steps: int = 0
    """Steps written."""
    process: dict[str, object] = field(default_factory=dict[str, object])
    """Who the ranks are: this process, since its state can be read."""

    def begin(self) -> RunRecord:
        """Write what a launch and the starts of the ranks write."""
        self.paths.make_folders()
        document = run_document(processes=self.ranks, created_at=self.begun)
        self.paths.run.write_text(json.dumps(document))
        self.process = dict(identify(os.getpid()) or {})
        for rank in range(self.ranks):
            start = {"process": self.process, "group_world_size": self.ranks, "samplers": []}
            self.paths.rank_start(rank).write_text(json.dumps(start))
        return RunRecord.of(document)

    def step_seconds(self) -> float:
        """Of each step."""
        return STEP + LAG

    def write(self, steps: int) -> None:
        """The lines of the next steps of each rank, its pulse and its file of arrivals."""
        each = self.step_seconds()
        for rank in range(self.ranks):
            late = LAG if rank == SLOW else 0.0
            lines = []
            for step in range(self.steps + 1, self.steps + steps + 1):
                at = self.begun + step * each
                lines.append({
                    "step": step, "time": at, "step_seconds": each, "data_seconds": 0.001,
                    "backward_at": at - 0.7 * each + late / 2, "optimizer_at": at - 0.01,
                    "loss": 3.0 - 0.001 * step, "samples": 8, "batch": 1000 * step + rank,
                })  # fmt: skip
            text = "\n".join(json.dumps(line) for line in lines)
            append_line(self.paths.rank_metrics(rank), text.encode())
        self.steps += steps
        self._pulses()
        if self.steps % 20 == 0:
            self._arrivals()

    def _pulses(self) -> None:
        now = time.monotonic()
        beat = struct.pack(PULSE_FORMAT, PULSE_MAGIC, 2 * self.steps, self.steps, 1, now, now)
        for rank in range(self.ranks):
            self.paths.rank_pulse(rank).write_bytes(beat)

    def _arrivals(self) -> None:
        each = self.step_seconds()
        first = max(1, self.steps - CALLS // LAYERS + 1)
        spots = [(step, layer) for step in range(first, self.steps + 1) for layer in range(LAYERS)]
        base = self.begun + (first - 1) * each
        numbers = [step * LAYERS + layer for step, layer in spots]
        waits = [int(layer < LAYERS - 1) for _, layer in spots]
        texts: dict[float, str] = {}
        for late in (0.0, LAG):
            begun = [self.begun + (step - 1) * each for step, _ in spots]
            micros = [
                round(1e6 * (at - base + layer * STEP / LAYERS + (late if layer >= 12 else 0.0)))
                for at, (_, layer) in zip(begun, spots, strict=True)
            ]
            document = {
                "base": base, "groups": ["0"], "group": [0] * len(spots), "number": numbers,
                "waits": waits, "micros": micros,
                "core_time": [[1, 0, 0, 0, 0, 0, 0]] * min(512, self.steps),
                "turns": [[base + second, 1, 0] for second in range(64)],
            }  # fmt: skip
            texts[late] = json.dumps(document)
        for rank in range(self.ranks):
            self.paths.rank_arrivals(rank).write_text(texts[LAG if rank == SLOW else 0.0])


def looks(paths: RunPaths, ranks: int, count: int) -> tuple[list[float], list[Finding], Diagnoser]:
    """Processor seconds of each look, as the supervisor takes it; what was found in the end."""
    run = ManyRanks(paths, ranks)
    record = run.begin()
    diagnoser, stream = Diagnoser(paths, record), MetricStream(paths, ranks)
    took: list[float] = []
    found: list[Finding] = []
    run.write(40)
    diagnoser.rows(stream.read())  # what was written before the supervisor came
    for look in range(count):
        if look % 4 == 0:
            run.write(20)
        begun = time.process_time()
        diagnoser.rows(stream.read())
        facts: dict[int, RankFacts] = {
            rank: rank_facts(paths, rank, run.process)
            for rank in range(ranks)  # type: ignore[arg-type]
        }
        found = diagnoser.look(
            Facts(
                phase="running", elapsed_seconds=16.0 + look, started_at=run.begun,
                world_size=ranks, ranks=facts, monotonic=time.monotonic() + look,
                time=run.begun + run.steps * run.step_seconds(),
            )
        )  # fmt: skip
        took.append(time.process_time() - begun)
        if found and look > 3:
            break
    return took, found, diagnoser


def main() -> None:
    """Print what each look costs, and with `--profile` on what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--looks", type=int, default=12)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        if options.profile:
            profile.enable()
        took, found, diagnoser = looks(RunPaths(Path(folder)), options.ranks, options.looks)
        profile.disable()
    print(f"{options.ranks} ranks: " + " ".join(f"{one:.2f}" for one in took) + " CPU s a look")
    print([(one.kind, one.rank) for one in found], diagnoser.problems)
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()

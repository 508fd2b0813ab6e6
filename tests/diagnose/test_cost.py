"""What looking costs: the supervisor does it once a second, on a core that the training wants."""

from __future__ import annotations

import random
import time
from pathlib import Path
from statistics import median

from tests.cpu_budget import over_budget
from tests.diagnose.sample import STEP, gpu, run_document, sample
from workbench.diagnose.diagnoser import Diagnoser
from workbench.diagnose.facts import Facts, RankFacts
from workbench.observe.events import StepRow
from workbench.observe.pulse import Pulse
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

RANKS = 8


def test_a_look_at_eight_ranks_takes_milliseconds(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.make_folders()
    gpus = [{"index": index} for index in range(RANKS)]
    run = run_document(processes=RANKS, device="cuda", cluster={"gpus": gpus, "memory_bytes": 1})
    diagnoser, chance = Diagnoser(paths, RunRecord.of(run), keep=False), random.Random(0)
    for number in range(1, 2500):
        at = 1000.0 + STEP * number
        losses = {rank: 3.0 * number**-0.2 + chance.gauss(0, 0.1) for rank in range(RANKS)}
        row = StepRow(number, at, ranks=RANKS, seen_at=at, step_seconds=STEP, losses=losses)
        row.loss = sum(losses.values()) / RANKS
        row.backward_at = {rank: at - 0.06 + chance.uniform(0, 0.01) for rank in losses}
        row.ended_at = dict.fromkeys(losses, at)
        row.data_seconds = dict.fromkeys(losses, 0.005)
        diagnoser.rows([row])
    for second in range(1000):
        diagnoser.sample(sample(1000.0 + second, gpus=[gpu(index) for index in range(RANKS)]))
    took: list[float] = []
    for second in range(60):
        now = 2000.0 + second
        pulse = Pulse(beats=1, steps=2499, phase="forward", time=now, monotonic=now)
        ranks = {
            rank: RankFacts(alive=True, process_state="R", pulse=pulse) for rank in range(RANKS)
        }
        facts = Facts(
            phase="running",
            elapsed_seconds=1000.0 + second,
            started_at=1000.0,
            world_size=RANKS,
            ranks=ranks,
            monotonic=now,
            time=now,
        )
        begun = time.thread_time()  # of our own work: the machine may be shared
        diagnoser.look(facts)
        took.append(time.thread_time() - begun)
    print(f"a look takes {1000 * median(took):.2f} ms of processor time (median)")
    assert diagnoser.problems == {}
    assert not over_budget(median(took), 0.015)  # measured 3 to 5 ms

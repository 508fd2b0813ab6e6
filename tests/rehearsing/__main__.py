"""Rehearse a 70B run on 64 spot GPUs under interruptions that its planner did not see.

    python -m tests.rehearsing [--runs 100] [--first 0] [--store DIR]

Traces: Weibull lifetimes of shape 0.5 and 0.7, bursts, and lifetimes bounded at a day, each of the
mean that the planner was given. Hours and dollars are recounted from the runs' journals.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.rehearsing.recount import Recount, recount
from workbench.cli.cost import answer
from workbench.cli.cost_values import CostAnswer, CostOptions
from workbench.estimate.cost import RunCost
from workbench.rehearsing import Rehearsal, rehearse

Trace = Callable[[random.Random, float], list[float]]
_LENGTH = 4000


def weibull(shape: float) -> Trace:
    def lifetimes(chance: random.Random, mean: float) -> list[float]:
        scale = mean / math.gamma(1 + 1 / shape)
        return [chance.weibullvariate(scale, shape) for _ in range(_LENGTH)]

    return lifetimes


def bursts(chance: random.Random, mean: float) -> list[float]:
    """A long pause, then up to four machines within minutes."""
    found: list[float] = []
    while len(found) < _LENGTH:
        found.append(chance.expovariate(1 / (3 * mean)))
        found += [chance.expovariate(1 / (0.15 * mean)) for _ in range(chance.randrange(1, 5))]
    factor = mean / statistics.fmean(found)
    return [factor * one for one in found]


def bounded(chance: random.Random, mean: float) -> list[float]:
    """Early and late ends are likely, as of machines that live a day at most."""
    return [2 * mean * chance.betavariate(0.6, 0.6) + 1 for _ in range(_LENGTH)]


TRACES: dict[str, Trace] = {
    "weibull-0.5": weibull(0.5),
    "weibull-0.7": weibull(0.7),
    "bursts": bursts,
    "bounded": bounded,
}


def planned(tokens: str = "40B", nodes: int = 8) -> CostAnswer:
    """Llama 3 70B on 8 x 8 H100 spot machines: eight and a half days of steps, ten on the clock."""
    job = {"model": "llama-3-70b", "gpu": "h100", "gpus": 8, "nodes": nodes, "strategy": "fsdp"}
    job |= {"accumulate": 4}
    own = {"usd_per_hour": "30", "spot_usd_per_hour": 12.0, "interruption_hours": 24.0}
    return answer(CostOptions(job=job, tokens=tokens, spot=True, **own))


def inside(cost: RunCost, found: Recount) -> dict[str, bool]:
    """Whether hours, dollars and lost hours lie in the planner's ranges."""
    low, high = cost.lost_range()
    assert None not in {low, high, cost.low.usd, cost.high.usd, cost.high.wall_hours}
    return {
        "lost hours": low <= found.lost_hours <= high,
        "hours": cost.low.wall_hours <= found.hours <= cost.high.wall_hours,
        "dollars": cost.low.usd <= found.usd <= cost.high.usd,
    }


def one(plan: CostAnswer, seed: int, folder: Path) -> tuple[str, Recount]:
    """Rehearse once under a trace of its own."""
    name = list(TRACES)[seed % len(TRACES)]
    chance = random.Random(1000 + seed)
    mean = 3600 * plan.cost.hours.mean_hours
    trace = folder / f"trace-{seed}.txt"
    trace.write_text("\n".join(f"{max(one, 0.001):.3f}" for one in TRACES[name](chance, mean)))
    how = Rehearsal(seed=seed, trace=trace, name=f"rehearsal-{seed}")
    paths = rehearse(plan.job, plan.cost, how, store=str(folder / "runs"))
    return name, recount(paths.directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--store", type=Path)
    given = parser.parse_args()
    folder = given.store or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    plan = planned()
    cost, held, seconds = plan.cost, dict[str, list[bool]](), []
    by_trace: dict[str, list[bool]] = {}
    for seed in range(given.first, given.first + given.runs):
        began = time.process_time()
        name, found = one(plan, seed, folder)
        seconds.append(time.process_time() - began)
        for what, fits in inside(cost, found).items():
            held.setdefault(what, []).append(fits)
        by_trace.setdefault(name, []).append(inside(cost, found)["lost hours"])
        print(
            f"{seed:>3} {name:<12} {found.interruptions:>3} interruptions  "
            f"{found.hours:7.1f} h  {found.lost_hours:6.1f} h lost  ${found.usd:,.0f}",
            flush=True,
        )
        shutil.rmtree(folder / "runs" / f"rehearsal-{seed}")
    low, high = cost.lost_range()
    print(
        f"planned {cost.wall_hours:.1f} h ({cost.low.wall_hours:.1f} to {cost.high.wall_hours:.1f})"
    )
    print(f"planned {cost.hours.lost:.1f} h lost ({low:.1f} to {high:.1f})")
    print(f"planned ${cost.usd:,.0f} (${cost.low.usd:,.0f} to ${cost.high.usd:,.0f})")
    for what, fits in held.items():
        print(f"{what}: inside the planner's range in {sum(fits)} of {len(fits)}")
    for name, fits in by_trace.items():
        print(f"lost hours, {name}: {sum(fits)} of {len(fits)}")
    print(f"processor time of one: {statistics.median(seconds):.1f} s")


if __name__ == "__main__":
    main()

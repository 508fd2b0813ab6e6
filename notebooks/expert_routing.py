"""Visits of experts: drawn, dropped, and placed on ranks; the puzzle's grader: for notebook 18."""

# ruff: noqa: INP001, T201 - a file beside the notebooks, for their readers

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import torch

import workbench as wb
from workbench.estimate.timing import StepTime

VISITS = (310, 95, 120, 700, 80, 430, 150, 60, 260, 110, 520, 75, 205, 140, 90, 655)
"""Of the sixteen experts in the puzzle, in thousands of tokens."""
RANKS = 4
BUSIEST = 1.05
"""Visits of the busiest rank over the mean that solve the puzzle."""


def active_parameters(model: wb.Model) -> int:
    """Parameters that one token meets: all but the experts that it does not visit."""
    expert = 3 * model.hidden * model.expert_hidden  # gate, up and down
    return model.parameters - model.moe_layers * (model.experts - model.experts_per_token) * expert


def estimates(model: str, strategies: Sequence[str], **changes: Any) -> list[StepTime]:
    """Step times on machines of eight GPUs each, H100 at first; prints what each step waits for."""
    found = list[StepTime]()
    job_of = {"gpu": "h100", "gpus": 8, "network": "8x400 infiniband", "seq_len": 4096, **changes}
    for name in strategies:
        ranks = wb.Strategy.ranks_of(name) or 8
        job = wb.Job.of(model, strategy=name, nodes=ranks // 8, **job_of)
        step, memory = wb.step_time(job), wb.training_memory(job)
        buffers = memory.parts["communication buffers"] / 2**30
        print(f"{name:13} step {step.step_seconds:.2f} s, buffers {buffers:.1f} GiB per GPU")
        for what in ("ep", "sharded weights"):
            seconds = step.parts.get(f"exposed communication: {what}", 0.0)
            print(
                f"{name:13} waits for {'tokens' if what == 'ep' else 'weights':7} {seconds:.2f} s"
            )
        found.append(step)
    return found


def drawn_visits(tokens: int, experts: int) -> list[int]:
    """Visits by expert if each token chose one at random."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(experts, (tokens,), generator=generator)
    return chosen.bincount(minlength=experts).tolist()


def busiest(visits: Sequence[float]) -> float:
    """Most visits over the mean; 1 = even."""
    return max(visits) * len(visits) / sum(visits)


def dropped_share(visits: Sequence[int], capacity_factor: float) -> float:
    """Share of the visits that find their expert full, where each takes so many times the mean."""
    capacity = capacity_factor * sum(visits) / len(visits)
    return sum(max(0.0, count - capacity) for count in visits) / sum(visits)


def held_parameters(run: wb.Run) -> tuple[int, int]:
    """Parameters of the model, and those on each rank: what `expert_parallel` prints first."""
    found = re.search(r"([\d,]+) parameters, ([\d,]+) of them on each", run.logs(rank=0, tail=200))
    if found is None:
        raise RuntimeError(f"{run.id} has not printed its parameters:\n{run.logs(tail=20)}")
    every, own = (int(text.replace(",", "")) for text in found.groups())
    return every, own


def _logged(run: wb.Run) -> list[tuple[int, float]]:
    """Steps, and the visits of the busiest expert over the mean."""
    found = re.findall(r"step +(\d+) .* busiest expert ([\d.]+) x", run.logs(rank=0, tail=200))
    return [(int(step), float(value)) for step, value in found]


def busiest_of(run: wb.Run) -> float:
    """Visits of the busiest expert over the mean, at the end of a run of `expert_parallel`."""
    return _logged(run)[-1][1]


def visits_figure(runs: dict[str, wb.Run]) -> go.Figure:
    """Print the last figure of each run's log, and draw all of them over the steps."""
    lines = list[go.Scatter]()
    for name, run in runs.items():
        steps, values = zip(*_logged(run), strict=True)
        print(f"{name:16} busiest expert {busiest_of(run):.2f} x the mean at the end")
        lines.append(go.Scatter(name=name, x=steps, y=values, line={"width": 3}))
    axes = {"xaxis": {"title": "step"}, "yaxis": {"title": "most visits over the mean"}}
    return go.Figure(lines, {"height": 320, "template": "plotly_white", **axes})


def check_placement(placement: Sequence[Sequence[int]]) -> bool:
    """Whether these experts on each rank solve the puzzle; says how far it is from that."""
    placed = sorted(expert for rank in placement for expert in rank)
    if len(placement) != RANKS or placed != list(range(len(VISITS))):
        print(f"Give {RANKS} lists that hold each of the experts 0 to {len(VISITS) - 1} once.")
        return False
    if {len(rank) for rank in placement} != {len(VISITS) // RANKS}:
        print(f"Each rank has memory for {len(VISITS) // RANKS} experts.")
        return False
    sums = [sum(VISITS[expert] for expert in rank) for rank in placement]
    print(f"visits by rank: {sums}; the busiest has {busiest(sums):.3f} x the mean")
    print("Solved." if busiest(sums) <= BUSIEST else f"Too uneven: reach {BUSIEST} or less.")
    return busiest(sums) <= BUSIEST

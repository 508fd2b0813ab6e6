"""What the search leaves out unseen: its floors in bytes and seconds, held against the estimates."""

from __future__ import annotations

import random

import pytest

from workbench.describe import Cluster, Conditions, Model, Workload
from workbench.estimate.memory import training_memory
from workbench.plan.case import Case, machines
from workbench.plan.floors import Floors
from workbench.plan.machines import LayoutSearch
from workbench.plan.refusals import MEMORY
from workbench.plan.space import DATA, Space

MODELS = ("gpt2", "llama-3-8b", "mixtral-8x7b", "deepseek-v3")
CLUSTERS = (
    ("a100-sxm-80", 8, 1, None),
    ("h100", 8, 2, "100 ethernet"),
    ("h100", 8, 4, "8x400 infiniband"),
    ("b200", 4, 3, "8x400 roce"),
)


def cases(seed: int, count: int):
    """Random legal layouts: (case, cluster, spread, choice, micro-batch)."""
    pick = random.Random(seed)
    workload = Workload(
        model=Model.catalog(MODELS[seed % len(MODELS)]),
        seq_len=pick.choice([512, 1024]) if seed % len(MODELS) == 0 else 4096,
        micro_batch=1,
        precision=pick.choice(["bf16", "bf16-pure"]),
        lora_rank=pick.choice([0, 0, 8]),
    )
    gpu, per_node, nodes, network = pick.choice(CLUSTERS)
    cluster = Cluster.rented(gpu, per_node, nodes, network=network)
    measured = Conditions(straggler=0.03, measured_ratio=1.2, source="a test")
    schedule = pick.choice(["1f1b", "gpipe", "zero-bubble"])
    case = Case(
        workload=workload,
        batch=pick.choice([48, 96, 192]),
        space=Space(data=DATA, schedule=schedule),
        conditions=pick.choice([None, measured]),
    )
    legal = [one for one in case.spreads(nodes, per_node) if not one.reason]
    for _ in range(count):
        spread = pick.choice(legal)
        yield case, cluster, spread, pick.choice(spread.choices), pick.choice(spread.micro_batches)


@pytest.mark.parametrize("seed", range(12))
def test_quick_bytes_are_training_memorys_and_states_alone_are_less(seed: int) -> None:
    for case, _, spread, choice, size in cases(seed, 150):
        work = case.work(size, spread.accumulate(size))
        whole = training_memory(work, choice.strategy, "cuda").on_card_bytes
        assert case.bytes(spread, choice, size) == whole
        assert 0 < case.least(spread)[choice.strategy.offload] <= whole


@pytest.mark.parametrize("seed", range(12))
def test_no_floor_is_above_the_step(seed: int) -> None:
    known: Floors | None = None
    tightest = 0.0
    for case, cluster, spread, choice, size in cases(seed, 60):
        floors = known = known or Floors(case, machines(cluster))
        s = choice.strategy
        step = case.seconds(cluster, spread, choice, size).step_seconds * (1 + 1e-9)
        layout = floors.layout(spread, size, s.recompute, s.offload)
        assert floors.least(spread) <= floors.work(spread, size) * (1 + 1e-9)
        assert floors.work(spread, size, s.recompute) <= layout * (1 + 1e-9)
        assert floors.whole(spread, s.offload) <= layout * (1 + 1e-9)
        assert layout <= step
        tightest = max(tightest, layout / step)
    assert tightest > 0.7  # a floor that says little would make the search slow


def test_the_nearest_miss_is_weighed_exactly() -> None:
    workload = Workload(model=Model.catalog("llama-3-70b"), seq_len=4096, micro_batch=1)
    cluster = Cluster.rented("a100-sxm-40", 8)
    case = Case(workload=workload, batch=64, space=Space(offload=False))
    found = LayoutSearch(case, machines(cluster)).run()
    assert not found.best
    rough = [one for one in found.refusals if one.rough]
    assert rough
    near = found.nearest
    assert near is not None
    assert (near.kind, near.rough) == (MEMORY, False)
    exact = [
        case.smallest(one.spread, one.choices, 0.0) for one in found.refusals if one.kind == MEMORY
    ]
    assert near.found == min(exact)
    assert "or more" in rough[0].reason

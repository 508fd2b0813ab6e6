"""What the search leaves out unseen: its bounds in bytes and seconds, held against the estimates."""

from __future__ import annotations

import random

import pytest

from tests.estimate.sample_stack import measured, stack
from workbench.describe import Cluster, Conditions, Model, Workload
from workbench.estimate.memory import training_memory
from workbench.planning.layout_search import LayoutSearch
from workbench.planning.lower_bounds import LowerBounds
from workbench.planning.refusals import MEMORY
from workbench.planning.search_context import SearchContext, node_group
from workbench.planning.space import DATA, Space

MODELS = ("gpt2", "llama-3-8b", "mixtral-8x7b", "deepseek-v3")
CLUSTERS = (
    ("a100-sxm-80", 8, 1, None),
    ("h100", 8, 2, "100 ethernet"),
    ("h100", 8, 4, "8x400 infiniband"),
    ("b200", 4, 3, "8x400 roce"),
)
_SIZES = {"tensors_bytes": 40e9, "states_bytes": 10e9, "predicted_bytes": 40e9}
QUICKER, SLOWER = (
    stack(measured(precision="bf16", step_ratio=ratio, peak_bytes=ratio * 40e9, **_SIZES))
    for ratio in (0.6, 1.5)
)


def cases(seed: int, count: int):
    """Random legal layouts: (context, cluster, layout, choice, micro-batch)."""
    pick = random.Random(seed)
    workload = Workload(
        model=Model.catalog(MODELS[seed % len(MODELS)]),
        seq_len=pick.choice([512, 1024]) if seed % len(MODELS) == 0 else 4096,
        micro_batch=1,
        precision=pick.choice(["bf16", "bf16-pure"]),
        lora_rank=pick.choice([0, 0, 8]),
        calibration=pick.choice([None, QUICKER, SLOWER]),
    )
    gpu, per_node, nodes, network = pick.choice(CLUSTERS)
    cluster = Cluster.rented(gpu, per_node, nodes, network=network)
    measured = Conditions(straggler=0.03, measured_ratio=1.2, source="a test")
    schedule = pick.choice(["1f1b", "gpipe", "zero-bubble"])
    context = SearchContext(
        workload=workload,
        batch=pick.choice([48, 96, 192]),
        space=Space(data=DATA, schedule=schedule),
        conditions=pick.choice([None, measured]),
    )
    legal = [one for one in context.layouts(nodes, per_node) if not one.reason]
    for _ in range(count):
        layout = pick.choice(legal)
        yield (
            context,
            cluster,
            layout,
            pick.choice(layout.choices),
            pick.choice(layout.micro_batches),
        )


@pytest.mark.parametrize("seed", range(12))
def test_quick_bytes_are_training_memorys_and_states_alone_are_less(seed: int) -> None:
    for context, _, layout, choice, size in cases(seed, 150):
        work = context.work(size, layout.accumulate(size))
        whole = training_memory(work, choice.strategy, "cuda").on_card_bytes
        assert context.bytes(layout, choice, size) == whole
        assert 0 < context.least(layout)[choice.strategy.offload] <= whole


@pytest.mark.parametrize("seed", range(12))
def test_no_lower_bound_is_above_the_step(seed: int) -> None:
    known: LowerBounds | None = None
    tightest = 0.0
    for context, cluster, layout, choice, size in cases(seed, 60):
        bounds = known = known or LowerBounds(context, node_group(cluster))
        s = choice.strategy
        step = context.seconds(cluster, layout, choice, size).step_seconds * (1 + 1e-9)
        bound = bounds.step(layout, size, s.recompute, s.offload)
        assert bounds.least_work(layout) <= bounds.work(layout, size) * (1 + 1e-9)
        assert bounds.work(layout, size, s.recompute) <= bound * (1 + 1e-9)
        assert bounds.least_step(layout, s.offload) <= bound * (1 + 1e-9)
        assert bound <= step
        tightest = max(tightest, bound / step)
    assert tightest > 0.65  # a floor that says little would make the search slow


def test_the_nearest_miss_is_weighed_exactly() -> None:
    workload = Workload(model=Model.catalog("llama-3-70b"), seq_len=4096, micro_batch=1)
    cluster = Cluster.rented("a100-sxm-40", 8)
    context = SearchContext(workload=workload, batch=64, space=Space(offload=False))
    found = LayoutSearch(context, node_group(cluster)).run()
    assert not found.best
    rough = [one for one in found.refusals if one.rough]
    assert rough
    near = found.nearest
    assert near is not None
    assert (near.kind, near.rough) == (MEMORY, False)
    exact = [
        context.smallest(one.layout, one.choices, 0.0)
        for one in found.refusals
        if one.kind == MEMORY
    ]
    assert near.needed == min(exact)
    assert "or more" in rough[0].reason

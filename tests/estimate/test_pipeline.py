"""Pipelines: the simulation against the closed forms where they are exact, and its laws."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.errors import UsageError
from workbench.estimate.pipeline import (
    Operation,
    PipelineRun,
    Schedule,
    pipeline_seconds,
    schedule,
    simulate_pipeline,
)
from workbench.estimate.stages import stages

RANKS = (1, 2, 3, 4, 5, 8, 16)
COUNTS = (1, 2, 3, 4, 6, 8, 16, 32, 64)
PAIRS = list(itertools.product(RANKS, COUNTS))  # 63 (p, m)
TRIPLES = [  # 112
    (p, m, v) for p in (1, 2, 3, 4, 5, 6, 8) for m in (p, 2 * p, 3 * p, 6 * p) for v in (1, 2, 3, 4)
]
SECONDS = [(1.0, 2.0), (3.0, 1.0)]


def run(name: str, p: int, m: int, v: int = 1, f: float = 1.0, b: float = 2.0) -> PipelineRun:
    return simulate_pipeline(schedule(name, p, m, v), f, b)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("f", "b"), SECONDS)
def test_gpipe_and_1f1b_have_the_same_bubble(name: str, f: float, b: float) -> None:
    for p, m in PAIRS:
        found = run(name, p, m, f=f, b=b)
        assert found.total_seconds == pytest.approx((m + p - 1) * (f + b))
        assert found.bubble_of_ideal == pytest.approx((p - 1) / m)
        assert found.bubble_of_wall == pytest.approx((p - 1) / (m + p - 1))
        assert found.idle_seconds == pytest.approx([(p - 1) * (f + b)] * p)


@pytest.mark.parametrize(("f", "b"), SECONDS)
def test_chunks_divide_the_bubble(f: float, b: float) -> None:
    for p, m, v in TRIPLES:
        for name in ("interleaved", "gpipe", "1f1b"):
            found = run(name, p, m, v, f=f, b=b)
            assert found.bubble_of_ideal == pytest.approx((p - 1) / (v * m)), (name, p, m, v)


def test_micro_batches_in_flight() -> None:
    for p, m in PAIRS:
        assert run("gpipe", p, m).peak_in_flight == (m,) * p
        assert run("1f1b", p, m).peak_in_flight == tuple(min(p - i, m) for i in range(p))
        assert run("naive", p, m).peak_in_flight == (1,) * p
        if m >= p:  # ZB-H1 keeps p on every rank: arXiv 2401.10241, section 2
            assert run("zero-bubble", p, m).peak_in_flight == (p,) * p


def test_in_flight_is_what_the_memory_estimate_counts() -> None:
    """The formulas in estimate/stages.py against the simulation, interleaved ones too."""
    model = wb.Model.catalog("llama-3-70b")  # 80 blocks: enough for 16 x 4 parts
    for p, m, v in TRIPLES:
        for name in ("gpipe", "1f1b", "interleaved", "naive") if p > 1 else ():
            layout = wb.Strategy.parse("pp", p).with_options(schedule=name, virtual_stages=v)
            counted = tuple(stage.in_flight for stage in stages(model, layout, m))
            assert run(name, p, m, v).peak_in_flight == pytest.approx(counted), (name, p, m, v)


def test_c2_the_article_is_wrong_about_1f1b() -> None:
    """1F1B's bubble is GPipe's: p = 4, m = 32: both 105 units; 32 against 4 micro-batches in flight."""
    gpipe, other = run("gpipe", 4, 32), run("1f1b", 4, 32)
    assert gpipe.total_seconds == other.total_seconds == 105
    assert max(gpipe.peak_in_flight) == 32
    assert max(other.peak_in_flight) == 4


def test_zero_bubble_is_the_papers_formula() -> None:
    """ZB-H1: (p - 1)(T_F + T_B - T_W), T_B without T_W (arXiv 2401.10241, table 1)."""
    for p, m in PAIRS:
        for f, b, w in ((1.0, 2.0, 1.0), (1.0, 2.2, 0.8), (2.0, 3.0, 1.25), (1.0, 2.0, 0.0)):
            found = simulate_pipeline(schedule("zero-bubble", p, m), f, b, w)
            if m >= p:
                assert found.bubble_seconds == pytest.approx((p - 1) * (f + (b - w) - w))
            if p > 1 and w > 0:
                assert found.total_seconds < run("1f1b", p, m, f=f, b=b).total_seconds
    third = simulate_pipeline(schedule("zero-bubble", 8, 32), 1, 2, 1)
    assert third.bubble_seconds == pytest.approx(run("1f1b", 8, 32).bubble_seconds / 3)


def test_naive_keeps_one_rank_at_work() -> None:
    found = simulate_pipeline(schedule("naive", 4, 8), 1, 2, transfer_seconds=0.5)
    assert found.total_seconds == pytest.approx(8 * (4 * 3 + 6 * 0.5))
    assert len(found.critical_path) == 8 * 8


def test_orders_read_as_published() -> None:
    """Megatron-LM's interleaved order for p = 2, v = 2, m = 4; ZB-H1's first and last rank."""
    interleaved = str(schedule("interleaved", 2, 4, 2)).splitlines()
    assert interleaved[0] == ("F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3")
    assert interleaved[1] == ("F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3")
    zero = str(schedule("zero-bubble", 3, 4)).splitlines()
    assert zero[0] == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert zero[2] == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"
    assert str(schedule("1f1b", 2, 4, 2)) == str(schedule("interleaved", 2, 4, 2))


@pytest.mark.parametrize("name", ["interleaved", "zero-bubble"])
def test_orders_are_those_that_torch_runs(name: str) -> None:
    """Against torch.distributed.pipelining's own order of operations, idle slots left out."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = schedules.ScheduleInterleaved1F1B
    if name == "zero-bubble":
        kind = schedules.ScheduleInterleavedZeroBubble
    letters = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}
    for p, m, v in TRIPLES:
        if p == 1 or (v == 1 and name == "interleaved"):
            continue
        theirs = object.__new__(kind)  # its constructor wants a process group
        theirs.n_local_stages, theirs._n_microbatches = v, m
        theirs.pp_group_size = theirs.microbatches_per_round = p
        for rank, order in enumerate(schedule(name, p, m, v).orders):
            expected = [one for one in theirs._calculate_single_rank_operations(rank) if one]
            assert [(one.kind, one.chunk * p + rank, one.micro_batch) for one in order] == [
                (letters[one.computation_type.name], one.stage_index, one.microbatch_index)
                for one in expected
            ], (p, m, v, rank)


TIMES = st.floats(0.01, 5)
CASES = st.tuples(
    st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble", "naive"]),
    st.integers(1, 6),  # ranks
    st.integers(1, 4),  # micro-batches over ranks, and some more
    st.integers(0, 5),
    st.integers(1, 3),  # chunks
).map(
    lambda one: (
        one[0],
        one[1],
        one[1] * one[2] + (0 if one[0] == "interleaved" or one[4] > 1 else one[3]),
        one[4],
    )
)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Schedule, list[float], list[float], list[float], float]:
    name, p, m, v = draw(CASES)
    forward = draw(st.lists(TIMES, min_size=p, max_size=p))
    backward = draw(st.lists(TIMES, min_size=p, max_size=p))
    share = draw(st.floats(0, 1))
    transfer = draw(st.one_of(st.just(0.0), st.floats(0, 2)))
    return schedule(name, p, m, v), forward, backward, [b * share for b in backward], transfer


@given(jobs())
@settings(max_examples=150)
def test_the_fast_path_is_the_simulation(job) -> None:
    orders, forward, backward, weight, transfer = job
    size = orders.stages, orders.micro_batches
    seconds = simulate_pipeline(orders, forward, backward, weight, transfer).total_seconds
    options = {
        "virtual_stages": orders.virtual_stages,
        "weight_seconds": weight,
        "transfer_seconds": transfer,
    }
    found = pipeline_seconds(orders.name, *size, forward, backward, **options)
    assert found == pytest.approx(seconds, rel=1e-9)
    even = simulate_pipeline(orders, forward[0], backward[0], weight[0]).total_seconds
    options |= {"weight_seconds": weight[0], "transfer_seconds": 0.0}
    found = pipeline_seconds(orders.name, *size, forward[0], backward[0], **options)
    assert found == pytest.approx(even, rel=1e-9)


@given(jobs())
@settings(max_examples=100)
def test_work_is_conserved_and_inputs_are_waited_for(job) -> None:
    orders, forward, backward, weight, transfer = job
    found = simulate_pipeline(orders, forward, backward, weight, transfer)
    m, p, last = orders.micro_batches, orders.stages, orders.stages * orders.virtual_stages - 1
    work = [m * (f + b) for f, b in zip(forward, backward, strict=True)]
    assert found.busy_seconds == pytest.approx(work)
    assert found.total_seconds >= max(work) * (1 - 1e-9)
    crossing = last * 2 * transfer * (p > 1)
    assert found.total_seconds >= (sum(forward) + sum(backward) + crossing - sum(weight)) * (
        1 - 1e-9
    )
    ends = {
        (one.kind, one.chunk * p + one.rank, one.micro_batch): one.end_seconds
        for passes in found.ranks
        for one in passes
    }
    late = transfer if p > 1 else 0.0
    for passes in found.ranks:
        for before, one in itertools.pairwise(passes):
            assert one.start_seconds >= before.end_seconds
        for one in passes:
            part, index = one.chunk * p + one.rank, one.micro_batch
            if one.kind == "F" and part:
                assert one.start_seconds >= ends["F", part - 1, index] + late
            if one.kind == "B":
                needed = ends["F", part, index]
                assert one.start_seconds >= needed
                if part < last:
                    assert one.start_seconds >= ends["B", part + 1, index] + late
            if one.kind == "W":
                assert one.start_seconds >= ends["B", part, index]


@given(jobs(), st.integers(0, 5), TIMES)
@settings(max_examples=100)
def test_a_slower_stage_or_link_never_makes_it_faster(job, rank: int, more: float) -> None:
    orders, forward, backward, weight, transfer = job
    before = simulate_pipeline(orders, forward, backward, weight, transfer).total_seconds
    slower = [f + more * (i == rank % len(forward)) for i, f in enumerate(forward)]
    after = simulate_pipeline(orders, slower, backward, weight, transfer).total_seconds
    assert after >= before * (1 - 1e-12)
    after = simulate_pipeline(orders, forward, backward, weight, transfer + more).total_seconds
    assert after >= before * (1 - 1e-12)


@given(CASES, TIMES, TIMES, st.integers(1, 3))
@settings(max_examples=100)
def test_more_micro_batches_never_a_larger_bubble(case, f: float, b: float, more: int) -> None:
    name, p, m, v = case
    few = simulate_pipeline(schedule(name, p, m, v), f, b)
    many = simulate_pipeline(schedule(name, p, m + more * p, v), f, b)
    assert many.bubble_of_ideal <= few.bubble_of_ideal * (1 + 1e-9) + 1e-12


@given(jobs())
@settings(max_examples=60)
def test_the_critical_path_spans_the_step(job) -> None:
    orders, forward, backward, weight, transfer = job
    found = simulate_pipeline(orders, forward, backward, weight, transfer)
    path = found.critical_path
    assert path[0].start_seconds == 0
    assert path[-1].end_seconds == found.total_seconds
    for before, one in itertools.pairwise(path):
        waited = transfer if before.rank != one.rank else 0.0
        assert one.start_seconds == pytest.approx(before.end_seconds + waited, rel=1e-12)


def test_uneven_chunks_are_given_in_the_models_order() -> None:
    """Part 3 of 4 (rank 1, chunk 1) takes 5 s, the others 1 s."""
    found = simulate_pipeline(schedule("interleaved", 2, 2, 2), [1, 1, 1, 5], [1, 1, 1, 1])
    assert found.busy_seconds == (2 * 4, 2 * 8)


def test_impossible_orders_are_errors_and_no_hang() -> None:
    forward, backward = Operation(kind="F", micro_batch=0), Operation(kind="B", micro_batch=0)
    wrong = Schedule(name="mine", orders=((backward, forward),) * 2, micro_batches=1)
    with pytest.raises(UsageError, match=r"Deadlock in schedule 'mine'.*rank 0 .*rank 1"):
        simulate_pipeline(wrong, 1, 1)
    crossed = Schedule(
        name="crossed",
        orders=tuple(
            tuple(Operation(kind=kind, micro_batch=i) for kind in "FB" for i in order)
            for order in ((0, 1), (1, 0))
        ),
        micro_batches=2,
    )
    assert simulate_pipeline(crossed, 1, 1).total_seconds > 6  # slow, but no deadlock
    missing = Schedule(name="mine", orders=((forward,),), micro_batches=1)
    with pytest.raises(UsageError, match="1 passes"):
        simulate_pipeline(missing, 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "1f2b"}, "Did you mean 1f1b"),
        ({"name": "interleaved", "micro_batches": 6}, "multiple of 4 micro-batches, not 6"),
        (
            {"name": "zero-bubble", "virtual_stages": 2, "micro_batches": 6},
            "zero-bubble schedule needs a multiple of 4",
        ),
        ({"stages": 0}, "at least 1"),
        ({"micro_batches": 10**9, "transfer_seconds": 0.1}, "fewer micro-batches"),
        (
            {
                "micro_batches": 10**9,
                "forward_seconds": [1.0, 2.0, 1.0, 1.0],
                "name": "zero-bubble",
            },
            "fewer micro-batches",
        ),
        ({"forward_seconds": [1.0, 2.0]}, "4 \\(one per rank\\)"),
        ({"forward_seconds": float("nan")}, "0 or above"),
        ({"backward_seconds": -1.0}, "0 or above"),
        ({"weight_seconds": 3.0}, "cannot exceed"),
        ({"transfer_seconds": float("inf")}, "finite"),
    ],
)
def test_bad_input_says_what_is_allowed(change: dict, message: str) -> None:
    given = {
        "name": "1f1b",
        "stages": 4,
        "micro_batches": 8,
        "forward_seconds": 1.0,
        "backward_seconds": 2.0,
    }
    with pytest.raises(UsageError, match=message):
        pipeline_seconds(**given | change)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "naive", "zero-bubble"])
def test_a_closed_form_takes_any_number_of_micro_batches(name: str) -> None:
    forward: float | list[float] = 1.0 if name == "zero-bubble" else [1.0, 2.0, 1.0, 1.0]
    few, many = (pipeline_seconds(name, 4, count, forward, 2.0) for count in (1000, 10**6))
    per_micro_batch = (many - few) / (10**6 - 1000)
    again = pipeline_seconds(name, 4, 1001, forward, 2.0) - few
    assert per_micro_batch == pytest.approx(again)


def test_the_planner_gets_its_answer_in_microseconds() -> None:
    forward = [1 + rank / 10 for rank in range(8)]
    backward = [2 * seconds for seconds in forward]

    def best(*given, **options) -> float:  # of many: other processes only add to it
        taken = []
        for _ in range(200):
            start = time.perf_counter()
            pipeline_seconds(*given, **options)
            taken.append(time.perf_counter() - start)
        return min(taken)

    assert best("1f1b", 8, 32, 1.0, 2.0) < 50e-6
    assert best("1f1b", 8, 32, forward, backward) < 50e-6
    assert best("gpipe", 8, 32, forward, backward, transfer_seconds=0.1) < 50e-6
    assert best("interleaved", 8, 32, 1.0, 2.0, virtual_stages=4) < 50e-6
    assert best("zero-bubble", 8, 32, 1.0, 2.0) < 50e-6

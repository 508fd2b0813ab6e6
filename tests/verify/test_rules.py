"""What `workbench verify` says of traces, and of one real script with and without its bug."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.verify.__main__ import PAGE
from tests.verify.cases import CASES, CORRECT
from workbench.errors import UsageError
from workbench.verifying.comparing import compare
from workbench.verifying.judging import judge
from workbench.verifying.trace import Batch, RankTrace, Sketch, Step, Trace
from workbench.verifying.verify import VerifyOptions, verify


def sketch(mark: int, *projections: float, shape: tuple[int, ...] = (4, 4)) -> Sketch:
    values = projections or (float(mark), 0.0, 0.0, 0.0)
    return Sketch(hash=mark, norm=abs(values[0]), spread=1.0, shape=shape, projections=values)


def rank(
    number: int, *, samples: tuple[int, ...], gradient: int = 7, loss: float = 1.0
) -> RankTrace:
    begin, after = {"w": sketch(1), "v": sketch(2)}, {"w": sketch(3), "v": sketch(4)}
    step = Step(
        step=1,
        losses=(loss,),
        batches=(Batch(samples=samples, shapes=((len(samples), 8),)),),
        gradients={"w": sketch(gradient), "v": sketch(gradient + 1)},
        weights=after,
        lr=0.1,
        modes=(True,),
    )
    return RankTrace(
        rank=number,
        world_size=2,
        wrappers=("DistributedDataParallel",),
        weights=begin,
        trainable=("w", "v"),
        optimized=("w", "v"),
        order=("w", "v"),
        steps=(step,),
    )


def trace(*ranks: RankTrace) -> Trace:
    return Trace(label=f"{len(ranks)} ranks", ranks=ranks)


def kinds(*ranks: RankTrace) -> list[str]:
    return [one.kind for one in judge(trace(*ranks), None)]


def test_ranks_that_agree_and_read_different_data_are_not_accused() -> None:
    assert kinds(rank(0, samples=(1, 2)), rank(1, samples=(3, 4))) == []


def test_ranks_that_read_the_same_samples_are_named() -> None:
    assert kinds(rank(0, samples=(1, 2)), rank(1, samples=(2, 1))) == ["same-data"]


def test_of_a_few_possible_contents_ranks_may_have_the_same() -> None:
    states = ((1, 2, 3, 1, 2, 3, 1, 1), (3, 1, 2, 2, 2, 1, 3, 3))
    assert kinds(rank(0, samples=states[0]), rank(1, samples=states[1])) == []
    assert kinds(rank(0, samples=states[0]), rank(1, samples=states[0])) == ["same-data"]


def local(number: int, *, averages: bool, rate: float = 0.1) -> RankTrace:
    """Two steps of a rank's own, before the second of which all ranks' weights may be equal."""
    one = rank(number, samples=(1 + number,), gradient=7 + 20 * number)
    first = replace(one.steps[0], weights={"w": sketch(30 + number)}, lr=rate)
    first = replace(first, local=first.gradients)
    moved = {"w": 50} if averages else {}
    second = replace(first, step=2, weights={"w": sketch(60 + number)}, moved=moved)
    return replace(one, wrappers=(), steps=(first, second))


def test_ranks_that_average_their_weights_need_not_exchange_gradients() -> None:
    apart = [local(number, averages=False) for number in range(2)]
    assert kinds(*apart) == ["gradients-not-exchanged"]
    assert kinds(*(local(number, averages=True) for number in range(2))) == []
    rates = [local(number, averages=True, rate=0.1 + number) for number in range(2)]
    assert kinds(*rates) == ["rates-differ"]


def test_gradients_that_differ_are_named_with_the_first_parameter() -> None:
    one, other = rank(0, samples=(1, 2)), rank(1, samples=(3, 4), gradient=9)
    found = judge(trace(one, other), None)
    assert [(v.kind, v.what, v.rank) for v in found] == [("exchange-damaged", "w", 1)]


def test_values_are_compared_only_on_the_same_samples() -> None:
    many = trace(rank(0, samples=(1, 2)), rank(1, samples=(3, 4)))
    comparison, verdicts = compare(many, trace(rank(0, samples=(1, 2, 3, 5))))
    assert (comparison.steps, verdicts) == (0, [])
    comparison, verdicts = compare(many, trace(rank(0, samples=(4, 3, 2, 1))))
    assert (comparison.steps, comparison.loss, verdicts) == (1, 0.0, [])


def test_a_loss_beyond_rounding_is_named_with_its_bound() -> None:
    many = trace(rank(0, samples=(1, 2)), rank(1, samples=(3, 4)))
    _, verdicts = compare(many, trace(rank(0, samples=(1, 2, 3, 4), loss=1.01)))
    assert [one.kind for one in verdicts] == ["loss-differs"]
    assert "Rounding explains" in verdicts[0].bound


def test_a_loss_that_is_no_number_on_several_ranks_alone_is_named() -> None:
    many = trace(rank(0, samples=(1, 2)), rank(1, samples=(3, 4), loss=math.nan))
    _, verdicts = compare(many, trace(rank(0, samples=(1, 2, 3, 4))))
    assert [one.kind for one in verdicts] == ["loss-differs"]
    (found,) = judge(many, trace(rank(0, samples=(1, 2, 3, 4))))
    assert (found.kind, found.rank, found.severity) == ("loss-not-finite", 1, "error")


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_in_both_runs_is_not_called_right(loss: float) -> None:
    ranks = [rank(0, samples=(1, 2), loss=loss), rank(1, samples=(3, 4), loss=loss)]
    bad = {name: sketch(9, math.nan, math.nan) for name in ("w", "v")}
    many = trace(*(changed(one, gradients=bad) for one in ranks))
    one = trace(changed(rank(0, samples=(1, 2, 3, 4), loss=loss), gradients=bad))
    (found,) = judge(many, one)
    assert (found.kind, found.rank, found.step) == ("loss-not-finite", None, 1)
    assert "as on 1 ranks" in found.evidence
    comparison, verdicts = compare(many, one)
    assert (comparison.steps, comparison.loss, comparison.gradient, verdicts) == (0, None, None, [])
    assert "NaN or infinite" in comparison.why


def changed(one: RankTrace, **values: Any) -> RankTrace:
    """The same rank with other values in its only step."""
    return replace(one, steps=(replace(one.steps[0], **values),))


def test_one_graph_whose_ranks_have_their_own_losses_is_no_same_data() -> None:
    assert kinds(rank(0, samples=(1, 2)), rank(1, samples=(1, 2), loss=1.1)) == []


@pytest.mark.parametrize(
    ("norms", "scale", "expected"),
    [
        ((1.0, 1.0), 1.0, []),
        ((1.0, 1.2), 1.0, ["clipped-before-exchange"]),
        ((9.0, 9.0), 1024.0, ["clipped-before-unscale"]),
        ((math.inf, math.inf), 1.0, []),  # a scaler that looks for its factor
        ((math.nan, math.nan), 1.0, []),
    ],
)
def test_gradients_are_clipped_after_their_exchange_and_without_a_scalers_factor(
    norms: tuple[float, float], scale: float, expected: list[str]
) -> None:
    ranks = [
        changed(
            rank(number, samples=(2 * number, 2 * number + 1)),
            clips=({"kind": "norm", "norm": norm, "elements": 32, "scale": scale},),
        )
        for number, norm in enumerate(norms)
    ]
    assert kinds(*ranks) == expected


def test_a_tie_that_was_copied_is_named_and_a_deep_copy_of_a_layer_is_not() -> None:
    ranks = [rank(0, samples=(1, 2)), rank(1, samples=(3, 4))]
    ranks = [replace(one, weights={"w": sketch(1), "v": sketch(1)}) for one in ranks]
    assert kinds(*ranks) == []
    assert kinds(*(replace(one, embeddings=("w",)) for one in ranks)) == ["tied-weights-split"]


def loader(**values: Any) -> dict[str, Any]:
    known = {"trains": True, "dispatched": False, "distributed": False, "length": 100}
    more = {"batches": 5, "batch_size": 10, "drop_last": False, "shuffle": True, "workers": 0}
    return {**known, **more, "sampler": "RandomSampler", "replicas": None, **values}


@pytest.mark.parametrize(
    ("feeds", "expected"),
    [
        ((loader(length=50), loader(length=50)), []),
        ((loader(length=50), loader(length=49)), []),
        ((loader(length=40), loader(length=40)), ["samples-left-out"]),
        ((loader(length=60, batches=6), loader(length=40, batches=4)), ["samples-left-out"]),
        ((loader(distributed=True, replicas=4),) * 2, ["samples-left-out"]),
        ((loader(distributed=True, replicas=2),) * 2, []),
        (
            (loader(distributed=True, drop_last=True, shuffle=False, batches=4),) * 2,
            ["samples-left-out"],
        ),
        ((loader(distributed=True, drop_last=True, batches=4),) * 2, []),
    ],
)
def test_samples_that_no_rank_reads_are_named(
    feeds: tuple[dict[str, Any], ...], expected: list[str]
) -> None:
    ranks = [
        replace(rank(number, samples=(2 * number, 2 * number + 1)), loaders=(feed,))
        for number, feed in enumerate(feeds)
    ]
    alone = trace(replace(rank(0, samples=(0, 1, 2, 3)), loaders=(loader(),)))
    assert [one.kind for one in judge(trace(*ranks), alone)] == expected


@pytest.mark.parametrize(
    ("factors", "named"),
    [
        (((1.0, 0), (1.0, 0)), True),
        (((0.5, 0), (0.5, 0)), False),
        (((2.0, 0), (2.0, 0)), True),  # times the ranks
        (((1.0, 40), (1.0, 40)), True),
        (((1.5, 30), (1.2, 30)), True),  # a sum over its own targets, which vary
        (((1.5, 30), (2.0, 40)), False),  # 20 targets in the whole step, much of it padding
        (((0.5, 30), (0.7, 40)), False),
        ((None, None), False),  # an engine divides
    ],
)
def test_losses_that_are_added_up_undivided_are_named(factors: Any, *, named: bool) -> None:
    batches = tuple(Batch(samples=(n,), indices=(n,), shapes=((1, 8),)) for n in (1, 2))
    one = changed(rank(0, samples=(1, 2)), losses=(1.0, 1.0), batches=batches, factors=factors)
    other = changed(rank(1, samples=(3, 4)), losses=(1.0, 1.0), batches=batches[:1])
    assert ("loss-not-divided" in kinds(one, other)) is named


def rates(*values: float) -> RankTrace:
    """A rank that makes a step at each learning rate."""
    steps = [
        replace(rank(0, samples=(1, 2)).steps[0], step=n + 1, lr=lr) for n, lr in enumerate(values)
    ]
    moved = [
        replace(one, weights={"w": sketch(10 + n), "v": sketch(20 + n)})
        for n, one in enumerate(steps)
    ]
    return replace(rank(0, samples=(1, 2)), steps=tuple(moved))


def test_a_schedule_that_advances_once_for_each_rank_is_named() -> None:
    alone = trace(rates(*(0.1 - 0.01 * n for n in range(8))))
    fast = [0.1 - 0.02 * n for n in range(8)]
    other = [replace(one, batches=(Batch(samples=(7, 8)),)) for one in rates(*fast).steps]
    found = judge(trace(rates(*fast), replace(rates(*fast), rank=1, steps=tuple(other))), alone)
    assert [one.kind for one in found] == ["schedule-too-fast"]
    constant = [replace(one, lr=0.1) for one in other]
    ranks = rates(*[0.1] * 8), replace(rates(*[0.1] * 8), rank=1, steps=tuple(constant))
    assert judge(trace(*ranks), trace(rates(*[0.1] * 8))) == []


def test_losses_are_compared_up_to_the_first_step_at_another_rate() -> None:
    many = trace(rates(0.2, 0.2, 0.2))
    comparison, verdicts = compare(many, trace(rates(0.1, 0.1, 0.1)))
    assert (comparison.steps, verdicts) == (1, [])


def test_a_frozen_parameter_changes_only_where_an_optimizer_moves_it() -> None:
    begin, after = {"w": sketch(1), "slow": sketch(2)}, {"w": sketch(3), "slow": sketch(4)}

    def moved(gradient: Sketch | None, *applied: str) -> list[str]:
        gradients = {"w": sketch(7), "slow": gradient}
        one = changed(rank(0, samples=(1, 2)), weights=after, gradients=gradients, applied=applied)
        return kinds(replace(one, weights=begin, trainable=("w",), optimized=("w",), order=("w",)))

    assert moved(None, "w", "slow") == []  # a moving average
    assert moved(sketch(0), "w") == []
    assert moved(sketch(0), "w", "slow") == ["frozen-changes"]


@pytest.mark.parametrize(
    ("layers", "trained", "drawn", "expected"),
    [
        # A name pattern froze the head, too: of a new model, and of one that was loaded.
        (("body.0", "body.1", "head"), ("body.0",), True, True),
        (("body.0", "body.1", "head.0", "head.1"), ("body.1",), ("head.0", "head.1"), True),
        (("body.0", "head.0", "head.1"), ("body.0",), ("body.0", "head.0"), False),  # loaded
        # A frozen network behind one that is trained as a whole; behind one that is so in part.
        (("net.0", "net.1", "vgg.0", "vgg.1"), ("net.0", "net.1"), True, False),
        (("net.0", "net.1", "vgg.0", "vgg.1"), ("net.0",), True, True),
        (("m.net.0", "m.vgg.0", "m.vgg.1"), ("m.net.0",), True, False),
        (("net.0", "vgg.0", "vgg.1"), ("net.0",), False, False),
        (("net.0", "vgg.0", "vgg.1"), ("net.0", "vgg.1"), True, False),
    ],
)
def test_a_frozen_network_behind_trained_ones_is_no_head_frozen_by_mistake(
    layers: tuple[str, ...],
    trained: tuple[str, ...],
    drawn: Any,
    *,
    expected: bool,
) -> None:
    names = tuple(f"{layer}.weight" for layer in layers)
    weights = {name: sketch(number, 1.0, 2.0) for number, name in enumerate(names)}
    fresh = layers if drawn is True else drawn or ()
    one = replace(
        changed(rank(0, samples=(1, 2)), gradients={}, weights=weights),
        weights=weights,
        order=names,
        trainable=tuple(f"{layer}.weight" for layer in trained),
        optimized=(),
        drawn=tuple(f"{layer}.weight" for layer in fresh),
    )
    assert kinds(one) == ["frozen-output-layer"] * expected


@pytest.mark.parametrize(
    ("feed", "expected"),
    [
        ({"batches": 10}, ["same-data"]),
        ({"batches": 5}, []),  # its sampler takes a part
        ({"batches": 5, "batch_size": None}, []),
        ({"batches": 10, "batch_size": None}, ["same-data"]),
        ({"batches": None}, []),
    ],
)
def test_a_sampler_whose_epoch_is_shorter_on_several_ranks_splits_the_data(
    feed: dict[str, Any], expected: list[str]
) -> None:
    ranks = [
        replace(rank(number, samples=(2 * number, 2 * number + 1)), loaders=(loader(**feed),))
        for number in range(2)
    ]
    single = loader(**(feed | {"batches": 10 if feed.get("batch_size", 1) is None else 5}))
    if single["batch_size"] is not None:
        single["batch_size"] *= 2
    alone = trace(replace(rank(0, samples=(0, 1, 2, 3)), loaders=(single,)))
    assert [one.kind for one in judge(trace(*ranks), alone)] == expected


@pytest.mark.parametrize(("single", "expected"), [(21, []), (22, ["same-random-data"])])
def test_entries_that_hold_the_same_in_each_run_are_no_random_numbers(
    single: int, expected: list[str]
) -> None:
    fetches = tuple(
        {"loader": 0, "pass": 1, "indices": [n], "hash": 5, "firsts": [1], "varied": True}
        for n in (1, 9)
    )

    def reads(mark: int) -> RankTrace:
        batch = Batch(samples=(mark,), indices=(1,), shapes=((1, 8),), drawn=True)
        feed = loader(trains=False, workers=2)
        return replace(
            changed(rank(0, samples=()), batches=(batch,)), fetches=fetches, loaders=(feed,)
        )

    found = judge(trace(reads(21)), trace(reads(single)))
    assert [one.kind for one in found] == expected


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ((1, 1, 2, 2, 3, 3), ["read-by-each-worker"]),
        ((1, 1, 2), []),  # one round tells nothing
        ((1, 2, 3, 4), []),
        ((1, 1, 1, 1), []),  # a stream that gives the same again and again
    ],
)
def test_a_stream_that_each_worker_reads_is_named(
    marks: tuple[int, ...], expected: list[str]
) -> None:
    fetches = tuple(
        {"loader": 0, "pass": 1, "indices": None, "hash": mark, "firsts": [2], "varied": True}
        for mark in marks
    )
    feed = loader(distributed=None, length=None, workers=2)
    assert kinds(replace(rank(0, samples=(1, 2)), fetches=fetches, loaders=(feed,))) == expected


def test_an_optimizer_that_makes_no_step_is_a_note() -> None:
    one = replace(rank(0, samples=(1, 2)), optimized=("w",))
    assert [(v.kind, v.severity) for v in judge(trace(one), None)] == [
        ("not-in-optimizer", "warning")
    ]
    found = judge(trace(replace(one, waiting=("v",))), None)
    assert [(v.kind, v.what, v.severity) for v in found] == [("optimizer-rests", "v", "note")]


@pytest.mark.parametrize("ranks", [(1,), (0, 2), (1, 2, 4)])
def test_ranks_that_cannot_be_compared_are_refused(ranks: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="--ranks"):
        VerifyOptions(ranks=ranks)


def test_each_bug_has_a_twin_with_the_right_line_and_a_row_of_the_page() -> None:
    page = PAGE.read_text()
    for name in [case.script for case in CASES] + [path.stem for path in CORRECT]:
        assert f"\n| {name} |" in page
    assert "**" not in page  # what is missed, accused or failed stands in bold
    for case in CASES:
        assert case.correct() != case.wrong()
        compile(case.correct(), case.script, "exec")
        compile(case.wrong(), case.script, "exec")


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("script", ["no_sampler", "replaced_after_wrapping"])
def test_a_bug_is_named_and_its_twin_is_not(script: str, tmp_path: Path) -> None:
    case = next(one for one in CASES if one.script == script)
    path = tmp_path / "train.py"
    path.write_text(case.wrong())
    answer = verify(path, (), VerifyOptions(cpu=True, steps=3))
    assert answer.first is not None
    assert answer.first.kind in case.kinds
    path.write_text(case.correct())
    answer = verify(path, (), VerifyOptions(cpu=True, steps=3))
    assert answer.first is None
    assert answer.comparison.steps == 3
    assert (answer.comparison.loss or 0) <= (answer.comparison.bound or 0)

"""The laws of a scaling study: what they give back of what they were made from."""

from __future__ import annotations

import random

import pytest

import workbench as wb
from workbench.cli.commands import load
from workbench.compare.scaling_study import conclude, notes_on
from workbench.compare.studies.bench import Bench
from workbench.compare.studies.rented import rented
from workbench.compare.studies.scaling_curves import curve_of
from workbench.compare.studies.scaling_fit import MESSAGE_SECONDS, extrapolate, law
from workbench.compare.studies.sizes import Sizes, trials
from workbench.compare.studies.step_split import Host, MeasuredSize, StepSplit, medians, parts_of
from workbench.compare.studies.trial import Trial
from workbench.describe.option import declared
from workbench.errors import UsageError
from workbench.launching.prepare.options import LaunchOptions

CPU = Host(cores=2)
PASS = 0.02  # seconds of one pass of the gradients


def made(ranks: int, *, batch: float = 1.0, host: Host = CPU, seed: int = 0) -> MeasuredSize:
    """Steps of a machine on which the laws hold: forward 100 ms on one core, backward twice it."""
    dice = random.Random(seed + ranks)
    crowd, threads = host.crowd(ranks), host.threads(ranks)
    forward = 0.1 * batch * crowd / threads
    messages, volume = 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    sent = crowd * (MESSAGE_SECONDS * messages + PASS * volume)
    splits = []
    for _ in range(30):
        noise = 1 + 0.02 * dice.random()
        rest = noise * (2 * forward + sent)
        waiting = 0.002 * dice.random() if ranks > 1 else 0.0
        split = {"data": 0.001, "forward": noise * forward, "waiting": waiting, "rest": rest}
        splits.append(StepSplit(step=sum(split.values()), **split))
    return MeasuredSize(ranks=ranks, splits=tuple(splits))


def test_four_ranks_follow_from_one_and_two_on_shared_cores() -> None:
    (four,) = extrapolate([made(1), made(2)], CPU, [4])
    measured = medians(made(4).splits)
    assert four.step_seconds == pytest.approx(measured.step, rel=0.03)
    assert four.low_seconds < measured.step < four.high_seconds
    assert four.parts["communication"] == pytest.approx(2 * (6e-4 + 1.5 * PASS), rel=0.1)


def test_a_line_through_two_sizes_is_far_off_where_the_ring_is_not() -> None:
    gpus = Host(cores=None)
    one, two, eight = (medians(made(ranks, host=gpus).splits).step for ranks in (1, 2, 8))
    line = two + 6 * (two - one)
    (predicted,) = extrapolate([made(1, host=gpus), made(2, host=gpus)], gpus, [8])
    assert predicted.step_seconds == pytest.approx(eight, rel=0.05)
    assert line > 1.25 * eight


def test_ranks_with_a_gpu_each_compute_alike() -> None:
    gpus = Host(cores=None)
    (many,) = extrapolate([made(1, host=gpus), made(2, host=gpus)], gpus, [16])
    alone = medians(made(1, host=gpus).splits).step
    assert many.parts["compute"] == pytest.approx(alone - many.parts["data"], rel=0.02)
    assert alone < many.step_seconds < 1.25 * alone


def test_strong_scaling_keeps_what_a_smaller_batch_does_not_shrink() -> None:
    gpus = Host(cores=64)

    def strong(
        ranks: int,
    ) -> MeasuredSize:  # a third of one rank's work is there whatever the batch
        return made(ranks, batch=(1 / 3 + 2 / 3 / ranks) * (64 // ranks), host=gpus)

    def weak(ranks: int) -> MeasuredSize:
        return made(ranks, batch=64 // ranks, host=gpus)

    points = [strong(1), strong(2)]
    fitted = law(points, gpus, strong=True, same_work=weak(2))
    assert fitted.fixed == pytest.approx(0.5, abs=0.05)  # of 1/3 + 1/3
    free = law(points, gpus, strong=True)
    assert free.fixed == 0.0
    assert fitted.at(4)["compute"] > free.at(4)["compute"]


def test_the_range_grows_with_the_distance() -> None:
    found = extrapolate([made(1), made(2)], CPU, [2, 4, 16, 64])
    widths = [(one.high_seconds - one.low_seconds) / one.step_seconds for one in found]
    assert widths == sorted(widths)
    assert widths[-1] > 2 * widths[0]


def test_three_sizes_tell_messages_from_bytes() -> None:
    gpus = Host(cores=None)
    slow = [made(ranks, host=gpus) for ranks in (1, 2, 4, 8)]
    fitted = law(slow, gpus)
    assert fitted.exchange == pytest.approx(PASS, rel=0.35)
    assert fitted.at(8)["communication"] == pytest.approx(
        parts_of(slow, gpus)[-1]["communication"], rel=0.15
    )


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_causes_and_efficiency_make_one(mode: str) -> None:
    by_mode = {"weak": [], "strong": []} | {mode: [made(1), made(2), made(4)]}
    curve = curve_of(mode, by_mode, CPU, [8])
    assert [point.measured for point in curve.points] == [True, True, True, False]
    for point in curve.points:
        assert point.efficiency + sum(point.lost.values()) == pytest.approx(1.0)
        assert sum(point.parts.values()) == pytest.approx(point.step_seconds)
    assert curve.points[0].efficiency == 1.0


def test_a_script_whose_parts_are_not_seen_still_has_a_curve() -> None:
    blind = [
        MeasuredSize(
            ranks=one.ranks,
            splits=tuple(
                StepSplit(step=s.step, data=0.0, forward=0.0, waiting=0.0, rest=s.step)
                for s in one.splits
            ),
        )
        for one in (made(1), made(2))
    ]
    parts = parts_of(blind, CPU)
    assert parts[1]["communication"] == pytest.approx(
        medians(blind[1].splits).step - medians(blind[0].splits).step
    )
    assert extrapolate(blind, CPU, [4])[0].step_seconds > 0


def test_one_size_is_no_fit() -> None:
    with pytest.raises(UsageError, match="a fit needs two"):
        law([made(1)], CPU)


def test_a_base_that_was_held_up_is_told() -> None:
    quiet = curve_of("weak", {"weak": [made(1), made(2)], "strong": []}, CPU, [])
    assert not any("slowed the smallest size down" in note for note in notes_on(CPU, [quiet], []))
    slow = curve_of("weak", {"weak": [made(1, batch=8.0), made(2)], "strong": []}, CPU, [])
    assert any(
        "at 2 ranks" in note and "slowed the smallest size down" in note
        for note in notes_on(CPU, [slow], [])
    )


def test_a_described_job_is_scaled_as_it_would_be_launched() -> None:
    tiny = ("--layers", "1", "--hidden", "64", "--seq-len", "32", "--micro-batch", "4")
    options = {"recompute": "full"}
    job = wb.request("gpt", tiny, strategy="fsdp", processes=2, options=options, cpu=True).job
    assert job is not None
    bench = Bench.of(job, ("--lr", "1e-3"))
    (_, alone), (_, pair) = trials(bench, Sizes(sizes=(1, 2), steps=10))
    assert (alone.processes, pair.processes) == (1, 2)
    assert bench.request(alone).strategy.name == "single"
    assert bench.request(pair).strategy.name == "fsdp"
    assert bench.request(pair).job == job
    assert {"--lr", "--steps"} <= set(alone.arguments)
    plain = Bench.of("gpt", tiny, LaunchOptions(cpu=True))
    assert plain.request(Trial(label="", processes=2, arguments=tiny)).strategy.name == "ddp"


@pytest.mark.parametrize(
    ("launch", "trial", "key"),
    [
        (
            {"strategy": "fsdp", "options": {"recompute": "full"}, "cpu": True},
            {"label": "weak 2", "processes": 2, "value": 2},
            "abbf47a6816be633",
        ),
        ({"warm": True}, {"label": "weak 1", "processes": 1, "value": 1}, "cbc5f77bde8677e6"),
    ],
)
def test_a_study_of_an_earlier_version_goes_on(launch, trial, key) -> None:
    """The keys are those that versions before 2026-11-23 kept: nothing is measured twice."""
    bench = Bench.of("gpt", (), LaunchOptions(**launch))
    assert bench.key(Trial(**trial, arguments=("--layers", "1"))) == key


def test_what_changes_a_trial_changes_its_key() -> None:
    trial = Trial(label="weak 2", processes=2)
    launches = (
        {},
        {"strategy": "fsdp"},
        {"options": {"comm_hook": "fp16"}},
        {"wrap": "Block"},
        {"environment": {"OMP_NUM_THREADS": "1"}},
        {"cpu": True},
    )
    keys = {Bench.of("gpt", (), LaunchOptions(**one)).key(trial) for one in launches}
    assert len(keys) == len(launches)


@pytest.mark.parametrize("name", ["scale", "batch-size", "accumulate", "workers", "compression"])
def test_every_study_takes_the_declared_options_of_a_launch(name: str) -> None:
    command = load("scale") if name == "scale" else load("study").commands[name]
    flags = {flag for one in command.params for flag in one.opts}
    strategy = {one.flag for one in declared(wb.Strategy).values()}
    assert strategy | {"--strategy", "--cpu", "--warm", "--env", "--wrap", "--store"} <= flags
    assert not {"--nodes", "--restarts", "--port"} & flags  # a study decides these itself


def test_rented_gpus_are_estimated_under_the_strategy_of_the_study() -> None:
    study = conclude("scale-1", "gpt", [], (), cpu=True)

    def step(**launch: object) -> float:
        bench = Bench.of("gpt", ("--size", "12"), LaunchOptions(**launch, cpu=True))
        (point,) = rented(study, bench, "h100-sxm", (8,))
        return point.step_seconds

    work = wb.request("gpt", ["--size", "12"], processes=1, cpu=True).workload
    for name in ("ddp", "fsdp"):
        alone = wb.step_time(work, wb.Strategy.parse(name, 8), wb.Cluster.rented("h100-sxm", 8))
        assert step(strategy=name) == pytest.approx(alone.step_seconds)
    assert step() == step(strategy="ddp") != step(strategy="fsdp")
    with pytest.raises(UsageError, match="strategies of any number of ranks, not 'tp'"):
        step(strategy="tp")


def test_fewer_ranks_than_are_measured_are_to_be_measured_too() -> None:
    with pytest.raises(UsageError, match=r"2 ranks are fewer .* with sizes 1,2,4\."):
        wb.scale("gpt", sizes=(1, 4), to=(2, 8))
    with pytest.raises(UsageError, match=r"with sizes 1,2,4\."):
        wb.scale("gpt", sizes="2,4", to="1")


def test_a_scaling_study_knows_its_options() -> None:
    with pytest.raises(UsageError, match="Did you mean steps"):
        wb.scale("gpt", step=30)
    with pytest.raises(UsageError, match="--sizes 'one': give whole numbers separated by commas"):
        wb.scale("gpt", sizes="one")
    (_, alone), (_, pair) = trials(
        Bench.of(
            "gpt", (), LaunchOptions(strategy="fsdp", options={"recompute": "full"}, cpu=True)
        ),
        Sizes(),
    )
    bench = Bench.of("gpt", (), LaunchOptions(strategy="fsdp", options={"recompute": "full"}))
    assert bench.request(alone, cpu=True).strategy.recompute == "none"
    assert bench.request(pair, cpu=True).strategy.recompute == "full"

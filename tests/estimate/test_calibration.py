"""A calibration as a value: read from anybody's file, used for its own host only, and predicting."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import workbench as wb
from workbench.describe import Cluster, Strategy
from workbench.estimate.calibration import Calibration, read
from workbench.estimate.calibration_check import lines, troubles
from workbench.estimate.calibration_rows import Collective, MeasuredStep, Product, Rates
from workbench.estimate.host_rates import host_rates, messages, step_work
from workbench.estimate.host_step import predict_step, recipe_workload

CORES = 2
SHAPES = ((4, 96, 2, 64, 4), (2, 224, 4, 128, 8), (2, 576, 9, 128, 2), (3, 352, 4, 96, 4))
OTHERS = ((3, 192, 3, 128, 8), (4, 256, 4, 128, 8), (5, 320, 5, 128, 4), (6, 384, 6, 128, 4))
HOST = Cluster(name="a", cpu_name="Some CPU", cpu_cores=CORES)
# What one process of a machine is made of: FLOP/s, attention, B/s, and what surrounds them.
FLOPS, ATTENTION, MEMORY = 90e9, 30e9, 14e9
FACTOR, ELEMENT, BLOCK = 1.1, 15e-9, 3e-4
MESSAGE, BYTE, EXPOSED, STRAGGLING = 4e-4, 5e-10, 0.9, 0.02


def cores_each(processes: int) -> float:
    return min(float(max(1, CORES // processes)), CORES / processes)


def true_step(shape: tuple[int, ...], processes: int) -> MeasuredStep:
    """A step of that machine: products, passes over memory, launches and a ring of all cores."""
    share, alone = cores_each(processes), min(1.0, cores_each(processes))
    layers, hidden, heads, seq_len, micro_batch = shape
    row = MeasuredStep(
        layers=layers, hidden=hidden, heads=heads, seq_len=seq_len, micro_batch=micro_batch,
        precision="fp32", processes=processes,
        forward_seconds=1, backward_seconds=1, exchange_seconds=0, update_seconds=1, step_seconds=1,
    )  # fmt: skip
    work = step_work(row)
    passes = [
        FACTOR * (
            flops * work.product_flops / FLOPS
            + part * work.attention_flops / ATTENTION
            + flops * work.weight_bytes / MEMORY
        ) / share
        + times * work.elements * ELEMENT / share
        + work.blocks * BLOCK / alone
        for flops, part, times in ((1, 2 / 7, 1), (2, 5 / 7, 2))
    ]  # fmt: skip
    ring = (processes - 1) / min(processes, CORES)
    sent = 4 * work.parameters
    exchange = EXPOSED * ring * (messages(sent) * MESSAGE + sent * BYTE)
    exchange = exchange + STRAGGLING * sum(passes) if processes > 1 else 0.0
    update = work.parameters * 2e-9 / share
    return dataclasses.replace(
        row,
        forward_seconds=passes[0],
        backward_seconds=passes[1],
        exchange_seconds=exchange,
        update_seconds=update,
        step_seconds=sum(passes) + exchange + update,
    )


def calibrated(counts: tuple[int, ...] = (1, 2, 4), **more: Any) -> Calibration:
    products, rates, collectives, steps = [], [], [], []
    for count in counts:
        share = cores_each(count)
        kinds = (("fp32", 1024, 768, 768, FLOPS), ("attention", 8, 256, 64, ATTENTION))
        products += [
            Product(precision=p, m=m, k=k, n=n, processes=count, flops_per_second=rate * share)
            for p, m, k, n, rate in kinds
        ]
        memory = MEMORY * share
        rates.append(
            Rates(
                processes=count,
                threads=max(1, CORES // count),
                launch_seconds=2e-6,
                memory_bytes_per_second=memory,
            )
        )
        ring = (count - 1) / min(count, CORES)
        collectives += [
            Collective(
                kind="all-reduce",
                backend="gloo",
                ranks=count,
                bytes=size,
                seconds=ring * (MESSAGE + size * BYTE),
            )
            for size in (1 << 16, 1 << 20, 25 << 20)
            if count > 1
        ]
        steps += [true_step(shape, count) for shape in SHAPES]
    given = {
        "key": "cpu-test", "host": "here", "device": "cpu", "cores": CORES, "measured_at": 1.8e9,
        "seconds": 60.0, "products": tuple(products), "rates": tuple(rates),
        "collectives": tuple(collectives), "steps": tuple(steps), "versions": {"torch": "2"},
    }  # fmt: skip
    return Calibration(**(given | more))


def on_gpus(**more: Any) -> Calibration:
    gpu = wb.Cluster.rented("h100-sxm").accelerator
    assert gpu is not None
    rate = dict.fromkeys(("m", "k", "n"), 8192)
    values: dict[str, Any] = {
        "device": "cuda", "gpu": gpu.id, "gpus": 8, "steps": (),
        "products": (
            Product(precision="bf16", processes=1, flops_per_second=700e12, **rate),
        ),
        "rates": (
            Rates(processes=1, threads=8, memory_bytes_per_second=3e12, launch_seconds=3e-6),
        ),
        "collectives": (
            Collective(
                kind="all-reduce", backend="nccl", ranks=8, bytes=1 << 30,
                seconds=(7 / 4) * (1 << 30) / 330e9,
            ),
        ),
    }  # fmt: skip
    return calibrated(**(values | more))


def the_host(gpus: int = 8) -> Cluster:
    return dataclasses.replace(Cluster.rented("h100-sxm", gpus=gpus), name="here", cpu_cores=CORES)


def step_of(shape: tuple[int, ...], processes: int) -> tuple[Any, Strategy]:
    name = "single" if processes == 1 else "ddp"
    return recipe_workload(true_step(shape, processes)), Strategy.parse(name, processes)


def test_what_is_written_is_read() -> None:
    for one in (calibrated(), on_gpus(slow_clock=0.9, notes=("a",), host_to_device=5e10)):
        assert read(json.loads(json.dumps(one.document()))) == one


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 2}, {"host": None}, {"device": "tpu"}, {"cores": "2"}, {"measured_at": None},
        {"seconds": True}, {"key": ""},
    ],
)  # fmt: skip
def test_without_its_head_it_is_none(damage: dict[str, Any]) -> None:
    assert read(calibrated().document() | damage) is None
    assert read(None) is None


def test_rows_that_cannot_be_are_left_out() -> None:
    document = calibrated().document()
    rows = document["products"]
    rows[0] = rows[0] | {"flops_per_second": -1.0}
    rows[1] = {"precision": "fp32"}
    document |= {"rates": "no list", "steps": [None, 5, *document["steps"]], "loader_tokens": "x"}
    found = read(document)
    assert found is not None
    assert found.products == calibrated().products[2:]
    assert found.rates == ()
    assert found.steps == calibrated().steps
    assert found.loader_tokens is None
    assert predict_step(*step_of(OTHERS[0], 2), HOST, found) is None  # too little is left


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_other_sizes_follow_from_the_measured_ones(processes: int) -> None:
    """The fit finds the machine's coefficients, so unseen sizes come out right."""
    for shape in OTHERS:
        found = predict_step(*step_of(shape, processes), HOST, calibrated())
        assert found is not None
        true = true_step(shape, processes).step_seconds
        assert found.step_seconds == pytest.approx(true, rel=0.02)
        assert "measured here" in found.assumptions[0]
        assert any("gradients" in name for name in found.parts) == (processes > 1)


def test_four_processes_follow_from_one_and_two() -> None:
    before = calibrated().restricted((1, 2))
    assert {one.processes for one in before.steps} == {1, 2}
    for shape in OTHERS:
        found = predict_step(*step_of(shape, 4), HOST, before)
        assert found is not None
        assert found.step_seconds == pytest.approx(true_step(shape, 4).step_seconds, rel=0.03)
        assert found.low < 0.8  # a wider range, and it says so
        assert any("extrapolated" in one for one in found.assumptions)
    assert host_rates(calibrated((1,)), 2) is None  # nothing was heard of any exchange


def test_accumulation_exchanges_once() -> None:
    workload, strategy = step_of(OTHERS[0], 2)
    one = predict_step(workload, strategy, HOST, calibrated())
    four = predict_step(dataclasses.replace(workload, accumulate=4), strategy, HOST, calibrated())
    assert one is not None
    assert four is not None
    assert four.parts["matmul"] == pytest.approx(4 * one.parts["matmul"])
    name = "exposed communication: gradients"
    assert four.parts[name] == one.parts[name]


def test_what_nobody_measured_is_not_predicted() -> None:
    workload, strategy = step_of(OTHERS[0], 2)
    assert predict_step(workload, strategy, HOST, None) is None
    elsewhere = dataclasses.replace(HOST, cpu_name="another")
    named = calibrated(device_name=HOST.cpu_name)
    assert predict_step(workload, strategy, HOST, named) is not None
    assert predict_step(workload, strategy, elsewhere, named) is None
    for other in ({"precision": "bf16"}, {"lora_rank": 8}):
        changed = dataclasses.replace(workload, **other)
        assert predict_step(changed, strategy, HOST, calibrated()) is None
    assert predict_step(workload, Strategy.parse("fsdp", 2), HOST, calibrated()) is None


def test_a_gpu_host_uses_its_own_rates() -> None:
    one = on_gpus()
    given = one.conditions()
    assert given.matmul_share == pytest.approx(700 / 989, rel=0.01)
    assert given.link_share == pytest.approx(330 / 450, rel=0.01)
    workload = recipe_workload(true_step((24, 2048, 16, 1024, 8), 1))
    workload = dataclasses.replace(workload, precision="bf16")
    found = predict_step(workload, Strategy.parse("ddp", 8), the_host(), one)
    usual = predict_step(workload, Strategy.parse("ddp", 8), the_host(), None)
    assert found is not None
    assert usual is not None
    assert any("measured here on" in said for said in found.assumptions)
    assert not any("measured here" in said for said in usual.assumptions)
    assert found.step_seconds != usual.step_seconds


def test_nothing_leaks_into_a_rented_cluster() -> None:
    workload, strategy = step_of(OTHERS[0], 8)
    rented = Cluster.rented("h100-sxm")
    plain = predict_step(workload, strategy, rented, None)
    assert predict_step(workload, strategy, rented, on_gpus()) == plain
    assert on_gpus().fits(the_host())
    one_core = dataclasses.replace(rented, cpu_cores=1)
    assert not on_gpus().fits(one_core)
    two_nodes = dataclasses.replace(the_host(), nodes=2)
    assert not on_gpus().fits(two_nodes)
    assert calibrated().conditions() == type(on_gpus().conditions())()


def test_the_recipes_real_steps_correct_the_closed_form_on_a_gpu() -> None:
    bare = on_gpus()
    cluster, strategy = the_host(1), Strategy.parse("single", 1)
    step = dataclasses.replace(true_step((10, 1280, 20, 1024, 8), 1), precision="bf16")
    closed = predict_step(recipe_workload(step), strategy, cluster, bare)
    assert closed is not None
    real = dataclasses.replace(step, step_seconds=1.3 * closed.step_seconds)
    known = dataclasses.replace(bare, steps=(real,))
    found = predict_step(recipe_workload(step), strategy, cluster, known)
    assert found is not None
    assert found.step_seconds == pytest.approx(real.step_seconds, rel=1e-6)
    absurd = dataclasses.replace(step, step_seconds=9 * closed.step_seconds)
    found = predict_step(
        recipe_workload(step), strategy, cluster, dataclasses.replace(bare, steps=(absurd,))
    )
    assert found == closed


def test_what_is_slow_is_named() -> None:
    assert troubles(on_gpus()) == ()
    by_pcie = Collective(
        kind="all-reduce",
        backend="nccl",
        ranks=8,
        bytes=1 << 30,
        seconds=(7 / 4) * (1 << 30) / 2e10,
    )
    said = troubles(on_gpus(collectives=(by_pcie,), slow_clock=0.6, host_to_device=1e9))
    assert len(said) == 3
    assert "throttled" in said[0].what
    assert "paid for" in said[1].what
    assert "PCIe link" in said[2].what
    assert all(one.next for one in said)
    table = {one.name: one for one in lines(on_gpus())}
    assert table["matmul bf16"].expected is not None
    assert not table["matmul bf16"].is_slow
    assert table["launch"].ratio is None


def test_a_busy_host_is_told() -> None:
    noisy = tuple(dataclasses.replace(one, spread=0.4) for one in calibrated().products)
    steps = tuple(dataclasses.replace(one, spread=0.4) for one in calibrated().steps)
    (said,) = troubles(calibrated(products=noisy, steps=steps))
    assert "40%" in said.what
    assert "other things" in said.what


def test_rates_that_contradict_each_other_are_told() -> None:
    slow = [
        dataclasses.replace(one, flops_per_second=one.flops_per_second / 9)
        if one.processes == 1
        else one
        for one in calibrated().products
    ]
    (said,) = troubles(calibrated(products=tuple(slow)))
    assert "something else had the cores" in said.what
    slow_memory = tuple(
        dataclasses.replace(one, memory_bytes_per_second=one.memory_bytes_per_second / 9)
        if one.processes == 1
        else one
        for one in calibrated().rates
    )
    (said,) = troubles(calibrated(rates=slow_memory))
    assert said.what.startswith("memory: one process alone reaches")

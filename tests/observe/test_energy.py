"""Energy from counters and from power: gaps, counters that begin again, cards that are silent."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from workbench.observe.consumed import Consumed
from workbench.observe.emissions import WORLD_GCO2E_PER_KWH, energy_document
from workbench.observe.energy import GAP_SECONDS, Account, Energy, EnergyMeter
from workbench.observe.rapl import ProcessorEnergy


def line(time: float, *gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    cards = [{"index": index, **gpu} for index, gpu in enumerate(gpus)]
    return {"time": time, "gpus": cards, **more}


def power(chance: random.Random) -> tuple[list[float], list[float]]:
    """Moments and watts of a card, piecewise linear, with pauses between samples of all lengths."""
    times, watts = [1000.0], [chance.uniform(50, 700)]
    for _ in range(60):
        longer = chance.random() < 0.1
        times.append(times[-1] + (chance.uniform(31, 300) if longer else chance.uniform(0.5, 5)))
        watts.append(chance.uniform(50, 700))
    return times, watts


def area(times: list[float], watts: list[float], first: int, last: int) -> float:
    """Of the line through the samples from the `first` to the `last`."""
    spans = range(first, last)
    return sum((times[i + 1] - times[i]) * (watts[i + 1] + watts[i]) / 2 for i in spans)


@pytest.mark.parametrize("seed", range(30))
def test_power_is_integrated_where_samples_are_near_enough(seed: int) -> None:
    times, watts = power(random.Random(seed))
    account = Account()
    for at, watt in zip(times, watts, strict=True):
        account.add(at, None, watt)
    near = [i for i in range(60) if times[i + 1] - times[i] <= GAP_SECONDS]
    assert account.total_joules == pytest.approx(sum(area(times, watts, i, i + 1) for i in near))
    far = [times[i + 1] - times[i] for i in range(60) if i not in near]
    assert account.uncounted_seconds == pytest.approx(sum(far))


@pytest.mark.parametrize("seed", range(60))
def test_a_counter_tells_of_gaps_too_and_may_begin_again(seed: int) -> None:
    """Readings are left out at random, the driver is loaded again at random moments."""
    chance = random.Random(seed)
    times, watts = power(chance)
    account = Account()
    reset = sorted(chance.sample(range(2, 60), chance.choice((0, 1, 2))))
    expected, since = 0.0, 0  # joules that can be known, the latest sample whose counter was told
    before = float("inf")
    for at in range(61):
        begun = max((one for one in reset if one <= at), default=0)
        counter = 1e6 * (begun == 0) + area(times, watts, begun, at)
        told = chance.random() < 0.6
        account.add(times[at], counter if told else None, watts[at])
        if not told:
            continue
        if counter >= before:
            expected += counter - before
        else:
            expected += by_power(times, watts, since, at)
        since, before = at, counter
    expected += by_power(times, watts, since, 60)
    assert account.total_joules == pytest.approx(expected)


def by_power(times: list[float], watts: list[float], first: int, last: int) -> float:
    spans = [i for i in range(first, last) if times[i + 1] - times[i] <= GAP_SECONDS]
    return sum(area(times, watts, i, i + 1) for i in spans)


@pytest.mark.parametrize("seed", range(20))
def test_a_supervisor_that_takes_over_counts_on(seed: int) -> None:
    chance = random.Random(seed)
    times, watts = power(chance)
    whole = EnergyMeter()
    meter = EnergyMeter()
    for at in range(61):
        has_counter = chance.random() < 0.7
        counter = 5e5 + area(times, watts, 0, at) if has_counter else None
        gpu = {"power_w": watts[at], "energy_joules": counter}
        for one in (whole, meter):
            one.add(0, line(times[at], gpu, {"power_w": None}))
        if chance.random() < 0.2:
            kept, meter = meter.document(), EnergyMeter()
            meter.read(kept)
    assert meter.energy() == whole.energy()


def test_the_pause_between_two_attempts_is_not_the_runs() -> None:
    meter = EnergyMeter()
    for at in (0.0, 10.0):
        meter.add(0, line(at, {"energy_joules": 100 + 10 * at, "power_w": 10.0}))
    meter.pause()
    meter.add(
        0, line(10.0, {"energy_joules": 200.0, "power_w": 10.0})
    )  # that of before, read again
    for at in (500.0, 510.0):
        meter.add(0, line(at, {"energy_joules": 9000 + 20 * at, "power_w": 20.0}))
    assert meter.energy().joules == pytest.approx(100 + 200)
    assert not [one for one in meter.energy().notes if "without readings" in one]


def test_what_is_not_counted_is_said() -> None:
    gpus = [{"index": 0}, {"index": 1}, {"index": 2, "uuid": "MIG-7"}, {"index": 3}]
    meter = EnergyMeter(2)
    meter.describe(0, gpus)
    for at in (0.0, 5.0, 95.0, 100.0):
        cards = ({"energy_joules": 50 * at, "power_w": 50.0}, {"power_w": 100.0}, {"power_w": 9.0})
        meter.add(0, line(at, *cards, {"power_w": None}))
    energy = meter.energy()
    assert energy.gpu_joules == energy.joules == pytest.approx(50 * 100 + 100 * 10)
    assert energy.notes == (
        "No energy is counted of gpu3 of node 0: the driver tells none.",
        "No energy is counted of gpu2 of node 0: a slice shares its card's with others.",
        "Energy of gpu1 of node 0 is in part or whole from power samples.",
        "Up to 90 s without readings are not counted of gpu1 of node 0.",
        "Processors of node 0 are not counted: no RAPL counter that this user may read.",
        "Nothing is counted of node 1 yet: no sample.",
    )


def test_one_reading_is_no_energy() -> None:
    meter = EnergyMeter()
    meter.add(0, line(0.0, {"energy_joules": 4.0, "power_w": 10.0}))
    assert meter.energy().joules is None
    assert energy_document(meter.energy(), 5, None)["tokens_per_joule"] is None


def test_a_clock_that_is_set_back_costs_no_energy() -> None:
    account = Account()
    for at, counter in ((100.0, 10.0), (101.0, 20.0), (50.0, 30.0), (51.0, 40.0)):
        account.add(at, counter, None)
    assert account.total_joules == 30.0


def test_processors_are_counted_where_they_can_be_read(tmp_path: Path) -> None:
    def zone(name: str, label: str, value: int) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "name").write_text(label + "\n")
        (folder / "max_energy_range_uj").write_text("1000000\n")
        (folder / "energy_uj").write_text(f"{value}\n")
        return folder

    package = zone("intel-rapl:0", "package-0", 900_000)
    zone("intel-rapl:0:0", "core", 5)  # a part of the package
    zone("intel-rapl:0:1", "dram", 50_000)
    zone("intel-rapl-mmio:0", "package-0", 7)  # the same counter by another way
    counters = ProcessorEnergy(tmp_path)
    first = counters.joules()
    (package / "energy_uj").write_text("100000\n")
    second = counters.joules()
    assert first == pytest.approx(0.95)
    assert second == pytest.approx(0.95 + 0.2)
    (package / "energy_uj").unlink()
    assert counters.joules() is None
    assert ProcessorEnergy(tmp_path / "none").joules() is None


def test_co2e_says_its_factor() -> None:
    energy = Energy(joules=3.6e6, gpu_joules=3.6e6, notes=("x",))
    told = energy_document(energy, 7_200_000, None)
    assert (told["kwh"], told["tokens_per_joule"]) == (1.0, 2.0)
    assert told["co2e_grams"] == told["grid_gco2e_per_kwh"] == WORLD_GCO2E_PER_KWH
    assert "world average of 2024 (IEA" in told["grid_source"]
    given = energy_document(energy, None, 20.0)
    assert (given["co2e_grams"], given["grid_source"]) == (20.0, "given (--grid-co2e)")


def test_steps_that_are_done_again_consume_once() -> None:
    consumed = Consumed()
    for step in (*range(5, 25), *range(11, 31)):
        consumed.add(step, 100)
    assert consumed.tokens == 26 * 100
    consumed.add(31, None)
    assert consumed.tokens is None

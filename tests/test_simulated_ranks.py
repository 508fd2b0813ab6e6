"""The simulated ranks of the notebooks: clock, memory, ports, and what goes wrong said plainly."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.fixture(scope="module")
def sim() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(NOTEBOOKS))
        yield importlib.import_module("simulated_ranks")


@pytest.fixture(scope="module")
def ring(sim: ModuleType) -> ModuleType:
    return importlib.import_module("ring_collectives")


def test_the_example_at_the_top_is_what_happens(sim: ModuleType) -> None:
    text = sim.__doc__.partition("    def program")[2].partition("\n\n")[0]
    names: dict[str, object] = {}
    exec("def program" + text.replace("\n    ", "\n"), names)
    done = sim.simulate(names["program"], ranks=4, bandwidth=100.0, latency=0.01)
    # The backward pass, then three elements one after the other; the first arrives 0.01 s later.
    assert done.seconds == pytest.approx(2.0 + 0.01 + 3 / 100)
    assert (done.peak, done.sent) == ([100] * 4, [3] * 4)
    assert done.results[0].tolist() == [4.0, 5.0]
    assert "rank 0 b" in repr(done)
    assert repr(done).splitlines()[2].endswith(".1")


def test_a_port_carries_one_message_at_a_time(sim: ModuleType) -> None:
    def to_one(rank):
        if rank.number:
            return rank.send(0, torch.ones(100))
        return sum(rank.recv(source) for source in range(1, rank.size))

    done = sim.simulate(to_one, ranks=4, bandwidth=100.0, latency=0.5)
    assert done.seconds == pytest.approx(0.5 + 3)  # not 0.5 + 1: three messages, one port
    assert done.results[0].tolist() == [3.0] * 100


@pytest.mark.parametrize(("way", "seconds"), [("send", 3.0), ("start_send", 2.0)])
def test_a_started_message_travels_beside_the_compute(
    sim: ModuleType, way: str, seconds: float
) -> None:
    def program(rank):
        getattr(rank, way)(1 - rank.number, torch.ones(100))
        rank.compute(2.0)
        rank.recv(1 - rank.number)

    assert sim.simulate(program, 2, bandwidth=100.0).seconds == pytest.approx(seconds)


def test_links_differ_and_messages_are_copies(sim: ModuleType) -> None:
    def program(rank):
        if rank.number == 2:
            return rank.recv(1)
        if rank.number == 1:
            mine = rank.recv(0)
            rank.start_send(2, mine)
            return mine.zero_()
        return rank.send(1, torch.ones(10))

    done = sim.simulate(program, 3, bandwidth=lambda a, b: 10.0 if a == 0 else 1.0)
    assert done.seconds == pytest.approx(1 + 10)
    assert done.results[2].tolist() == [1.0] * 10


def test_memory_is_what_is_held_at_once(sim: ModuleType) -> None:
    def program(rank):
        rank.hold("a", 3)
        rank.hold("b", torch.ones(2, 2))
        rank.free("a")
        rank.hold("b", 6)

    assert sim.simulate(program, 1).peak == [7]


def test_what_cannot_go_on_is_said(sim: ModuleType) -> None:
    def said(program, error=sim.Stuck) -> str:
        with pytest.raises(error) as caught:
            sim.simulate(program, 2)
        return str(caught.value)

    assert said(lambda rank: rank.recv(1 - rank.number)) == "rank 0 waits for 1; rank 1 waits for 0"
    assert said(lambda rank: rank.number or rank.send(1, 1)) == "0 sent 1 more than it receives"
    assert "take another of 0 to 1" in said(lambda rank: rank.send(2, 1))
    assert said(lambda rank: rank.free("x")) == "rank 0 frees 'x' but holds []"
    said(lambda rank: 1 / 0 if rank.number else rank.recv(1), ZeroDivisionError)

    def late(rank):  # the error comes when a message already waits for the other rank
        rank.start_send(1 - rank.number, 1)
        rank.recv(1 - rank.number)
        return 1 / rank.number

    said(late, ZeroDivisionError)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ring_collectives(sim: ModuleType, ring: ModuleType, count: int) -> None:
    data = torch.arange(24.0 * count).reshape(count, 24)
    sums, part = data.sum(0), 24 // count

    def scatter(rank):
        return ring.reduce_scatter(rank, data[rank.number])

    def both(rank):
        return ring.all_reduce(rank, data[rank.number])

    done = sim.simulate(scatter, count, bandwidth=24.0)
    assert torch.equal(torch.cat(done.results), sums)
    assert done.sent == [24 - part] * count
    done = sim.simulate(both, count, bandwidth=24.0)
    assert all(torch.equal(result, sums) for result in done.results)
    assert done.sent == [2 * (24 - part)] * count
    assert done.seconds == pytest.approx(2 * (count - 1) / count)


def test_collectives_among_some(sim: ModuleType, ring: ModuleType) -> None:
    def program(rank):
        return ring.all_reduce(
            rank, [float(rank.number)] * 4, [rank.number % 2, rank.number % 2 + 2]
        )

    assert [result[0].item() for result in sim.simulate(program, 4).results] == [2, 4, 2, 4]


def test_check_says_how_far(sim: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def program(rank):
        rank.hold("a", 10)
        rank.compute(3.0)
        return [1.0] if rank.number else None

    done = sim.simulate(program, 2)
    assert not sim.check(done, results=[[1], [1]], seconds=2, elements=10, sent=0.5)
    assert capsys.readouterr().out.splitlines() == [
        "result   rank 0 has None, not [1]",
        "seconds  3, target 2: 1.50 times too much",
        "elements 10, target 10: reached",
        "sent     0, target 0.5: reached",
        "Not yet.",
    ]
    assert sim.check(done, seconds=3)
    assert capsys.readouterr().out.endswith("Solved.\n")


def test_check_wants_all_of_the_work(sim: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def lazy(rank):
        for label in ("forward", "backward")[: 2 - rank.number]:
            rank.compute(1.0, label)

    done = sim.simulate(lazy, 2)
    assert not sim.check(done, seconds=2, work="fb")
    assert capsys.readouterr().out.startswith("work     rank 1 did f, not all of fb\n")
    assert not sim.check(sim.simulate(lambda rank: None, 1), work="fb")
    assert "rank 0 did nothing" in capsys.readouterr().out
    assert not sim.check(done, work="fbb")
    assert sim.check(sim.simulate(lazy, 1), seconds=2, work="bf")


def test_it_is_short() -> None:
    assert len((NOTEBOOKS / "simulated_ranks.py").read_text().splitlines()) <= 210

"""The order of the queue: strict, no large run starved, nothing passed that could be delayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workbench.cli import entry
from workbench.errors import StoreError
from workbench.queueing import Queue
from workbench.queueing.order import DeviceRequest, due, forecast
from workbench.store.queue_files import FOLDER, QueueEntry, QueueFiles, in_order

DEVICES = ("0", "1", "2", "3")


@st.composite
def requests(draw: st.DrawFn) -> list[DeviceRequest]:
    made: list[DeviceRequest] = []
    for number in range(draw(st.integers(0, 6))):
        allowed = draw(st.lists(st.sampled_from(DEVICES), unique=True))
        count = draw(st.integers(1, 4))
        share = draw(st.integers(0, 4)) == 0
        made.append(
            DeviceRequest(run=f"r{number}", count=count, allowed=tuple(allowed), share=share)
        )
    return made


LOADS = st.fixed_dictionaries({name: st.integers(0, 1) for name in DEVICES})


@given(requests(), LOADS)
@example([DeviceRequest(run="r0", count=2, allowed=("0", "1")), DeviceRequest(run="r1", count=1, allowed=("1",))],
         {"0": 1, "1": 0, "2": 0, "3": 0})  # fmt: skip
def test_what_starts_delays_nobody_before_it(
    asked: list[DeviceRequest], load: dict[str, int]
) -> None:
    starts = {one.run: one.devices for one in due(asked, load)}
    taken: set[str] = set()
    for number, request in enumerate(asked):
        if request.impossible:
            assert starts[request.run] == ()
        elif request.run in starts:
            got = starts[request.run]
            assert len(got) == request.count
            assert set(got) <= set(request.allowed)
            if not request.share:
                assert not any(load[name] for name in got)
                assert not taken & set(got)
            for before in asked[:number]:
                if before.run not in starts:
                    assert not set(got) & set(before.allowed)
            taken |= set(got)


@given(requests(), LOADS)
def test_the_first_starts_as_soon_as_its_devices_are_free(
    asked: list[DeviceRequest], load: dict[str, int]
) -> None:
    possible = [request for request in asked if not request.impossible]
    free = dict.fromkeys(load, 0)
    if possible:
        assert possible[0].run in {one.run for one in due(asked, free)}


def test_a_large_run_is_not_starved_by_small_ones() -> None:
    big = DeviceRequest(run="big", count=4, allowed=DEVICES)
    small = [DeviceRequest(run=f"small{number}", count=1, allowed=DEVICES) for number in range(3)]
    assert not due([big, *small], {"0": 1, "1": 0, "2": 0, "3": 0})
    assert [one.run for one in due([big, *small], dict.fromkeys(DEVICES, 0))] == ["big"]


def test_a_run_on_other_devices_may_pass() -> None:
    named = DeviceRequest(run="named", count=2, allowed=("0", "1"))
    other = DeviceRequest(run="other", count=1, allowed=("3",))
    (start,) = due([named, other], {"0": 1, "1": 0, "2": 0, "3": 0})
    assert start.run == "other"


def test_a_forecast_is_unknown_after_a_run_of_unknown_length() -> None:
    asked = [DeviceRequest(run=name, count=2, allowed=("0", "1")) for name in "abc"]
    turns = forecast(asked, {"a": 60.0, "b": None}, {"0": 5.0, "1": 20.0}, 0.0)
    assert [turn.start for turn in turns] == [20.0, 80.0, None]
    assert forecast(asked[:1], {}, {"0": 5.0, "1": None}, 0.0)[0].start is None


def test_a_shared_run_frees_no_device_that_another_holds() -> None:
    shared = DeviceRequest(run="shared", count=1, allowed=("0",), share=True)
    alone = DeviceRequest(run="next", count=1, allowed=("0",))
    seconds = {"shared": 10.0, "next": 5.0}
    assert [turn.start for turn in forecast([shared, alone], seconds, {"0": 1000.0}, 0.0)] == [
        0.0,
        1000.0,
    ]
    assert forecast([shared, alone], seconds, {"0": None}, 0.0)[1].start is None


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6).map(lambda one: sorted(one, reverse=True)),
    st.integers(0, 5),
    st.integers(1, 8),
)
def test_a_moved_run_comes_to_its_place_and_stays(
    priorities: list[int], which: int, position: int
) -> None:
    queue = [
        QueueEntry(run=f"r{number}", priority=priority, order=float(number))
        for number, priority in enumerate(priorities)
    ]
    run = f"r{which % len(queue)}"
    moved = sorted(in_order(queue, run, position), key=lambda one: one.key)
    expected = [one.run for one in queue if one.run != run]
    expected.insert(min(position - 1, len(expected)), run)
    assert [one.run for one in moved] == expected
    kept = {one.run: one.priority for one in queue if one.run != run}
    assert all(one.priority == kept[one.run] for one in moved if one.run != run)


def test_a_queue_that_cannot_be_read_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command says so, and does what it is for."""
    assert Queue(tmp_path).jobs() == []
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "waiting").write_text("no folder")
    with pytest.raises(StoreError, match=r"The queue .*waiting cannot be read"):
        Queue(tmp_path).jobs()
    monkeypatch.setattr("sys.argv", ["workbench", "runs", "--store", str(tmp_path)])
    entry._say_that_the_queue_waits()
    assert "note: The queue" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1" + "0" * 400, '"5"'])
def test_a_place_whose_numbers_cannot_be_is_moved_and_started_all_the_same(
    tmp_path: Path, number: str
) -> None:
    files = QueueFiles(tmp_path)
    with files.locked():
        for name in ("priority", "order", "filed_at", "tries"):
            files.waits("a").write_text(f'{{"run": "a", "{name}": {number}}}')
            (entry,) = files.waiting()
            assert entry == QueueEntry(run="a")
            files.write(files.starts("a"), entry)
            files.starts("a").unlink()

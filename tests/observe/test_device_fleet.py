"""All devices of all machines and all ranks in the view, however many there are."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.observe.test_view import directory, now, run_document
from workbench.observe.device_fleet import Devices
from workbench.observe.events import StepRow
from workbench.observe.gpu import GpuSample
from workbench.observe.packed_numbers import coded, decoded
from workbench.observe.rank_grid import RankGrid
from workbench.observe.view import ViewBuilder
from workbench.store.files import read_json, write_json_atomic
from workbench.store.run_record import RunRecord
from workbench.store.schema import VIEW_MAX_BYTES
from workbench.store.shapes import fit


def line(time: float, gpus: int, **odd: Any) -> Any:
    """A SystemLine as the sampler writes it; `odd`: what gpu1 says instead."""
    usual = {"util": 97.0, "memory_bytes": 64 * 2**30, "temperature_c": 61, "power_w": 655.4}
    samples = [
        GpuSample(
            index=index,
            sm_clock_mhz=1980.0,
            throttle_reasons=0,
            **(usual | (odd if index == 1 else {})),
        ).document()
        for index in range(gpus)
    ]
    host = {"cpu_percent": 20.0, "memory_used_bytes": 2**33, "run_rss_bytes": 2**32}
    return {"time": time, **host, "run_cpu_percent": 1.0, "disk_free_bytes": 1, "gpus": samples}


def cards(count: int) -> list[dict[str, Any]]:
    return run_document(8, gpus=count)["cluster"]["gpus"]


def test_slices_of_one_card_have_a_row_each_with_their_own_memory() -> None:
    sizes = {0: (10, 20), 1: (40,)}
    gpus = [
        {"index": card, "name": f"{size}gb", "memory_bytes": size << 30, "uuid": f"MIG-{size}"}
        for card, own in sizes.items()
        for size in own
    ]
    devices = Devices(gpus, 1, on_gpu=True)
    sample = line(1.7e9, 3)
    for reading, gpu, used in zip(sample["gpus"], gpus, (5, 15, 30), strict=True):
        reading |= {"index": gpu["index"], "memory_bytes": used << 30}
    devices.add(0, sample)
    grid = devices.grid()
    assert grid is not None
    assert decoded(grid["memory_percent"]) == pytest.approx([50, 75, 75], abs=0.5)
    totals = [model["memory_total_bytes"] >> 30 for model in grid["models"]]
    assert [totals[model] for model in grid["model"]] == [10, 20, 40]
    assert grid["nodes"] == [{"node": 0, "count": 3, "index": [0, 0, 1], "part": [0, 1, None]}]
    curves = json.loads(devices.curves())
    assert [one["id"] for one in curves] == ["gpu0:0", "gpu0:1", "gpu1"]
    assert [one["series"]["memory_bytes"] for one in curves] == [[5 << 30], [15 << 30], [30 << 30]]


def test_one_number_that_no_one_can_reckon_with_costs_no_column() -> None:
    losses = [2.0, 1e300, math.nan, -1e301, 5e-324, 2**70, 1.0]
    series = {"step": [*range(7)], "loss": losses}
    assert fit("view.json", {"series": series})["series"] == {
        "step": [*range(7)],
        "loss": [2.0, None, None, None, 5e-324, 2**70, 1.0],
    }
    assert fit("view.json", {"series": {"loss": [1.0, "2"]}})["series"] == {}


@pytest.mark.parametrize("digits", [1, 2])
def test_a_grid_takes_every_number(digits: int) -> None:
    for odd in (1e300, -1e300, 1.7e308, 10**400, math.inf):
        two, unknown, one = decoded(coded([[2.0, odd, 1.0], [-1.7e308, None, 0.0]], digits))
        assert (two, one) == (2.0, pytest.approx(1.0, abs=0.02))
        assert unknown is not None
        assert math.isnan(unknown)
    tiny = decoded(coded([[0.0, 5e-324, 1e-310]], digits))
    assert tiny[2] == pytest.approx(1e-310, rel=0.01)


def big(tmp_path: Path, nodes: int, each: int) -> ViewBuilder:
    """A run over `nodes` machines as its supervisor sees it after some steps."""
    ranks = nodes * each
    record = RunRecord.of({**run_document(ranks, gpus=each), "nodes": nodes})
    builder = ViewBuilder(directory(tmp_path), record)
    for second in range(200):
        builder.add_sample(line(1.7e9 + second, each))
        for node in range(1, nodes) if second % 50 == 0 else ():
            odd = {"util": 55.0} if node == nodes - 1 else {}
            told = {"host": f"host-{node}", "gpus": cards(each)}
            builder.add_node(node, {**told, "sample": line(5e8 + second, each, **odd)})
    for step in range(1, 400):
        row = StepRow(step, 1.7e9 + step, ranks, loss=2.0, step_seconds=1.0)
        for rank in range(ranks):
            late = 0.4 if rank == ranks - 3 else rank * 1e-5
            row.backward_at[rank] = 1.7e9 + step + late
            row.ended_at[rank] = 1.7e9 + step + 0.9
            row.losses[rank] = 2.0 + rank * 1e-3
        builder._take(row)
    return builder


@pytest.mark.parametrize(("nodes", "each"), [(1, 1), (1, 8), (2, 8), (8, 8), (128, 8)])
def test_every_device_and_rank_is_in_a_view_of_64_kb(tmp_path: Path, nodes: int, each: int) -> None:
    data = big(tmp_path, nodes, each).encoded(now())
    assert len(data) <= VIEW_MAX_BYTES
    view = json.loads(data)
    grid, ranks = view["grid"], nodes * each
    assert len(decoded(grid["util"])) == len(decoded(grid["deviation"])) == ranks
    assert sum(node["count"] for node in grid["nodes"]) == ranks
    assert grid["missing"] == []
    assert len(view["series"]["step"]) > 100  # the curve is not thinned to make room for it
    if ranks <= 16:
        assert len(view["devices"]) == ranks
        assert view["device_spread"] == {}
    else:
        assert view["devices"] == []
        assert max(view["device_spread"]["util_high"]) == 97.0
    if ranks > 1:
        shown = view["rank_grid"]
        assert shown["step"][-1] == 399
        assert len(shown["step"]) >= 6
        assert all(
            len(text) == ranks * shown["measures"]["late"]["digits"] for text in rows(shown, "late")
        )
        assert values(shown, "late", -1)[ranks - 3] == pytest.approx(0.4, abs=0.01)


def rows(grid: dict[str, Any], measure: str) -> list[str]:
    return grid["measures"][measure]["rows"]


def values(grid: dict[str, Any], measure: str, at: int) -> list[float | None]:
    """What the page makes of a row; counted from the end where `at` is negative."""
    return decoded(grid["measures"][measure], at)


def test_the_odd_device_is_named_beside_its_peers(tmp_path: Path) -> None:
    grid = json.loads(big(tmp_path, 4, 4).encoded(now()))["grid"]
    (odd,) = grid["outliers"]
    assert odd == {"at": 13, "text": "gpu1 of node 3: 55 % busy; its peers 97 %"}
    assert [at for at, one in enumerate(decoded(grid["deviation"])) if one and one > 1] == [13]
    assert grid["models"][0]["usual"]["util"] == 97.0


def test_what_slows_a_card_is_said_and_idling_is_not() -> None:
    devices = Devices(cards(3), 1, on_gpu=True)
    sample = line(1.0, 3)
    sample["gpus"][1]["throttle_reasons"] = 0x41
    sample["gpus"][2]["throttle_reasons"] = 0x1
    devices.add(0, sample)
    grid = devices.grid()
    assert grid is not None
    assert [grid["reasons"][place] for place in grid["throttle"]] == ["", "heat", ""]


def test_what_is_missing_is_said() -> None:
    devices = Devices(cards(8), 5, on_gpu=True)
    first = line(1.0, 8)
    lost = dict.fromkeys(first["gpus"][0])
    first["gpus"][5] = {**lost, "index": 5}
    devices.add(0, first)
    devices.describe(1, "b", cards(8))
    devices.add(1, line(7.0, 8))
    grid = devices.grid()
    assert grid is not None
    assert grid["missing"] == [
        "No readings yet from nodes 2, 3, 4.",
        "No readings from the driver for gpu5 of node 0.",
    ]
    assert decoded(grid["util"])[5] is None
    assert decoded(grid["deviation"])[5] is None


def test_two_devices_have_no_odd_one_and_cores_are_not_judged() -> None:
    two = Devices(cards(2), 1, on_gpu=True)
    two.add(0, line(1.0, 2, util=10.0))
    grid = two.grid()
    assert grid is not None
    assert decoded(grid["deviation"]) == [None, None]
    cores = Devices([], 1, on_gpu=False)
    cores.add(0, {"time": 1.0, "gpus": [], "cores": [97, 3, 50]})
    grid = cores.grid()
    assert grid is not None
    assert grid["kind"] == "core"
    assert decoded(grid["util"]) == pytest.approx([97, 3, 50], abs=0.1)
    assert decoded(grid["deviation"]) == [None] * 3
    nothing = Devices([], 1, on_gpu=False).grid()
    assert nothing is not None
    assert nothing["missing"] == ["No readings yet from node 0."]


def test_the_step_under_way_is_there_and_shows_who_is_missing() -> None:
    grid = RankGrid()
    done = StepRow(1, 2.0, 2, losses={0: 1.0, 1: math.nan}, backward_at={0: 1.0, 1: 1.5})
    done.ended_at = {0: 2.0, 1: 2.0}
    grid.append(done)
    begun = StepRow(2, 3.0, 1, losses={0: 0.5}, backward_at={0: 2.5}, ended_at={0: 3.25})
    shown = grid.document(2, [begun])
    assert shown is not None
    assert (shown["step"], shown["pending"]) == ([1, 2], 1)
    assert values(shown, "loss", -1) == [0.5, None]
    first, second = values(shown, "loss", 0)
    assert first == 1.0
    assert second is not None
    assert math.isnan(second)
    assert values(shown, "late", 0) == [0.0, 0.5]
    assert values(shown, "seconds", -1) == [1.25, None]
    assert RankGrid().document(2, []) is None
    assert grid.document(1, [begun]) is None


def test_of_many_thousand_ranks_a_cell_is_the_highest_of_several() -> None:
    grid, ranks = RankGrid(), 4096
    for step in (1, 2):
        late = {rank: float(step) for rank in range(ranks)} | {4001: step + 2.0}
        grid.append(StepRow(step, step, ranks, backward_at=late))
    shown = grid.document(ranks, [])
    assert shown is not None
    assert shown["each"] == 4
    assert values(shown, "late", -1)[1000] == 2.0
    assert len(json.dumps(shown)) < 20_000


def test_what_a_further_machine_told_is_read_back(tmp_path: Path) -> None:
    """Its sample has lists under names that mean counts elsewhere in no file."""
    paths = directory(tmp_path)
    paths.nodes.mkdir()
    told = line(1.7e9, 0) | {"net_bytes_per_second": 1, "cores": [3]}
    told |= {"busiest": [{"pid": 7, "cpu_percent": 9.0, "rss_bytes": 5}]}
    write_json_atomic(paths.node(1), {"node": 1, "host": "b", "sample": told})
    read = read_json(paths.node(1))
    assert read is not None
    assert read["sample"]["busiest"] == told["busiest"]

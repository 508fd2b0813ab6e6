"""The GPU grid and the rank heat map, by the page's own modules over the view that the engine writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.widgets.sample_fleet import SampleFleet
from tests.widgets.test_page_state import run
from workbench.observe.packed_numbers import coded, decoded
from workbench.pages.file_parts import file_part


def view_of(folder: Path, **shape: Any) -> dict[str, Any]:
    fleet = SampleFleet(folder / "store", "r", **shape)
    fleet.write()
    return json.loads(fleet.paths.view.read_text())


def test_numbers_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = coded([[0.0, None, 12.5, float("nan")], [100.0, 1e-9, 3.25, 7.0]], 2)
    found = run(
        tmp_path,
        f"""const {{ decode }} = await import("./coded.js");
        const written = {json.dumps(written)};
        const all = [0, 1, -1].map((row) => [0, 1, 2, 3, 4].map((at) => {{
          const one = decode(written, at, row); return Number.isNaN(one) ? "NaN" : one; }}));
        console.log(JSON.stringify(all));""",
    )
    first, second, last = found
    assert first[0] == decoded(written)[0] == 0.0
    assert (first[1], first[3], first[4]) == (None, "NaN", None)
    assert first[2] == pytest.approx(decoded(written)[2])
    assert second == last
    assert second[:4] == pytest.approx(decoded(written, 1))


@pytest.mark.parametrize(("nodes", "each"), [(1, 1), (1, 8), (8, 8), (128, 8)])
def test_every_device_is_a_tile_with_its_numbers(tmp_path: Path, nodes: int, each: int) -> None:
    view = view_of(tmp_path, nodes=nodes, each=each)
    tiles = run(
        tmp_path,
        f"""const {{ machines, words, shade, usualMeasure, modelTexts }} = await import("./devices.js");
        const grid = {json.dumps(view["grid"])};
        const all = machines(grid).flatMap((one) => one.devices);
        console.log(JSON.stringify([usualMeasure(grid), modelTexts(grid),
          all.map((one) => [words(one), shade(one, usualMeasure(grid)).tone])]));""",
    )
    measure, models, shown = tiles
    assert measure == ("deviation" if nodes * each > 2 else "util")
    assert models[0].startswith(f"{nodes * each} ")
    assert models[0].endswith(" NVIDIA H100 80GB HBM3, 79.6 GiB, 700 W")
    assert len(shown) == nodes * each
    if each > 1:
        odd = [at for at, (_, tone) in enumerate(shown) if tone in ("odd", "bad")]
        assert odd == [nodes * each // 3, nodes * each * 3 // 4]  # the hot and the slow one
        assert "throttled: heat" in shown[odd[0]][0]
    if nodes > 1:
        assert shown[-1][0].startswith(f"gpu7 of node {nodes - 1} (host-{nodes - 1}): ")


@pytest.mark.parametrize("ranks", [2, 8, 64, 1024])
@pytest.mark.parametrize("width", [330, 1400])
def test_each_cell_of_the_heat_map_can_be_met_and_pressed(
    tmp_path: Path, ranks: int, width: int
) -> None:
    view = view_of(tmp_path, each=0, ranks=ranks)
    found = run(
        tmp_path,
        f"""const {{ plan, corner, cellAt, words, latest }} = await import("./rank_map.js");
        const map = {json.dumps(view["rank_grid"])};
        const on = plan(map, {width});
        let missed = 0, outside = 0;
        for (let rank = 0; rank < on.ranks; rank += 1) for (let step = 0; step < on.steps.length; step += 1) {{
          const {{ x, y }} = corner(on, {{ rank, step }});
          const met = cellAt(on, x + on.cellWidth / 2, y + on.cellHeight / 2);
          if (met?.rank !== rank || met.step !== step) missed += 1;
          if (x + on.cellWidth > {width} + 1 || y + on.cellHeight > on.height) outside += 1;
        }}
        const last = on.steps.length - 1;
        console.log(JSON.stringify({{ missed, outside, wide: on.cellWidth, tall: on.cellHeight, height: on.height,
          step: on.steps.at(-1), worst: latest(map), words: words(map, {{ rank: {ranks * 3 // 4}, step: last }}) }}));""",
    )
    assert (found["missed"], found["outside"]) == (0, 0)
    assert found["wide"] >= 8
    assert found["tall"] >= 4
    assert found["step"] == 300
    assert found["worst"]["rank"] == ranks * 3 // 4
    assert found["worst"]["seconds"] == pytest.approx(0.031, abs=0.004)
    assert f"rank {ranks * 3 // 4}:" in found["words"]


def test_one_of_many_devices_has_its_curve_from_its_machines_samples(tmp_path: Path) -> None:
    fleet = SampleFleet(tmp_path / "store", "r", nodes=8)
    fleet.write()
    text = fleet.paths.node_system(7).read_text()
    found = run(
        tmp_path,
        f"""const {{ curvesOf }} = await import("./devices.js");
        const series = curvesOf({json.dumps(text[37:])}, 3);
        console.log(JSON.stringify([series.time.length, series.util.length, series.power_w.at(-1)]));""",
    )
    assert found[:2] == [119, 119]  # the first line was cut
    assert found[2] == json.loads(text.splitlines()[-1])["gpus"][3]["power_w"]


def test_slices_of_one_card_have_their_own_tiles_and_curves(tmp_path: Path) -> None:
    grid = {
        "kind": "gpu",
        "nodes": [{"node": 0, "count": 3, "index": [0, 0, 1], "part": [0, 1, None]}],
    }
    gpus = [{"index": card, "util": util} for card, util in ((0, 10), (0, 20), (1, 30))]
    line = json.dumps({"time": 1.0, "gpus": gpus}) + "\n"
    found = run(
        tmp_path,
        f"""const {{ curvesOf, machines, nameOf }} = await import("./devices.js");
        const [{{ devices }}] = machines({json.dumps(grid)});
        console.log(JSON.stringify(devices.map((device) =>
          [nameOf(device), ...curvesOf({json.dumps(line)}, device.index, device.part).util])));""",
    )
    assert found == [["gpu0:0", 10], ["gpu0:1", 20], ["gpu1", 30]]


def test_a_page_without_files_reads_parts_over_the_comm(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_bytes(b"0123456789")

    def part(name: Any, start: Any, end: Any = None) -> Any:
        found = file_part(tmp_path, {"name": name, "start": start, "end": end})
        return found and (found.data, found.start, found.size)

    assert part("logs/rank-0.log", 2, 5) == (b"234", 2, 10)
    assert part("logs/rank-0.log", -4) == (b"6789", 6, 10)
    assert part("logs/rank-0.log", -99) == (b"0123456789", 0, 10)
    assert part("logs/rank-0.log", 50) == (b"", 10, 10)
    assert part("logs/rank-1.log", 0) == (b"", 0, 0)
    (tmp_path / "secret").write_text("no")
    (tmp_path / "logs" / "rank-2.log").symlink_to(tmp_path / "secret")
    for name in ("run.json", "../secret", "logs/../secret", "logs/rank-2.log", None):
        assert part(name, 0) is None

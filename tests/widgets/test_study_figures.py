"""Study figures: what the step, the all-reduce and the scaling curve draw; and on both themes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("plotly", reason="the lab extra is not installed")

import plotly.graph_objects as go
from workbench_widgets.figures.scaling import efficiency_figure, scaling_figure
from workbench_widgets.figures.step_time import all_reduce_figure, step_figure
from workbench_widgets.figures.theme import PARTS, SERIES, dress, ink, part_colour, part_label
from workbench_widgets.figures.trials import compression_figure, tuning_figure

from workbench.compare.studies.compression import Compression
from workbench.compare.studies.step_split import StepSplit
from workbench.compare.studies.trial import TrialResult
from workbench.compare.studies.tuning import Tuning
from workbench.describe import Cluster, Conditions, Model, Strategy, Workload
from workbench.errors import UsageError
from workbench.estimate.network import links
from workbench.estimate.scaling import scaling
from workbench.estimate.step_time import step_time

WORK = Workload(model=Model.catalog("llama-2-7b"), seq_len=4096, micro_batch=2, precision="bf16")
NODE = Cluster.rented("h100", 8)


def step(name: str = "fsdp", **options):
    return step_time(WORK, Strategy.parse(name, 8).with_options(**options), NODE)


def curve(network: str = "100 ethernet"):
    place = Cluster.rented("h100", 8, network=network)
    return scaling(WORK, Strategy.parse("fsdp", 8), place, gpus=(8, 16, 64))


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [one / 12.92 if one < 0.04 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_bars_of_a_step_add_up_to_it() -> None:
    steps = {"none": step(), "full": step(recompute="full")}
    drawn = step_figure(steps)
    bars = [trace for trace in drawn.data if trace.type == "bar"]
    assert drawn.layout.xaxis.ticksuffix == " s"
    for index, (label, found) in enumerate(steps.items()):
        assert sum(bar.x[index] for bar in bars) == pytest.approx(found.step_seconds)
        assert bars[0].y[index] == label
    assert {bar.name for bar in bars} == {
        part_label(name) for one in steps.values() for name in one.parts
    }
    assert list(drawn.layout.yaxis.categoryarray) == ["full", "none"]  # the first on top
    (totals,) = [trace for trace in drawn.data if trace.type == "scatter"]
    low, high = (
        steps["none"].step_seconds * factor for factor in (steps["none"].low, steps["none"].high)
    )
    assert (
        f"({low:.2f} to {high:.2f})" in totals.text[0]
        or f"({low:.3f} to {high:.3f})" in totals.text[0]
    )


def test_a_part_keeps_its_colour_and_every_part_has_one() -> None:
    first = {
        bar.name: bar.marker.color for bar in step_figure({"a": step()}).data if bar.type == "bar"
    }
    other = {
        bar.name: bar.marker.color
        for bar in step_figure({"b": step("zero1")}).data
        if bar.type == "bar"
    }
    assert all(other[name] == colour for name, colour in first.items() if name in other)
    assert all(part_colour(name) != part_colour("never heard of") for name in step().parts)
    assert len(set(PARTS.values())) == len(PARTS)


def test_colours_stand_out_on_both_pages_and_text_on_its_bar() -> None:
    for colour in (*SERIES, *PARTS.values()):
        assert contrast(colour, "#ffffff") >= 2.0, colour
        assert contrast(colour, "#111111") >= 2.5, colour
        assert contrast(colour, ink(colour)) >= 3.4, colour


def test_an_all_reduce_is_the_network_models() -> None:
    drawn = all_reduce_figure({"node": NODE}, mark_bytes=13.5e9)
    network = links(NODE, Conditions())
    (line,) = drawn.data
    assert line.y[0] == network.reduce_seconds(line.x[0], network.group(8, 1))
    assert line.y[0] < 1e-4  # kilobytes: microseconds
    assert line.y[-1] > 0.05
    assert drawn.layout.annotations[0].text == "12.6 GiB"
    with pytest.raises(UsageError, match="alone: an all-reduce needs 2"):
        all_reduce_figure({"alone": Cluster.rented("h100", 1)})


def test_causes_and_what_is_kept_add_up_to_the_whole() -> None:
    points = curve()
    drawn = scaling_figure(points)
    for index, point in enumerate(points):
        total = sum(bar.y[index] for bar in drawn.data)
        assert total == pytest.approx(100, abs=1)  # trifles have no bar
        assert drawn.data[0].y[index] == pytest.approx(100 * point.efficiency)
    assert drawn.data[1].name == "waiting: sharded weights"  # the largest cause first
    assert (
        f"{points[-1].efficiency:.1%} efficiency on 64 GPUs compared with 8"
        in drawn.layout.title.text
    )
    won = [bar.name for bar in drawn.data if max(bar.y) <= 0]
    assert won == ["optimizer (less of it)"]


def test_several_curves_are_lines() -> None:
    drawn = efficiency_figure({name: curve(name) for name in ("8x400 infiniband", "100 ethernet")})
    assert [trace.name for trace in drawn.data] == ["8x400 infiniband", "100 ethernet"]
    assert drawn.data[0].y[-1] > drawn.data[1].y[-1]
    assert list(drawn.layout.xaxis.tickvals) == [8, 16, 64]


def trial(value: int | str, loss: float | None = None, sent: int | None = None) -> TrialResult:
    """A trial that was good when it has a loss, else one that ran out of memory."""
    return TrialResult(
        label=f"trial {value}",
        key=str(value),
        processes=2,
        value=value,
        run=None if loss is None else f"run-{value}",
        outcome="memory" if loss is None else "good",
        problem="over the limit" if loss is None else None,
        splits=() if loss is None else (SPLIT,),
        loss=loss,
        sent_bytes=sent,
    )


SPLIT = StepSplit.read([0.5, 0.1, 0.1, 0.1, 0.2])
TRADE = Compression(
    study="s",
    results=(trial("none", 3.0, 400), trial("topk", 3.5, 8), trial("powersgd", 3.03, 9)),
)
TUNED = Tuning(
    study="s",
    kind="batch-size",
    results=(trial(1, 3.0), trial(2, 3.0), trial(4)),
    rates=(10.0, 19.0, None),
    best=2,
    why="out of memory; the smallest",
)


def test_the_value_to_take_and_the_one_that_failed_are_told_apart() -> None:
    bars, crosses = tuning_figure(TUNED).data
    assert (list(bars.x), list(bars.y)) == (["1", "2"], [10.0, 19.0])
    assert bars.marker.color[0] != bars.marker.color[1]
    assert (list(crosses.x), list(crosses.text)) == (["4"], ["memory"])
    title = tuning_figure(TUNED).layout.title.text
    assert "Micro-batch: take 2" in title
    assert "out of memory" in title


def test_the_trade_names_what_sends_least_at_the_same_loss() -> None:
    drawn = compression_figure(TRADE)
    assert [(one.name, one.x[0], one.y[0]) for one in drawn.data] == [
        ("none", 400, 3.0),
        ("topk", 8, 3.5),
        ("powersgd", 9, 3.03),
    ]
    assert "powersgd: 2.2% of the bytes, loss +0.030" in drawn.layout.title.text
    dear = Compression(study="s", results=TRADE.results[:2])
    assert "cost more than 2% of the loss" in compression_figure(dear).layout.title.text


def test_nothing_to_draw_is_said() -> None:
    nothing = Tuning(study="s", kind="workers", results=(), rates=(), best=None, why="all failed")
    with pytest.raises(UsageError, match="no value could be measured"):
        tuning_figure(nothing)
    with pytest.raises(UsageError, match="trial none: over the limit"):
        compression_figure(Compression(study="s", results=(trial("none"),)))
    for draw, nothing in (
        (step_figure, {}),
        (efficiency_figure, {}),
        (scaling_figure, curve()[:1]),
    ):
        with pytest.raises(UsageError, match=r"at least|No curve"):
            draw(nothing)


@pytest.mark.browser
def test_a_browser_draws_them(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    from tests.browser.lab import CHROMIUM_FLAGS

    figures = [step_figure({"fsdp": step()}), scaling_figure(curve()), dress(go.Figure(), "a", "b")]
    body = "".join(
        one.to_html(full_html=False, include_plotlyjs=index == 0)
        for index, one in enumerate(figures)
    )
    report = (
        "<script>setTimeout(() => { document.title = JSON.stringify({"
        "bars: document.querySelectorAll('.bars .point').length,"
        "plots: document.querySelectorAll('.js-plotly-plot .main-svg').length}); }, 1500)</script>"
    )
    file = tmp_path / "figures.html"
    file.write_text(f"<body style='background:#111;width:980px'>{body}{report}", "utf-8")
    answer = subprocess.run(
        [chromium, *CHROMIUM_FLAGS, f"--user-data-dir={tmp_path}/profile",
         "--virtual-time-budget=6000", "--window-size=1000,900", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    found = json.loads(answer.stdout.split("<title>")[1].split("</title>")[0])
    bars = sum(len(trace.x) for one in figures[:2] for trace in one.data if trace.type == "bar")
    assert found["bars"] == bars
    assert found["plots"] >= len(figures)

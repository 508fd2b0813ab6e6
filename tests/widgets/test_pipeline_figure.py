"""The Gantt chart of a pipeline: what it draws, says and hides; and that a browser draws it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("plotly", reason="the lab extra is not installed")

from workbench_widgets.figures.pipeline import pipeline_figure

from workbench.errors import UsageError
from workbench.estimate.pipeline import schedule, simulate_pipeline


def figure(name: str, p: int = 4, m: int = 8, v: int = 1, **options):
    run = simulate_pipeline(schedule(name, p, m, v), 0.011, 0.022, **options)
    return pipeline_figure(run), run


def test_every_pass_is_a_bar_in_its_place() -> None:
    drawn, run = figure("zero-bubble")
    assert [trace.name for trace in drawn.data] == [
        "forward",
        "backward, inputs",
        "backward, weights",
    ]
    bars = {
        (trace.name, row, text): (start, start + length)
        for trace in drawn.data
        for row, text, start, length in zip(trace.y, trace.text, trace.base, trace.x, strict=True)
    }
    assert len(bars) == 4 * 8 * 3
    last = run.ranks[3][-1]
    assert bars["backward, weights", "rank 3", "7"] == pytest.approx(
        (last.start_seconds * 1e3, last.end_seconds * 1e3)
    )
    assert drawn.layout.xaxis.ticksuffix == " ms"
    assert drawn.layout.yaxis.categoryarray[-1] == "rank 0"  # on top


def test_the_title_states_the_bubble_of_wall_time() -> None:
    drawn, _ = figure("1f1b")
    assert "1f1b: 27.3% of 363 ms is bubble" in drawn.layout.title.text  # 3/11
    assert "4 ranks, 8 micro-batches, at most 4 in flight" in drawn.layout.title.text
    drawn, _ = figure("interleaved", v=2, transfer_seconds=0.0004)
    assert "2 chunks (later chunks are paler)" in drawn.layout.title.text
    assert "0.4 ms per transfer" in drawn.layout.title.text


def test_hover_says_which_pass_and_when() -> None:
    drawn, _ = figure("interleaved", v=2)
    texts = [text for trace in drawn.data for text in trace.hovertext]
    expected = "<b>forward of micro-batch 1</b><br>rank 0, chunk 0<br>5.5 ms to 11 ms, takes 5.5 ms"
    assert expected in texts


def test_later_chunks_are_paler_with_ink_that_stands_out() -> None:
    drawn, _ = figure("interleaved", v=2)
    forward = drawn.data[0]
    assert forward.marker.color[0] == "rgb(22, 104, 199)"  # the legend shows the first bar
    assert set(forward.marker.color) == {"rgb(22, 104, 199)", "rgb(150, 187, 230)"}
    pale = forward.marker.color.index("rgb(150, 187, 230)")
    assert forward.insidetextfont.color[0] == "#ffffff"
    assert forward.insidetextfont.color[pale] == "#10151b"


def test_many_bars_carry_no_numbers_and_too_many_are_refused() -> None:
    assert figure("1f1b", 8, 64)[0].data[0].text is not None
    assert figure("1f1b", 16, 128)[0].data[0].text is None
    with pytest.raises(UsageError, match="20,000"):
        figure("1f1b", 32, 512)


@pytest.mark.full
@pytest.mark.browser
def test_a_browser_draws_it_in_both_themes(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    from tests.browser.lab import CHROMIUM_FLAGS

    drawn, _ = figure("1f1b", 4, 4)
    for theme, page in (("light", "#fff"), ("dark", "#111")):
        file = tmp_path / f"{theme}.html"
        body = drawn.to_html(full_html=False, include_plotlyjs=True)
        report = (
            "<script>setTimeout(() => { document.title = JSON.stringify({"
            "bars: document.querySelectorAll('.bars .point').length,"
            "numbers: [...document.querySelectorAll('.bars text')].filter("
            "(one) => one.getAttribute('visibility') !== 'hidden'"
            " && !one.getAttribute('transform').includes('scale(0)')).length}); }, 1500)</script>"
        )
        file.write_text(f"<body style='background:{page};width:980px'>{body}{report}", "utf-8")
        answer = subprocess.run(
            [chromium, *CHROMIUM_FLAGS, f"--user-data-dir={tmp_path}/profile",
             "--virtual-time-budget=6000", "--window-size=1000,400", "--dump-dom", file.as_uri()],
            capture_output=True, text=True, timeout=240, check=True,
        )  # fmt: skip
        title = answer.stdout.split("<title>")[1].split("</title>")[0]
        assert json.loads(title) == {"bars": 32, "numbers": 32}

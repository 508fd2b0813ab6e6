"""What somebody meets on a first walk from the launch form to the report, without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Compare, Workbench

from tests.compare.made_runs import make_run
from tests.conftest import until
from tests.widgets.small_dom import on_page

_HEADER = """
Node.prototype.before = () => {};
Node.prototype.after = () => {};
Node.prototype.querySelectorAll = () => [];
const { Header } = await import("./header.js");
const { runState } = await import("./state.js");
const act = { stop() {}, resume() {}, show() {}, profile() {}, steer() {}, kernel: () => true };
const link = { transport: "http", kernel: "answers" };
"""


def test_the_comparison_lists_runs_that_came_after_its_first_look(tmp_path: Path) -> None:
    """Opened on an empty store, the tab said "0 of 0 runs" until somebody found Refresh."""
    bench = Workbench(store=tmp_path)
    (compare,) = bench.open_tab("Compare")
    assert isinstance(compare, Compare)
    assert compare.rows == []
    bench.open_tab("Launch")
    make_run(tmp_path, "one", steps=20)
    make_run(tmp_path, "two", steps=20)
    bench.open_tab("Compare")
    until(lambda: {row["run"] for row in compare.rows} == {"one", "two"}, what="both runs")
    bench.close()


def test_no_button_is_offered_before_the_state_is_known(tmp_path: Path) -> None:
    """A run that was just launched had Resume and Profile beside Stop for its first second."""
    shown = on_page(
        tmp_path,
        _HEADER
        + """
        const header = new Header("r", act);
        const hidden = () => [header.resume.node.hidden, header.profile.hidden];
        const found = [hidden()];
        for (const view of [
          { phase: "running", steps: 3, attempt: 1 },
          { phase: "ended", outcome: "stopped", steps: 3, attempt: 1 },
        ]) {
          header.draw(view, 0, runState(view, 0, link, null));
          found.push(hidden());
        }
        tell(found);
        """,
    )
    assert shown == [[True, True], [True, False], [False, True]]


@pytest.mark.parametrize("served", [True, False])
def test_the_report_of_an_ended_run_is_a_link(tmp_path: Path, *, served: bool) -> None:
    """Only a terminal told where it was; while a resumed run trains it is an old one."""
    shown = on_page(
        tmp_path,
        _HEADER
        + """
        const asked = [];
        globalThis.fetch = async (url, { method }) => (asked.push(`${method} ${url}`), { ok: true });
        const header = new Header("r", { ...act, report: () => (served ? "/files/runs/r/report.html" : null) });
        const { node } = header.report;
        const found = [];
        for (const [phase, attempt] of [["running", 1], ["ended", 1], ["ended", 1], ["running", 2], ["ended", 2]]) {
          const view = { phase, outcome: phase === "ended" ? "stopped" : null, steps: 3, attempt };
          header.draw(view, 0, runState(view, 0, link, null));
          await settled();
          found.push([node.hidden, node.getAttribute("href")]);
        }
        tell({ found, asked: asked.length });
        """,
        served=served,
    )
    hidden = [one for one, _ in shown["found"]]
    if not served:
        assert (hidden, shown["asked"]) == ([True] * 5, 0)
        return
    assert hidden == [True, False, False, True, False]
    assert shown["found"][-1][1] == "/files/runs/r/report.html"
    assert shown["asked"] == 2  # once an end


def test_a_median_of_lateness_says_that_it_is_one(tmp_path: Path) -> None:
    """Above cells of 80 ms stood "all within 3 ms"."""
    told = on_page(
        tmp_path,
        """
        Node.prototype.querySelectorAll = () => [];
        const { RankMap } = await import("./rank_map.js");
        const { waiting } = await import("./timeline.js");
        const rows = late.map((one) => [0, one]);
        const step = late.map((_, at) => at + 1);
        const ranks = [0, 1].map((rank) => ({ rank, entered: rows.map((row) => row[rank]), ended: late.map(() => 0.2), data: [] }));
        const theme = { series: ["rgb(0,0,0)", "rgb(1,1,1)"], muted: "rgb(9,9,9)", grid: "rgb(8,8,8)" };
        const drawing = waiting({ processes: 2, timeline: { step, ranks } }, { theme });
        const map = new RankMap(() => {});
        map.draw({ rank_grid: { ranks: 2, each: 1, step, measures: {} } }, theme);
        tell([drawing.value, drawing.label]);
        """,
        late=[0.001, 0.08, 0.001],
    )
    assert told[0] == "in sync within 1 ms (median)"


def test_a_comparison_does_not_call_an_average_the_best_loss(tmp_path: Path) -> None:
    """A run whose last step had 1.124 was said to have a best loss of 1.298: a mean of 8 steps."""
    told = on_page(
        tmp_path,
        """
        const { lines } = await import("./compare_table.js");
        const results = [["loss_last", 1.124], ["loss_best", 1.298]].map(([what, value]) => ({ what, unit: "", values: { r: value } }));
        tell(lines({ runs: ["r"], configuration: [], results, reach: { loss: null, runs: {} } }).map(({ what }) => what));
        """,
    )
    assert told[-2:] == ["loss, last step", "best loss, mean of some steps"]


def test_no_plan_is_said_to_break_the_limits_while_they_are_searched(tmp_path: Path) -> None:
    """On a busy machine the search takes seconds, under which stood that no plan meets the limits."""
    told = on_page(
        tmp_path,
        """
        const { Table } = await import("./plan_table.js");
        const { drawing } = await import("./plan_scatter.js");
        const theme = { series: Array(8).fill("rgb(1,1,1)"), accent: "rgb(2,2,2)", ink: "rgb(3,3,3)" };
        const table = new Table(() => {});
        tell([false, true].map((exact) => {
          const figure = { kept: [], front: [], own: false, set: 1, exact };
          table.draw([], figure, -1);
          return [table.none.textContent, drawing({ rows: [], figure, values: {}, selected: -1 }, theme).empty];
        }));
        """,
    )
    assert told == [
        ["No plan yet.", "No plan yet"],
        ["No plan meets the limits.", "No plan has a known price"],
    ]

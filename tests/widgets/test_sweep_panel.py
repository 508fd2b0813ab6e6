"""The panel of the sweeps, without a browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("optuna", reason="the extra sweep is not installed")

from plotly.offline import get_plotlyjs
from workbench_widgets import Sweep
from workbench_widgets.sweep import panel as panel_module

import workbench as wb
from tests.conftest import until
from tests.sweeping.plans import PREDICTED, sweep_of_results
from tests.widgets.small_dom import on_page
from tests.widgets.test_page_state import run
from workbench.queueing import Queue
from workbench.sweeping import find, sweeps
from workbench.sweeping.page import write_page

GRID = {"target": "gpt", "arguments": "--size 2 --steps 90", "grid": "lr=1e-4,1e-3\n\nseed=1,2"}


def test_it_shows_what_the_files_say(tmp_path: Path) -> None:
    sweep_of_results(tmp_path)
    panel = Sweep(store=tmp_path)
    shown = panel.shown
    assert shown == json.loads(json.dumps(find("lr", tmp_path).document() | _of_page(shown)))
    rows = {row["number"]: row for row in shown["trials"]}
    pruned = [row for row in rows.values() if row["state"] == "pruned"]
    finished = [row for row in rows.values() if row["state"] == "finished"]
    assert {row["pruned_at"] for row in pruned} <= {10, 30}
    assert (len(pruned) + len(finished), rows[2]["state"]) == (7, "failed")
    assert pruned
    assert shown["best"]["value"] == min(row["value"] for row in finished)
    so_far = shown["so_far"]
    assert (so_far["finished"], so_far["pruned"]) == (len(finished), len(pruned))
    assert (so_far["failed"], so_far["running"], so_far["waiting"]) == (1, 0, 1)
    assert shown["predicted"] == PREDICTED
    assert shown["sweep"] == "lr"  # at once; the figures follow
    panel.refresh()
    assert set(panel.figures) == {"Best so far", "Parallel coordinates", "Importance", "Looks"}
    assert panel.figures["Best so far"]["layout"]["xaxis"]["dtick"] == 1  # no trial 0.5
    steps = panel.figures["Best so far"]["data"][1]["y"]
    assert steps[-1] == pytest.approx(shown["best"]["value"])
    assert steps == sorted(steps, reverse=True)
    assert f"best: lr={shown['best']['values']['lr']}" in repr(panel)
    panel.close()


def _of_page(shown: dict[str, object]) -> dict[str, object]:
    return {name: shown[name] for name in ("names", "steps_total")}


def test_the_page_has_all_of_plotly_and_hides_keys(tmp_path: Path) -> None:
    """Hiding what looks like a key inside the library's code made a page without figures."""
    sweep_of_results(tmp_path)
    page = tmp_path / "page.html"
    write_page(find("lr", tmp_path), page)
    text = page.read_text()
    assert get_plotlyjs() in text
    assert text.count("Plotly.newPlot(") == get_plotlyjs().count("Plotly.newPlot(") + 4
    assert text.count("CUDA out of memory on rank 0.") == 1
    assert "rank 0. [redacted]" in text
    assert "Qd83hZ" not in text


def test_higher_is_better_has_the_highest_as_its_best(tmp_path: Path) -> None:
    sweep_of_results(tmp_path, metric="accuracy", direction="higher", stop="none", first_look=None)
    panel = Sweep(store=tmp_path)
    finished = [row["value"] for row in panel.shown["trials"] if row["state"] == "finished"]
    assert panel.shown["best"]["value"] == max(finished)
    panel.refresh()
    assert panel.figures["Best so far"]["data"][1]["y"][-1] == pytest.approx(max(finished))
    panel.close()


def test_a_new_panel_shows_the_same_and_the_newest_comes_first(tmp_path: Path) -> None:
    empty = Sweep(store=tmp_path)
    assert (empty.names, empty.shown) == ([], {})
    sweep_of_results(tmp_path)
    sweep_of_results(tmp_path, name="later", created_at=2.0)
    empty.refresh()  # as its thread does
    assert empty.shown["sweep"] == "later"
    empty.show("lr")
    again = Sweep(store=tmp_path, open="lr")
    assert again.shown == empty.shown
    assert [one["name"] for one in again.names] == ["later", "lr"]
    again.act("show", {"sweep": "../lr"})
    assert "Unknown sweep" in again.said["text"]
    with pytest.raises(TypeError, match="Sweep has no option 'stroe'"):
        Sweep(stroe=tmp_path)
    for one in (empty, again):
        one.close()


def test_the_form_predicts_before_anything_starts(tmp_path: Path) -> None:
    panel = Sweep(store=tmp_path, cpu=True)
    panel.act("start", {})
    assert panel.said["text"].startswith("Press Predict first")
    panel.act("check", {"values": {**GRID, "stop": "asha"}})
    assert panel.said == {"text": "", "bad": False, "of": "check"}
    assert (panel.ready["trials"], panel.ready["looks"]) == (4, [10, 30])
    assert panel.ready["first"] == "gpt --size 2 --steps 90 --lr 1e-4 --seed 1"
    assert panel.ready["predicted"]["share"]["expected"] < 1
    panel.act("check", {"values": {**GRID, "grid": "rate=1,2"}})
    assert "Unknown option of gpt 'rate'" in panel.said["text"]
    assert panel.ready == {}
    assert sweeps(tmp_path) == []
    panel.close()


def test_only_what_the_form_says_is_started(tmp_path: Path) -> None:
    """A press of Start may come while the next prediction is still under way."""
    panel = Sweep(store=tmp_path, cpu=True)
    values = {**GRID, "stop": "none"}
    panel.act("check", {"values": values})
    assert panel.ready["values"] == values
    panel.act("start", {"values": {**values, "grid": "lr=1e-4,1e-3,1e-2"}})
    assert panel.said["text"].endswith("press Predict again.")
    assert sweeps(tmp_path) == []
    panel.close()


def test_a_prediction_is_of_the_values_that_it_was_made_for(tmp_path: Path) -> None:
    assert run(
        tmp_path,
        """const { isOf } = await import("./sweep_form.js");
        const ready = { values: { target: "gpt", grid: "lr=1,2" } };
        console.log(JSON.stringify([
          isOf(ready, { grid: "lr=1,2", target: "gpt" }), isOf(ready, { grid: "lr=1,2,3", target: "gpt" }),
          isOf(ready, { target: "gpt" })]));""",
    ) == [True, False, False]


def test_a_time_that_is_not_predicted_is_no_time(tmp_path: Path) -> None:
    """It stood there as "0:27 of 0:00"."""
    unknown, known = {"hours": None, "usd": None}, {"hours": 0.5, "usd": 2.5}
    given = [[{"hours": 0.0075}, unknown], [{"hours": None}, unknown], [known, known], [known, {}]]
    found = run(
        tmp_path,
        f"""const {{ spent }} = await import("./sweep.js");
        console.log(JSON.stringify({json.dumps(given)}.map((one) => spent(...one))));""",
    )
    assert found == [
        [["Time", "0:27"]],
        [["Time", "n/a"]],
        [["Time, of predicted", "30:00 of 30:00"], ["Dollars, of predicted", "$2.50 of $2.50"]],
        [["Time", "30:00"], ["Dollars", "$2.50"]],
    ]


def test_sweeps_that_can_be_read_again_are_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = Sweep(store=tmp_path, refresh_seconds=3600)

    def fails(error: Exception) -> Callable[..., None]:
        def fail(*_given: object, **_named: object) -> None:
            raise error

        return fail

    for place, error in ((panel_module, OSError("away")), (Sweep, wb.HostError("away"))):
        with monkeypatch.context() as away:
            away.setattr(place, "sweeps" if place is panel_module else "_show", fails(error))
            panel.reread()
            assert "away" in panel.said["text"]
        panel.reread()
        assert panel.said == {"text": "", "bad": False}
    panel.said = {"text": "what a button said", "bad": True, "of": "stop"}
    panel.reread()
    assert panel.said["text"] == "what a button said"
    panel.close()


@pytest.mark.full
def test_start_stop_and_resume(tmp_path: Path) -> None:
    """Controllers and a queue that is paused, so no trial trains."""
    queue = Queue(tmp_path)
    queue.pause()
    panel = Sweep(store=tmp_path, cpu=True, refresh_seconds=0.2)
    panel.act("check", {"values": {**GRID, "name": "four"}})
    panel.act("start", {})
    assert panel.shown["sweep"] == "four"
    until(lambda: len(queue.jobs()) == 1, what="the first trial in the queue")
    panel.act("stop", {"sweep": "four"})
    until(lambda: panel.shown["state"] == "stopped", 60, what="the stop")
    panel.act("resume", {"sweep": "four"})
    until(lambda: panel.shown["state"] == "running", what="the resumption")
    find("four", tmp_path).stop()
    until(lambda: panel.shown["state"] == "stopped", 60, what="the second stop")
    assert panel.said["text"] == ""
    panel.close()


def test_a_sweep_is_stopped_by_a_second_press(tmp_path: Path) -> None:
    """One press asks; Escape, or another sweep in its place, takes the question back."""
    sweep_of_results(tmp_path / "runs")
    panel = Sweep(store=tmp_path / "runs")
    values = {name: getattr(panel, name) for name in ("names", "shown", "figures", "ready", "said")}
    panel.close()
    told = on_page(
        tmp_path,
        """
        const { mount } = await import("./sweep.js");
        globalThis.MutationObserver = globalThis.ResizeObserver = class { observe() {} disconnect() {} };
        globalThis.matchMedia = () => ({ matches: false, addEventListener() {}, removeEventListener() {} });
        globalThis.getComputedStyle = () => ({ getPropertyValue: () => "", color: "", backgroundColor: "" });
        const sent = [], calls = [];
        values.shown.state = "running";
        const model = { get: (name) => values[name], on: (_, call) => calls.push(call), off() {}, send: (message) => sent.push(message.type) };
        Node.prototype.querySelector = () => null;
        Object.defineProperty(Node.prototype, "firstChild", { get() { return this.children[0] ?? null; } });
        const root = new Node("root");
        mount(root, { model, config, url: () => null, plotly: () => new Promise(() => {}) });
        const all = (node) => [node, ...node.children.flatMap((one) => (one.children ? all(one) : []))];
        const button = all(root).find((one) => one.tag === "button" && one.textContent === "Stop the sweep");
        const seen = [];
        const see = () => seen.push([button.textContent, [...sent]]);
        const press = () => (button.focus(), button.emit("click"), see());
        press();
        button.emit("keydown", { key: "Escape", stopPropagation() {} });
        see();
        press();
        values.shown = { ...values.shown, sweep: "another" };
        calls.forEach((call) => call());
        see();
        press();
        press();
        tell(seen);""",
        values=values,
        config=panel.config,
    )
    rest, asked = "Stop the sweep", "Press again: stop the sweep"
    assert told == [
        *([asked, []], [rest, []], [asked, []], [rest, []], [asked, []]),
        [rest, ["stop"]],
    ]

"""The run that lies behind the live curves: whatever answers when, its curves and its name belong together."""

from __future__ import annotations

from pathlib import Path

from tests.widgets.small_dom import on_page

_BASELINE = """
const { Baseline } = await import("./baseline.js");
const waiting = [];
const asked = (what) => new Promise((done) => waiting.push({ what, done }));
const answer = async (what, value) => {
  const at = waiting.findIndex((one) => one.what === what);
  waiting.splice(at, 1)[0].done(value);
  await settled();
};
const questions = { runs: () => asked("runs"), viewOf: asked };
const drawn = [];
const baseline = new Baseline({ questions, context: { config: { run: "me" } } }, () => drawn.push([baseline.name, baseline.view?.of ?? null]));
const list = async (...runs) => {
  baseline.listed = 0;
  baseline.select.emit("focus");
  await answer("runs", runs);
};
const choose = (run) => {
  baseline.select.value = run;
  baseline.select.emit("change");
};
"""


def test_a_late_answer_never_replaces_the_run_that_was_chosen_after_it(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        _BASELINE
        + """
        await list("me", "a", "b");
        choose("a");
        choose("b");
        const before = [baseline.name, baseline.view];
        await answer("b", { of: "b", phase: "ended" });
        await answer("a", { of: "a", phase: "ended" });
        choose("a");
        choose("");
        await answer("a", { of: "a", phase: "ended" });
        tell({ before, drawn });""",
    )
    assert told["before"] == ["", None]
    assert told["drawn"] == [["b", "b"], ["", None]]


def test_the_menu_keeps_what_is_chosen_while_it_is_filled(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        _BASELINE
        + """
        await list("me", "a", "b");
        baseline.listed = 0;
        baseline.select.emit("focus");
        choose("a");
        await answer("a", { of: "a", phase: "ended" });
        await answer("runs", ["me", "a", "b"]);
        const chosen = [baseline.select.value, baseline.name];
        await list(); // the store could not be read just now
        tell([chosen, [baseline.select.value, baseline.name]]);""",
    )
    assert told == [["a", "a"], ["a", "a"]]


def test_a_baseline_that_still_trains_is_read_again(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        _BASELINE
        + """
        let now = 1_000_000;
        Date.now = () => now;
        await list("a");
        choose("a");
        await answer("a", { of: "a", phase: "running", at: 1 });
        const look = async (seconds) => {
          now += 1000 * seconds;
          void baseline.renew();
          void baseline.renew();
          await settled();
          return waiting.length;
        };
        const soon = await look(1);
        const later = await look(60);
        await answer("a", { of: "a", phase: "ended", at: 2 });
        tell({ soon, later, at: baseline.view.at, ended: await look(60) });""",
    )
    assert told == {"soon": 0, "later": 1, "at": 2, "ended": 0}

"""The page's curves: scales, what was logged by name, outliers, a baseline; by its own modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.observe.test_series import say
from tests.observe.test_view import now, run_document
from tests.widgets.small_dom import on_page
from tests.widgets.test_page_state import run
from workbench.observe import curve_window
from workbench.observe.curves import Curve, read_curve
from workbench.observe.rows import row
from workbench.observe.view import ViewBuilder
from workbench.observe.work_clock import recent_attempts
from workbench.pages.questions import QUESTIONS
from workbench.pages.run_rows import series_message
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.schema import BY_HAND

ATTEMPTS = [
    {"event": "start", "attempt": 1, "time": 1000.0, "first_step": 0},
    {"event": "end", "attempt": 1, "time": 1100.0},
    {"event": "start", "attempt": 2, "time": 1400.0, "first_step": 100},
]
OPTIONS = """
document.createElement = () => ({ getContext: () => null });
const theme = {series: ["rgb(1, 2, 3)", "rgb(4, 5, 6)"], accent: "rgb(1, 2, 3)", muted: "rgb(9, 9, 9)", bad: "rgb(7, 0, 0)"};
const options = {theme, smoothing: 0, logLoss: false, clip: false, by: "step"};
"""


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Two attempts with a pause of five minutes between them, and what was logged by name."""
    made = RunPaths(tmp_path / "runs" / "r-1")
    made.directory.mkdir(parents=True)
    made.make_folders()
    made.run.write_text(json.dumps({**run_document(2), "usd_per_hour": 3.6, "run": "r-1"}))
    made.attempts.write_text("".join(json.dumps(one) + "\n" for one in ATTEMPTS))
    for rank in range(2):
        with made.rank_metrics(rank).open("w") as file:
            for step in range(1, 201):
                at = 1000 + step if step <= 100 else 1300 + step
                loss = 50.0 if step == 77 else 4 / step
                row = {"step": step, "time": at, "step_seconds": 1.0, "loss": loss, "tokens": 2048}
                file.write(json.dumps(row) + "\n")
    values = [(step, {"eval_loss": 5 / step, "eval/acc": 0.5, "note": 1}) for step in (50, 100)]
    say(made, 0, *values, (150, {"eval_loss": float("nan")}))
    return made


def view_of(paths: RunPaths, **more: Any) -> dict[str, Any]:
    builder = ViewBuilder(paths, RunRecord.of(json.loads(paths.run.read_text())))
    builder.read(final=True)
    data = builder.encoded(now(**{"attempts": ATTEMPTS, "started_at": 1000.0, **more}))
    paths.view.write_bytes(data)
    return json.loads(data)


def test_scales_are_those_of_the_engine(paths: RunPaths, tmp_path: Path) -> None:
    view = view_of(paths)
    curve = read_curve(paths)
    script = f"""
        import {{ scaleOf }} from "./scales.js";
        const view = {json.dumps(view)};
        const along = (by) => view.series.step.map(scaleOf(view, by).of);
        const time = scaleOf(view, "time");
        console.log(JSON.stringify({{time: along("time"), tokens: along("tokens"), usd: along("usd"),
          unit: time.axis.ticksuffix, back: time.back(time.of(120)), step: along("step")}}));
    """
    seen = run(tmp_path, script)
    size = {" s": 1, " min": 60, " h": 3600}[seen["unit"]]
    assert [one * size for one in seen["time"]] == pytest.approx(curve.seconds, rel=1e-6)
    assert seen["usd"] == pytest.approx(curve.usd, rel=1e-6)
    assert seen["tokens"] == pytest.approx(curve.tokens, rel=0.02)
    assert seen["step"] == list(curve.step)
    assert seen["back"] == pytest.approx(120)


def test_a_run_resumed_at_another_price_costs_the_same_everywhere(
    paths: RunPaths, tmp_path: Path
) -> None:
    document = json.loads(paths.run.read_text())
    document["usd_before"] = [{"until_seconds": 50.0, "usd_per_hour": 36.0}]
    paths.run.write_text(json.dumps(document))
    view = view_of(paths, phase="ended", ended_at=1500.0, elapsed_seconds=200.0)
    curve = read_curve(paths)
    assert curve.usd[-1] == pytest.approx((50 * 36 + 150 * 3.6) / 3600)
    script = f"""
        import {{ scaleOf }} from "./scales.js";
        import {{ curveOf }} from "./compare.js";
        const view = {json.dumps(view)};
        const compared = curveOf({json.dumps(series_message(paths.directory)["view"])});
        console.log(JSON.stringify([view.series.step.map(scaleOf(view, "usd").of), compared.usd]));
    """
    for dollars in run(tmp_path, script):
        assert dollars == pytest.approx(curve.usd, abs=1e-6)


@pytest.mark.parametrize("jump", [-3600.0, 864_000.0])
def test_a_clock_that_is_set_moves_no_curve(paths: RunPaths, tmp_path: Path, jump: float) -> None:
    """Time and cost of an ended run went back to nothing, or on by ten days; in a table, not."""
    for rank in range(2):
        lines = [json.loads(line) for line in paths.rank_metrics(rank).read_text().splitlines()]
        moved = [line | {"time": line["time"] + jump * (line["step"] > 150)} for line in lines]
        paths.rank_metrics(rank).write_text("".join(json.dumps(line) + "\n" for line in moved))
    view = view_of(paths, phase="ended", ended_at=1500.0, elapsed_seconds=200.0)
    curve = read_curve(paths)
    assert curve.seconds[-1] == pytest.approx(200)
    script = f"""
        import {{ scaleOf }} from "./scales.js";
        import {{ curveOf }} from "./compare.js";
        const view = {json.dumps(view)};
        const compared = curveOf({json.dumps(series_message(paths.directory)["view"])});
        console.log(JSON.stringify([view.series.step.map(scaleOf(view, "usd").of), compared.usd]));
    """
    for dollars in run(tmp_path, script):
        assert dollars == pytest.approx(curve.usd, abs=1e-6)


def many_attempts(paths: RunPaths, count: int) -> list[dict[str, Any]]:
    """So many attempts of ten steps, with pauses of 5 to 60 seconds and one of three hours."""
    lines, rows, at, step = list[dict[str, Any]](), list[dict[str, Any]](), 1000.0, 0
    for attempt in range(1, count + 1):
        why = BY_HAND if attempt in {3, count} else None
        lines.append({"event": "start", "attempt": attempt, "time": at, "why": why})
        for _ in range(10):
            at, step = at + 1, step + 1
            rows.append({"step": step, "time": at, "step_seconds": 1.0, "loss": 4 / step})
        lines.append({"event": "end", "attempt": attempt, "time": at})
        at += 10_800 if attempt == 4 else 5 + attempt * 7 % 56
    paths.attempts.write_text("".join(json.dumps(one) + "\n" for one in lines))
    for rank in range(2):
        paths.rank_metrics(rank).write_text("".join(json.dumps(one) + "\n" for one in rows))
    return lines


@pytest.mark.parametrize("count", [20, 45, 120])
def test_every_attempt_counts_however_often_a_run_restarted(
    paths: RunPaths, tmp_path: Path, count: int
) -> None:
    told = recent_attempts(many_attempts(paths, count))
    view = view_of(paths, **told)
    curve = read_curve(paths)
    script = f"""
        import {{ curveOf }} from "./compare.js";
        import {{ secondsAtWork, scaleOf }} from "./scales.js";
        const view = {json.dumps(view)};
        const {{attempts_before, ...older}} = view;
        console.log(JSON.stringify({{time: view.series.time.map(secondsAtWork(view)), compared: curveOf(view),
          usd: view.series.step.map(scaleOf(view, "usd").of), older: scaleOf(older, "time").known}}));
    """
    seen = run(tmp_path, script)
    assert (told["attempts_before"] is None) == (count == 20)
    assert seen["older"] == (count == 20)  # a view without them does not guess
    # The 30 longest pauses stand where they were: what is left of the others is spread.
    assert seen["time"] == pytest.approx(curve.seconds, abs=0.01 if count < 100 else 30)
    assert seen["time"][-1] == pytest.approx(10 * count)
    assert seen["compared"]["seconds"] == seen["time"]
    assert seen["compared"]["usd"] == pytest.approx(seen["usd"])
    message = series_message(paths.directory)["view"]
    assert message["attempts_before"] == view["attempts_before"]


@pytest.mark.parametrize("each", [100, None])
def test_tokens_of_slow_steps_are_those_of_the_engine(
    paths: RunPaths, tmp_path: Path, each: int | None
) -> None:
    """100 tokens in a minute were two a second, so 120 a step: rates were whole numbers."""
    document = json.loads(paths.run.read_text())
    paths.run.write_text(json.dumps(document | {"tokens_per_step": each}))
    for rank in range(2):
        rows = [
            {"step": at, "time": 60.0 * at, "step_seconds": 60.0, "tokens": 50, "loss": 1.0}
            for at in (1, 2, 3)
        ]
        paths.rank_metrics(rank).write_text("".join(json.dumps(one) + "\n" for one in rows))
    view = view_of(paths)
    assert view["tokens_per_step"] == each
    compared = series_message(paths.directory)["view"]
    found = run(
        tmp_path,
        f"""
        import {{ curveOf }} from "./compare.js";
        import {{ tokensOf }} from "./scales.js";
        const [view, compared] = {json.dumps([view, compared])};
        console.log(JSON.stringify([tokensOf(view), curveOf(compared).tokens]));""",
    )
    engine = list(read_curve(paths).tokens)
    assert engine == pytest.approx([100, 200, 300], abs=0.5)
    assert found == [pytest.approx(engine, abs=0.5)] * 2


@pytest.mark.parametrize("unknown", [None, 150])
def test_tokens_go_on_after_steps_without_a_duration_and_end_where_they_are_unknown(
    paths: RunPaths, tmp_path: Path, unknown: int | None
) -> None:
    document = json.loads(paths.run.read_text())
    paths.run.write_text(json.dumps(document | {"tokens_per_step": None}))
    for rank in range(2):
        rows = [json.loads(line) for line in paths.rank_metrics(rank).read_text().splitlines()]
        for step in (1, 101):  # the first of an attempt
            del rows[step - 1]["step_seconds"]
        if unknown:
            del rows[unknown - 1]["tokens"]
        paths.rank_metrics(rank).write_text("".join(json.dumps(one) + "\n" for one in rows))
    view = view_of(paths)
    curve = read_curve(paths)
    script = f"""
        import {{ tokensOf, scaleOf }} from "./scales.js";
        import {{ along }} from "./curve_options.js";
        import {{ loss }} from "./traces.js";
        {OPTIONS}
        const view = {json.dumps(view)};
        const scale = scaleOf(view, "tokens");
        view.checkpoints = [{{step: 120}}, {{step: 180}}];
        const drawn = along(loss(view, options), view, scale, options);
        console.log(JSON.stringify({{tokens: tokensOf(view), places: view.series.step.map(scale.of), missing: scale.missing,
          known: scale.known, chips: drawn.chips.map((one) => one.text), marks: drawn.layout.annotations.filter((one) => one.text === "▴").length}}));
    """
    seen = run(tmp_path, script)
    each = 2 * 2048
    upto = (unknown or 201) - 1
    assert list(curve.tokens) == [at * each for at in range(1, upto + 1)] + [None] * (200 - upto)
    assert seen["tokens"] == list(curve.tokens) == seen["places"]
    assert seen["known"]
    assert seen["missing"] == ("Tokens are known up to step 149" if unknown else "")
    assert seen["chips"].count(seen["missing"]) == (1 if unknown else 0)
    assert seen["marks"] == (1 if unknown else 2)  # none stands where no place is known


def test_starts_by_hand_are_counted_among_those_left_out(paths: RunPaths) -> None:
    view_of(paths, **recent_attempts(many_attempts(paths, 45)))
    paths.state.write_text(json.dumps({"restarts": 44}))
    assert row(paths, Curve())["restarts"] == 42


def test_validation_stands_on_the_loss_and_groups_have_panels(
    paths: RunPaths, tmp_path: Path
) -> None:
    script = f"""
        import {{ loss }} from "./traces.js";
        import {{ figures, figure, leftOut }} from "./logged_traces.js";
        {OPTIONS}
        const view = {json.dumps(view_of(paths))};
        const drawn = loss(view, options);
        console.log(JSON.stringify({{
          validation: drawn.traces.find((one) => one.name === "eval_loss"),
          figures: [...figures(view).keys()],
          label: figure(view, options, "eval/acc").label,
          none: leftOut(view),
          left: leftOut({{run: "r", logged: {{more: ["a", "b"], more_count: 9}}}}),
        }}));
    """
    seen = run(tmp_path, script)
    assert seen["validation"]["x"] == [50, 100, 150]
    assert seen["validation"]["y"] == [0.1, 0.05, None]  # NaN is a gap
    assert seen["figures"] == ["eval/acc", "note"]
    assert seen["label"] == "eval/acc: eval/acc 0.5 at step 100"
    assert seen["none"] == ""
    assert "9 more logged names" in seen["left"]
    assert "a, b, …" in seen["left"]


def test_outliers_log_scale_and_csv(paths: RunPaths, tmp_path: Path) -> None:
    script = f"""
        import {{ loss }} from "./traces.js";
        import {{ along, csvOf }} from "./curve_options.js";
        import {{ scaleOf }} from "./scales.js";
        {OPTIONS}
        const view = {json.dumps(view_of(paths))};
        const clipped = along(loss(view, options), view, scaleOf(view, "step"), {{clip: true, logLoss: false}});
        const log = along(loss(view, options), view, scaleOf(view, "time"), {{clip: false, logLoss: true}});
        const mixed = {{...view, series: {{...view.series, loss: view.series.loss.map((y, at) => (at < 3 ? -y : y))}}}};
        const hidden = along(loss(mixed, options), mixed, scaleOf(view, "step"), {{clip: false, logLoss: true}});
        console.log(JSON.stringify({{range: clipped.layout.yaxis.range, chips: clipped.chips.map((one) => one.text),
          hidden: [log, hidden].map(({{chips}}) => chips.map((one) => one.text).find((text) => text.includes("0:")) ?? ""),
          type: log.layout.yaxis.type, title: log.layout.xaxis.title.text, rule: log.layout.shapes[0].x0,
          csv: csvOf(clipped).split("\\n").slice(0, 3), reading: log.readings(2)}}));
    """
    seen = run(tmp_path, script)
    assert seen["range"][1] < 5
    assert any("outside" in text for text in seen["chips"])
    assert (seen["type"], seen["title"]) == ("log", "running time")
    assert seen["hidden"] == ["", "3 at or below 0: on no log scale"]
    assert seen["csv"][0] == '"optimizer step","eval_loss","loss"'
    assert seen["csv"][1] == "1,,4"
    assert seen["reading"].startswith("step ")
    assert seen["rule"] == pytest.approx(100 / 60, rel=0.05)  # where attempt 2 began, in minutes


def test_csv_has_the_values_under_their_names_and_smoothed_ones_beside_them(
    paths: RunPaths, tmp_path: Path
) -> None:
    key = "made/a<b & c"
    say(paths, 1, *((step, {key: 1 / step}) for step in range(1, 201)))
    script = f"""
        import {{ loss }} from "./traces.js";
        import {{ figure, figures }} from "./logged_traces.js";
        import {{ utilisation }} from "./device_traces.js";
        import {{ along, before, csvOf }} from "./curve_options.js";
        import {{ scaleOf }} from "./scales.js";
        {OPTIONS}
        options.smoothing = 0.6;
        const view = {json.dumps(view_of(paths))};
        const draw = (drawing, clip) => along(drawing, view, scaleOf(view, "step"), {{...options, clip}});
        const lines = (drawing) => csvOf(drawing).split("\\n");
        const drawn = draw(loss(view, options), false);
        const outside = (given) => draw(loss(view, given), true).chips.map((one) => one.text).filter((text) => text.includes("outside"));
        const [title] = [...figures(view)].find(([, series]) => series.some((one) => one.name === {json.dumps(key)}));
        const logged = figure(view, options, title);
        const device = {{device: "cuda", started_at: 0, devices: [{{id: "gpu0", series: {{time: [0, 4], util: [7, 9]}}}}]}};
        console.log(JSON.stringify({{loss: lines(drawn), logged: lines(draw(logged, false)).slice(0, 2),
          behind: lines(before(drawn, drawn, "a<b", theme, "step"))[0], plotly: logged.traces.map((one) => one.name),
          outside: [outside(options), outside({{...options, smoothing: 0}})], device: lines(utilisation(device, options))}}));
    """
    seen = run(tmp_path, script)
    smooth = " (exponential moving average, weight 0.6)"
    assert seen["loss"][0] == f'"optimizer step","eval_loss","loss","loss{smooth}"'
    assert [float(text) for text in seen["loss"][77].split(",")[2:]] == [50.0, pytest.approx(20.0, 0.01)]  # fmt: skip
    assert seen["logged"][0] == f'"optimizer step","{key}","{key}{smooth}"'
    assert seen["behind"].startswith(f'"optimizer step","eval_loss · a<b","loss · a<b","loss{smooth} · a<b",')  # fmt: skip
    assert "made/a&lt;b &amp; c" in seen["plotly"]  # plotly.js reads markup
    assert seen["outside"][0] == seen["outside"][1] != []  # a point and its smoothed one are one
    assert seen["device"][:3] == ['"running time, s","gpu0"', "0,7", "4,9"]


def test_a_baseline_lies_behind_with_its_difference(paths: RunPaths, tmp_path: Path) -> None:
    script = f"""
        import {{ loss }} from "./traces.js";
        import {{ along, before }} from "./curve_options.js";
        import {{ scaleOf }} from "./scales.js";
        {OPTIONS}
        const view = {json.dumps(view_of(paths))};
        const other = structuredClone(view);
        other.series.loss = other.series.loss.map((one) => one + 0.5);
        const draw = (one) => along(loss(one, options), one, scaleOf(one, "step"), options);
        const drawn = before(draw(view), draw(other), "base", theme, "step");
        other.series.step = other.series.step.map((one) => one / 2);
        const ended = before(draw(view), draw(other), "base", theme, "step");
        console.log(JSON.stringify({{delta: drawn.delta, first: drawn.traces[0].name, count: drawn.traces.length,
          undefinedKeys: drawn.traces.some((one) => Object.values(one).includes(undefined)), ended: ended.delta.title}}));
    """
    seen = run(tmp_path, script)
    assert seen["delta"]["text"] == "\N{MINUS SIGN}0.5"
    assert seen["delta"]["title"].startswith("against base at the same step")
    assert seen["first"].endswith("· base")
    assert not seen["undefinedKeys"]  # plotly.js refuses them
    assert "at its end" in seen["ended"]


def test_the_kernel_answers_what_the_page_zooms_into(paths: RunPaths) -> None:
    view_of(paths)
    window = QUESTIONS["window"](paths, {"first": 90, "last": 110})
    assert window["stride"] == 1
    assert window["series"]["step"] == list(range(90, 111))
    assert window["series"]["loss"][0] == pytest.approx(4 / 90)
    (eval_loss,) = [one for one in window["logged"]["series"] if one["name"] == "eval_loss"]
    assert window["logged"]["tables"][eval_loss["table"]]["step"] == [100]
    assert QUESTIONS["runs"](paths, {}) == ["r-1"]
    assert QUESTIONS["view"](paths, {"run": "r-1"})["run"] == "r-1"


def test_a_window_of_a_long_run_reads_no_more_than_it_holds(paths: RunPaths) -> None:
    with paths.rank_metrics(0).open("w") as file, paths.rank_metrics(1).open("w") as other:
        for step in range(1, 12_001):
            line = json.dumps({"step": step, "time": 1000.0 + step, "loss": step % 7}) + "\n"
            file.write(line)
            other.write(line)
    window = QUESTIONS["window"](paths, {"first": 9_000, "last": 9_999})
    assert window["series"]["step"] == list(range(9_000, 10_000))
    assert max(window["series"]["loss"]) == 6.0
    whole = QUESTIONS["window"](paths, {"first": 1, "last": 12_000})
    assert len(whole["series"]["step"]) <= 1600
    assert max(whole["series"]["loss_max"]) == 6.0
    assert QUESTIONS["window"](paths, {"first": 1, "last": 10**6}) is None  # the view has it
    paths.run.write_text(json.dumps(run_document(1000)))  # each of them has lines to read
    assert QUESTIONS["window"](paths, {"first": 1, "last": 12_000}) is None


def test_a_window_of_steps_done_again_has_the_last_pass_of_all_curves(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss was the second pass's, what was logged by name the first one's."""
    last, again = 6_000, 2_001
    passes = [range(1, last + 1), range(again, last + 1)]
    metrics, said = list[str](), list[str]()
    for number, steps in enumerate(passes, start=1):
        metrics += [f'{{"step": {at}, "time": {at}.0, "loss": {number}}}' for at in steps]
        text = "n" * 1000  # so that the first pass alone is several readings
        said += [f'{{"time": 1.0, "step": {at}, "acc": {number}, "t": "{text}"}}' for at in steps]
    mark = {"step": again, "rewound_from": last, "time": float(again)}
    metrics[last] = json.dumps({**mark, "loss": 2})
    paths.run.write_text(json.dumps(run_document(1)))
    paths.rank_metrics(0).write_text("\n".join([*metrics, ""]))
    paths.rank_rewinds(0).write_text(json.dumps(mark) + "\n")
    paths.rank_said(0).write_text("\n".join([*said, ""]))
    shown = curve_window.curve_window(paths, 2_100, 2_150)
    assert shown is not None
    assert set(shown["series"]["loss"]) == {2}
    assert set(shown["logged"]["series"][0]["mean"]) == {2}
    monkeypatch.setattr(curve_window, "_MOST_BYTES", 1 << 10)
    assert curve_window.curve_window(paths, 2_100, 2_150) is None  # all of it would be read


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 8), (4, 2)])
def test_memory_of_one_node_is_beside_the_prediction_of_its_own_ranks(
    tmp_path: Path, nodes: int, ranks: int
) -> None:
    series = {"time": [0, 4], "run_rss_bytes": [3e9, 4e9]}
    view = {
        "device": "cpu",
        "started_at": 0,
        "nodes": nodes,
        "processes": 8,
        "world_size": 8,
        "predicted": {"memory": {"total_bytes": 1e9}},
        "host": {"series": series},
    }
    cards = [
        {"id": f"gpu{at}", "series": {"time": [0, 4], "memory_bytes": [5e8, 6e8]}} for at in "01"
    ]
    script = f"""
        import {{ memory }} from "./device_traces.js";
        {OPTIONS}
        const view = {json.dumps(view)};
        const seen = (one) => {{
          const {{traces, chips}} = memory(one, options);
          return {{y: traces.at(-1).y[0] / traces[0].y.at(-1), chips: chips.map((chip) => chip.text)}};
        }};
        console.log(JSON.stringify({{cpu: seen(view), gpu: seen({{...view, device: "cuda", devices: {json.dumps(cards)}}})}}));
    """
    seen = run(tmp_path, script)
    assert seen["cpu"]["y"] == pytest.approx(ranks / 4)  # predicted of its ranks / measured 4 GB
    assert seen["gpu"]["y"] == pytest.approx(1 / 0.6)  # one rank's beside each device
    assert seen["cpu"]["chips"][0] == "whole run, launcher included"
    assert (f"node 0 of {nodes}" in seen["cpu"]["chips"]) == (nodes > 1)
    assert seen["cpu"]["chips"][-1].startswith("ranks of node 0," if nodes > 1 else "ranks,")


_ZOOMING = """
const { Curves } = await import("./curves.js");
const time = { now: 1_000_000 };
Date.now = () => time.now;
const asked = [], answers = { at: 0 };
const rows = (first, last, every) => {
  const step = [];
  for (let at = first; at <= last; at += every) step.push(at);
  return { step, time: step, loss: step, grad_norm: step.map((at) => at / 1000) };
};
const logged = (series) => ({ tables: [{ stride: 1, step: series.step, time: series.step }], series: [
  { name: "acc", figure: "acc", table: 0, mean: series.step, last: series.step.at(-1), last_step: series.step.at(-1), nonfinite: 0 }] });
const window = async (first, last) => {
  asked.push(`${first} to ${last}`);
  const series = rows(first, Math.min(last, answers.at), 1);
  return { series, stride: 1, logged: logged(series) };
};
const source = { questions: { window }, context: { config: {} } };
const curves = new Curves({ smoothing: 0 }, source, () => draw());
let view = null;
const look = (steps, more = {}) => {
  answers.at = steps;
  const series = rows(10, steps, 10);
  view = { phase: "running", run: "r", steps, stride: 10, attempt: 1, loss_last: steps, series, logged: logged(series), ...more };
  draw();
};
const theme = { series: ["#000"], accent: "rgb(1, 2, 3)", muted: "#999", bad: "#900" };
const draw = () => curves.draw(view, theme, null, false);
const seen = {};
const { Panel } = await import("./panel.js");
Panel.prototype.draw = function ({ value, label, traces }) {
  seen[this.title] = { value, label, x: traces[0]?.x ?? [] };
};
"""


def test_a_zoomed_panel_says_what_the_run_is_at_now(tmp_path: Path) -> None:
    """The gradient norm of step 500 stood there as today's while it had exploded since."""
    told = on_page(
        tmp_path,
        _ZOOMING
        + """
        look(5000);
        for (const curve of [...curves.own, ...curves.logged.values()]) curves.zoom(curve, [100, 500]);
        await settled();
        look(5010);
        await settled();
        tell(seen);""",
    )
    for title in ("Loss", "Gradient norm", "acc"):
        assert told[title]["x"][0] == 100, title
        assert told[title]["x"][-1] == 500, title
    assert told["Loss"]["value"] == "5,010"
    assert told["Gradient norm"]["value"] == "5.01"
    assert told["Gradient norm"]["label"] == "Gradient norm: 5.01"
    assert told["acc"]["value"] == "5,010"
    assert told["acc"]["label"] == "acc: acc 5,010 at step 5010"


def test_a_part_that_still_grows_is_read_again_now_and_then(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        _ZOOMING
        + """
        const ends = [], counts = [];
        const after = async (seconds, steps, more) => {
          time.now += 1000 * seconds;
          look(steps, more);
          await settled();
          ends.push(seen.Loss.x.at(-1));
          counts.push(asked.length);
        };
        look(5020);
        const [loss] = curves.own;
        curves.zoom(loss, [4500, 6000]);
        await settled();
        await after(1, 5030); // too soon
        await after(60, 5500);
        await after(60, 6500); // as far as it was zoomed
        await after(60, 7000); // nothing is new in it
        await after(60, 5200, { attempt: 2 }); // these steps are made again
        curves.zoom(loss, null);
        await after(60, 8000);
        tell({ ends, counts, first: asked[0] });""",
    )
    assert told["ends"] == [5020, 5500, 6000, 6000, 5200, 8000]
    assert told["counts"] == [1, 2, 3, 3, 4, 4]
    assert told["first"] == "4500 to 6000"


def test_a_part_is_read_in_full_once_the_view_no_longer_is(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        _ZOOMING
        + """
        look(400, { stride: 1, logged: {} });
        curves.zoom(curves.own[0], [100, 200]);
        await settled();
        const before = [...asked];
        look(5000);
        await settled();
        tell({ before, asked, x: seen.Loss.x.length });""",
    )
    assert told == {"before": [], "asked": ["100 to 200"], "x": 101}


def test_a_panel_without_points_hides_what_an_earlier_attempt_left(tmp_path: Path) -> None:
    """A run that began again showed the curves of its first attempt below "Waiting"."""
    told = on_page(
        tmp_path,
        """
        const { Panel } = await import("./panel.js");
        const painted = [];
        const Plotly = { react: (plot, data) => painted.push(data[0].x.length) };
        const panel = new Panel("Loss");
        panel.plot.on = () => {};
        Object.assign(panel.plot, { clientWidth: 300, clientHeight: 200 });
        const theme = { muted: "#999", grid: "#eee", surface: "#fff", ink: "#000", font: "sans" };
        const shown = (x) => {
          panel.draw({ value: "", label: "", traces: [{ x, y: x }] }, theme, Plotly);
          return [panel.plot.style.visibility, panel.empty.hidden];
        };
        const seen = [shown([1, 2]), shown([]), shown([1])];
        panel.inSight = false;
        shown([1, 2, 3]);
        shown([]);
        panel.inSight = true;
        panel.paint();
        tell([seen, painted]);""",
    )
    assert told == [[["", True], ["hidden", False], ["", True]], [2, 1]]


def test_a_zoom_that_is_reset_leaves_outliers_cut_off(tmp_path: Path) -> None:
    """The axis went back to all points below a button that said "Clip outliers"."""
    told = on_page(
        tmp_path,
        """
        const { Panel } = await import("./panel.js");
        const asked = [];
        const Plotly = { react() {}, relayout: (_, change) => asked.push(change) };
        const panel = new Panel("Loss");
        panel.plot.on = () => {};
        Object.assign(panel.plot, { clientWidth: 300, clientHeight: 200 });
        const theme = { muted: "#999", grid: "#eee", surface: "#fff", ink: "#000", font: "sans" };
        for (const yaxis of [{ range: [1, 2] }, {}]) {
          panel.draw({ value: "", label: "", traces: [{ x: [1], y: [1] }], layout: { yaxis } }, theme, Plotly);
          panel.reset.emit("click");
        }
        tell(asked);""",
    )
    assert told == [
        {"xaxis.autorange": True, "yaxis.range": [1, 2]},
        {"xaxis.autorange": True, "yaxis.autorange": True},
    ]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """One of them has no price: both were said to have none, under the same name."""
    told = on_page(
        tmp_path,
        """
        globalThis.ResizeObserver = class { observe() {} disconnect() {} };
        globalThis.MutationObserver = globalThis.ResizeObserver;
        globalThis.matchMedia = () => new Node("media");
        globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#123456" });
        document.body = new Node("body");
        const { Panel } = await import("./panel.js");
        let drawn = null;
        Panel.prototype.draw = (drawing) => (drawn = drawing);
        const { toldApart } = await import("./compare.js");
        const { Overlay } = await import("./overlay.js");
        const overlay = new Overlay({ plotly: async () => ({}) }, { title: "Loss", empty: "" });
        overlay.node.isConnected = true;
        overlay.axis = { column: "usd", name: "Dollars", title: "dollars" };
        const curve = (run, name, usd) => ({ run, name, usd, step: [1], tokens: [1], seconds: [1], loss: [2] });
        await overlay.draw(toldApart([curve("gpt-1", "gpt", [1]), curve("gpt-2", "gpt", [null]), curve("b", "other", [1]), curve("c", "c", [1])]));
        const [chips, label] = [drawn.chips.map((one) => one.text), drawn.label];
        const five = [1, 2, 3, 4, 5];
        await overlay.draw([{ ...curve("a", "a", five), step: five, loss: five }], "eval/acc");
        tell([chips, label, drawn.chips[0].text]);""",
    )
    chips, label, evaluated = told
    assert evaluated == "a  5"  # not a mean with the evaluations before
    assert chips == ["gpt-1  2", "gpt-2  no dollars", "other  2", "c  2"]
    assert label.endswith("Unknown along dollars: gpt-2.")


def test_the_rank_timeline_is_saved_with_its_times(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """
        const { csvOf } = await import("./curve_options.js");
        const { waiting } = await import("./timeline.js");
        document.createElement = () => ({ getContext: () => null });
        const theme = { series: ["rgb(1, 1, 1)", "rgb(2, 2, 2)"], muted: "rgb(9, 9, 9)", grid: "rgb(8, 8, 8)" };
        const ranks = [{ rank: 0, entered: [0.5], ended: [0.75] }, { rank: 1, entered: [0], ended: [0.75], data: [0.25] }];
        const drawing = waiting({ processes: 2, timeline: { step: [7], ranks } }, { theme });
        console.log(JSON.stringify(csvOf(drawing).trim().split("\\n")));""",
    )
    assert told[0].startswith('"optimizer step","rank","entered backward, s"')
    assert told[1:] == ["7,0,0.5,0.5,0.75,", "7,1,0,0.5,0.75,0.25"]


def test_a_window_read_from_the_file_has_the_steps_whose_loss_is_no_number(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "loss": NaN}',
        '{"step": 2, "loss": -Infinity}',
        '{"step": 3, "loss": -1}',
    ]
    text = json.dumps("\n".join(["cut", *lines, "cut"]))
    script = f"""
        import {{ rows }} from "./metric_window.js";
        console.log(JSON.stringify(rows({text})));
    """
    assert [line["loss"] for line in run(tmp_path, script)] == [None, None, -1]


def test_a_part_that_nobody_answered_for_is_asked_for_again(tmp_path: Path) -> None:
    """A busy kernel answered no more: the ended run's zoom stayed coarse."""
    told = on_page(
        tmp_path,
        _ZOOMING
        + """
        const answer = source.questions.window;
        source.questions.window = async (...part) => (await answer(...part), null);
        look(5000, { phase: "ended" });
        curves.zoom(curves.own[0], [100, 200]);
        await settled();
        const lengths = [];
        for (const seconds of [10, 31]) {
          source.questions.window = answer;
          time.now += 1000 * seconds;
          look(5000, { phase: "ended" });
          await settled();
          lengths.push(seen.Loss.x.length);
        }
        tell({ asked: asked.length, lengths });""",
    )
    assert told == {"asked": 2, "lengths": [500, 101]}


def test_a_figure_that_goes_gives_back_what_it_held(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        _ZOOMING
        + """
        const closed = [];
        Panel.prototype.close = function (Plotly) { closed.push([this.title, Plotly]); };
        Node.prototype.remove = function () {};
        look(100);
        look(200, { logged: {} });
        tell(closed);""",
    )
    assert told == [["acc", None]]


def test_a_closed_comparison_reads_no_more(tmp_path: Path) -> None:
    """It was closed in the middle of a look, and looked every three seconds for ever."""
    told = on_page(
        tmp_path,
        """
        globalThis.ResizeObserver = class { observe() {} disconnect() {} };
        globalThis.MutationObserver = globalThis.ResizeObserver;
        globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#123456" });
        document.body = new Node("body");
        const { Comparison } = await import("./compare.js");
        let [looks, timers] = [0, 0];
        globalThis.window = { setTimeout: () => (timers += 1) };
        globalThis.fetch = async () => (await settled(), looks += 1, { ok: true, json: async () => ({ run: "a", series: {} }) });
        const context = { config: { store_path: "" }, url: (path) => path, plotly: async () => ({}), model: null };
        const comparison = new Comparison(context);
        const shown = comparison.show([{ run: "a", outcome: null }, { run: "b", outcome: null }]);
        comparison.close();
        await shown;
        tell({ looks, timers });""",
    )
    assert told == {"looks": 2, "timers": 0}

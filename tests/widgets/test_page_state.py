"""What the page makes of a run's state and of its buttons, by its own modules, without a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from workbench_widgets import assets

import workbench as wb
from workbench.launching.start import start
from workbench.store.layout import RunPaths
from workbench.store.status import HEARTBEAT_FRESH_SECONDS
from workbench.units import format_usd

NODE = shutil.which("node")
_DOM = """
globalThis.window = globalThis;
globalThis.document = { createElement: () => ({
  dataset: {}, style: {}, classList: { add() {} }, append() {}, setAttribute() {},
  addEventListener() {}, focus() {} }) };
"""


def run(folder: Path, script: str) -> Any:
    """What `script`, a module beside ours, prints as JSON."""
    if NODE is None:
        pytest.skip("needs node, which runs the page's modules")
    for name, text in assets.modules().items():
        (folder / name).write_text(text)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "test.js").write_text(_DOM + script)
    done = subprocess.run(
        [str(NODE), str(folder / "test.js")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def states(folder: Path, *cases: tuple[dict[str, Any], float | None, str, str, str | None]) -> Any:
    given = [
        {
            "view": {"run": "r-1", **view},
            "age": age,
            "link": {"transport": transport, "kernel": kernel},
            "status": status
            and {
                "state": status,
                "outcome": None,
                "message": f"It is {status}.",
                "ageSeconds": 0.5,
            },
        }
        for view, age, transport, kernel, status in cases
    ]
    return run(
        folder,
        f"""const {{ runState }} = await import("./state.js");
        const given = {json.dumps(given)};
        console.log(JSON.stringify(given.map((one) => runState(one.view, one.age, one.link, one.status))));
        """,
    )


def test_the_state_comes_from_the_files_and_a_dead_link_is_named(tmp_path: Path) -> None:
    running = {"phase": "running"}
    ended = {"phase": "ended", "outcome": "failed"}
    gone = HEARTBEAT_FRESH_SECONDS
    found = states(
        tmp_path,
        (running, 1.0, "http", "answers", None),
        (running, gone + 1, "http", "none", None),
        (running, 15.0, "http", "none", None),
        (running, 15.0, "http", "answers", "interrupted"),
        (running, 15.0, "http", "answers", "unsupervised"),
        (running, gone + 1, "http", "answers", "running"),
        (running, 15.0, "comm", "gone", None),
        (running, 15.0, "comm", "silent", None),
        (ended, 9999.0, "comm", "gone", None),
        (running, None, "http", "none", None),
    )
    texts = [one["badge"]["text"] for one in found]
    assert texts == [
        *("Running", "Not supervised", "Running", "Interrupted", "Not supervised"),
        *("Running", "Not connected", "Not connected", "Failed", "Running"),
    ]
    # Time left is told, and an ordinary Stop obeyed, only while someone watches.
    followed = [one["followed"] for one in found]
    assert followed == [True, False, True, False, False, True, False, False, False, True]
    assert "workbench show r-1" in found[1]["sentence"]
    assert found[3]["sentence"] == "It is interrupted."
    assert found[3]["ended"]
    assert "kernel" in found[6]["sentence"]
    assert "Run the cell again" in found[6]["sentence"]
    assert "upervisor" not in found[6]["sentence"]  # it may be well: only the link died
    assert found[8]["sentence"] == ""


def test_stop_is_graceful_again_in_the_next_attempt(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """const { StopButton } = await import("./stop_button.js");
        const asked = [];
        const button = new StopButton(async (now) => void asked.push(now));
        const stop = async (phase, attempt) => {
          button.phase(phase, attempt);
          await button.press();
          await button.press();
        };
        await stop("running", 1);
        await stop("stopping", 1); // pressed again: at once
        button.phase("ended", 1);
        button.phase("starting", 2); // resumed here
        await stop("running", 2);
        await stop("running", 3); // resumed elsewhere, its end was never seen
        console.log(JSON.stringify(asked));
        """,
    )
    assert told == [False, True, False, False]


def test_a_question_about_the_graceful_stop_does_not_stop_at_once(tmp_path: Path) -> None:
    requests = run(
        tmp_path,
        """const { StopButton } = await import("./stop_button.js");
        const requests = [];
        const button = new StopButton(async (now) => void requests.push(now));
        button.phase("running", 1);
        await button.press(); // "Press again: stop"
        button.phase("stopping", 1); // somebody else has stopped it: the button means "Stop now"
        await button.press();
        const label = button.button.textContent;
        await button.press();
        console.log(JSON.stringify({ label, requests }));
        """,
    )
    assert requests == {"label": "Press again: stop now", "requests": [True]}


def test_resume_is_refused_with_the_answer_of_the_run(tmp_path: Path) -> None:
    ended = {"phase": "ended", "outcome": "stopped"}
    views = [
        {**ended, "why_not_resumable": ""},
        {**ended, "why_not_resumable": "train.py has no option that is known."},
        ended,  # written by an earlier version
        {"phase": "running", "why_not_resumable": None},
    ]
    said = run(
        tmp_path,
        f"""const {{ whyNot }} = await import("./resume.js");
        console.log(JSON.stringify({json.dumps(views)}.map((view) => whyNot(view, false, true))));
        """,
    )
    assert said == [
        "",
        "train.py has no option that is known.",
        "",
        "This run is still running. Stop it first.",
    ]


def test_small_sums_keep_digits_as_python_says_them(tmp_path: Path) -> None:
    sums = [0, 0.0000312, 0.004, 0.00999, 0.5, 12.5]
    found = run(
        tmp_path,
        f"""const {{ usd }} = await import("./format.js");
        console.log(JSON.stringify({json.dumps(sums)}.map(usd)));""",
    )
    assert found == [format_usd(one) for one in sums]


@pytest.mark.parametrize(("devices", "rows", "left"), [(8, 8, 0), (16, 16, 0), (64, 16, 48)])
def test_readings_of_many_devices_stand_outside_the_chart(
    tmp_path: Path, devices: int, rows: int, left: int
) -> None:
    gpus = [
        {"id": f"gpu{at}", "series": {"time": [0, 1], "util": [0, (37 * at) % devices]}}
        for at in range(devices)
    ]
    view = {"device": "cuda", "started_at": 0, "devices": gpus}
    found = run(
        tmp_path,
        f"""const {{ utilisation }} = await import("./device_traces.js");
        const {{ shown }} = await import("./readings.js");
        const theme = {{ series: ["#000"] }};
        const drawing = utilisation({json.dumps(view)}, {{ theme }});
        const all = drawing.traces.map((one) => ({{ name: one.name, value: one.y[1] }}));
        console.log(JSON.stringify({{ ...shown(all), at: drawing.readings(1),
          hover: [...new Set(drawing.traces.map((one) => one.hoverinfo))] }}));""",
    )
    assert (len(found["rows"]), found["left"], found["at"]) == (rows, left, "1 s")
    assert found["hover"] == ["none"]  # no label that plotly.js would cut at the chart's edge
    values = {one["value"] for one in found["rows"]}
    assert {0, devices - 1} <= values  # whoever stands out is named
    assert found["rows"][0]["name"] == "gpu0"


def test_a_full_stop_stays_with_the_option_before_it(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        """const { options } = await import("./memory_rows.js");
        const texts = options("Best remedy: offload (--offload optimizer).");
        console.log(JSON.stringify(texts.filter((one) => typeof one === "string" && one)));""",
    )
    assert found == ["Best remedy: offload "]


# Elements that keep what they are given; enough for the modules that draw text.
_ELEMENTS = """
class Node {
  constructor(tag) { Object.assign(this, { tag, children: [], attributes: {}, dataset: {}, style: {}, hidden: false, text: "" }); }
  append(...more) { this.children.push(...more); }
  replaceChildren(...more) { this.children = more; }
  setAttribute(name, value) { this.attributes[name] = value; if (name === "hidden") this.hidden = true; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener() {}
  before() {}
  after() {}
  querySelectorAll() { return []; }
  get classList() { return { add() {}, remove() {}, toggle() {} }; }
  get textContent() { return this.text; }
  set textContent(text) { this.text = text; }
}
globalThis.document = { createElement: (tag) => new Node(tag) };
"""


def test_a_failure_is_told_once_and_shows_its_traceback(tmp_path: Path) -> None:
    """Row 38: banner, alarm and panel each told it, and the traceback was in the log alone."""
    cause = "Rank 1 ended with ValueError: no such label."
    finding = {"kind": "crash", "severity": "error", "cause": cause, "cleared_at": None}
    other = {"kind": "straggler", "severity": "warning", "cause": "Rank 0 is slow.", "rank": 0}
    told = run(
        tmp_path,
        f"""{_ELEMENTS}
        const {{ Header }} = await import("./header.js");
        const actions = {{ stop() {{}}, resume() {{}}, show() {{}}, profile() {{}}, kernel: () => true }};
        const header = new Header("r-1", actions);
        const now = {{ sentence: "", ended: true, silent: false }};
        const end = {{ message: {json.dumps(cause)}, failed_rank: 1, processes_left: 0,
                       traceback: "Traceback …\\nValueError: no such label" }};
        const seen = (findings) => {{
          header.drawBanner({{ outcome: "failed", findings, ...end }}, now);
          return [header.banner.text, header.alarm.node.hidden, header.alarm.text.text,
                  header.traceback.hidden, header.traceOf.text, header.trace.text];
        }};
        const [one, two] = [{json.dumps(finding)}, {json.dumps(other)}];
        const found = [seen([one]), seen([one, two])];
        header.drawBanner({{ outcome: null, findings: [] }}, now);
        found.push([header.traceback.hidden, header.trace.text]);
        console.log(JSON.stringify(found));""",
    )
    (banner, alarm_hidden, _, hidden, whose, trace), (_, second_hidden, alarm, *_), none = told
    assert banner == f"{cause}\nNo process of the run remains."
    assert alarm_hidden  # the banner has said it
    assert (hidden, whose) == (False, "Traceback of rank 1")
    assert trace.endswith("ValueError: no such label")
    assert not second_hidden
    assert alarm == "Warning, Straggler: Rank 0 is slow."
    assert none == [True, ""]


@pytest.mark.parametrize(
    ("phase", "value"),
    [("running", "this run 0 %, host 10 %"), ("ended", "this run 40 %, host 90 % (median)")],
)
def test_the_utilisation_of_an_ended_run_is_not_its_last_sample(
    tmp_path: Path, phase: str, value: str
) -> None:
    series = {"time": [0, 1, 2], "cpu_percent": [90, 95, 10], "run_cpu_percent": [80, 90, 0]}
    host = {"cores": 2, "series": series}
    view = {"device": "cpu", "phase": phase, "started_at": 0, "devices": [], "host": host}
    shown = run(
        tmp_path,
        f"""const {{ utilisation }} = await import("./device_traces.js");
        const drawing = utilisation({json.dumps(view)}, {{ theme: {{ series: ["#000", "#111"] }} }});
        console.log(JSON.stringify(drawing.value));""",
    )
    assert shown == value


def test_a_run_whose_name_is_its_id_is_named_once_on_the_page(tmp_path: Path) -> None:
    shown = run(
        tmp_path,
        f"""{_ELEMENTS}
        const {{ Header }} = await import("./header.js");
        const actions = {{ stop() {{}}, resume() {{}}, show() {{}}, profile() {{}}, kernel: () => true }};
        const detail = (name) => {{
          const header = new Header("r-1", actions);
          const view = {{ run: "r-1", name, strategy: "ddp", processes: 2, device: "cpu", findings: [] }};
          try {{
            header.draw(view, 0, {{ badge: {{ state: "", text: "" }}, phase: "running" }});
          }} catch {{ /* what comes after the detail needs a whole page */ }}
          return header.detail.text;
        }};
        console.log(JSON.stringify([detail("r-1"), detail("mine")]));""",
    )
    assert shown == ["ddp  ·  2 processes  ·  CPU", "ddp  ·  2 processes  ·  CPU  ·  r-1"]


def test_fields_of_the_dark_theme_are_drawn_dark() -> None:
    """Row 35: placeholders looked typed, and the arrows of selects were black on black."""
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", assets._css())
    styles = [(" ".join(where.split()), style) for where, style in rules]
    dark = '[data-jp-theme-light="false"]'
    fields = ":is(.wb-root, .wb-form) :is(input, select, textarea)"
    assert any(f"{dark} {fields}" in where and "color-scheme: dark" in how for where, how in styles)
    (placeholder,) = (how for where, how in styles if where.endswith("::placeholder"))
    assert "color: var(--wb-muted)" in placeholder
    assert "font-style: italic" in placeholder
    (muted,) = re.findall(r"--wb-muted:\s*([^;]+);", assets._css())
    assert "--jp-ui-font-color2" in muted  # the theme's own
    selects = [how for where, how in styles if where.endswith(".widget-dropdown select")]
    assert any("appearance: auto" in how and "var(--wb-ink)" in how for how in selects)


def test_words_are_never_broken_in_their_middle_and_a_hint_that_is_empty_takes_no_line() -> None:
    """Row 39: "interruption/s" was cut in two, and a lone full stop stood below a field."""
    styles = "\n".join(assets.modules().values()) + assets._css()
    assert "word-break: break-all" not in styles
    bill = re.search(r"\.wbc-bill :is\(th, td\):nth-child\(3\) \{([^}]*)\}", styles)
    assert bill is not None
    assert "overflow-wrap: break-word" in bill[1]
    assert re.search(r"\.wb-hint:empty \{ display: none", styles)


def test_no_checkpoint_yet_is_said_of_a_living_run_only(tmp_path: Path) -> None:
    """Row 39: "No checkpoint yet" stood there after the end."""
    source = assets.modules()["checkpoints.js"]
    name = re.search(r"export class (\w+)", source)
    assert name is not None
    told = run(
        tmp_path,
        f"""{_ELEMENTS}
        const {{ {name[1]}: Panel }} = await import("./checkpoints.js");
        const panel = new Panel(() => {{}});
        const seen = ["running", "ended"].map((phase) => {{
          panel.draw({{ phase, checkpoints: [] }});
          return panel.note.text;
        }});
        console.log(JSON.stringify(seen));""",
    )
    assert told == ["No checkpoint yet", "No checkpoint saved"]


def test_a_rehearsed_checkpoint_is_not_offered(tmp_path: Path) -> None:
    shown = run(
        tmp_path,
        f"""{_ELEMENTS}
        const {{ Checkpoints }} = await import("./checkpoints.js");
        const panel = new Checkpoints(() => {{}});
        const saved = (kind) => ({{ step: 5, name: kind, path: null, bytes: null, saved_at: 1, kind, sealed: false, problem: "" }});
        panel.draw({{ phase: "running", checkpoints: [saved("rehearsed"), saved("accelerate")] }});
        const lines = [...panel.lines.values()];
        console.log(JSON.stringify(lines.map((line) => [line.mark.text, line.button.node.hidden])));""",
    )
    assert shown == [["not written", True], ["not yet", False]]


def test_a_page_finds_a_view_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 37: each launch left a red 404 in the browser's console until the supervisor wrote one."""
    seen = list[dict[str, Any]]()

    def spawn(paths: RunPaths, _order: object) -> None:
        seen.append(json.loads(paths.view.read_text()))

    monkeypatch.setattr(start, "spawn_supervisor", spawn)
    script = tmp_path / "train.py"
    script.write_text("")
    run = wb.launch(script, cpu=True, processes=1, store=tmp_path / "runs")
    (view,) = seen
    assert (view["run"], view["phase"]) == (run.id, "starting")
    assert run.view()["written_at"] is None  # its age is not told: no one has looked yet
    if NODE is not None:
        (waiting,) = states(tmp_path, (view, None, "http", "none", None))
        assert waiting["badge"]["text"] == "Starting"
        assert waiting["sentence"] == ""


_FOLLOWING = """
globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };
const { RunSource } = await import("./source.js");
const requests = [], waits = [], sent = [], heard = {}, snapshots = [];
let files = {};
globalThis.setTimeout = (call, delay) => (waits.push(delay), 0);
globalThis.fetch = async (url) => {
  const name = url.split("/").at(-1);
  requests.push(name);
  const headers = new Map([["Date", new Date(files.now * 1000).toUTCString()]]);
  if (!files[name]) return { ok: false, status: 404, headers };
  return { ok: true, headers, json: async () => structuredClone(files[name]), text: async () => JSON.stringify(files[name]) };
};
const follow = (transport) => {
  const model = { on: (name, call) => (heard[name] = call), off() {}, send: (one) => sent.push(one.type) };
  const config = { run: "r-1", run_path: "r-1", transport, refresh_ms: 700 };
  const context = { config, model, connected: () => true, url: (path) => `/files/${path}` };
  return new RunSource(context, (one) => snapshots.push(one), () => {});
};
"""


def test_a_page_asks_for_no_file_that_is_not_there_while_a_run_ends_and_is_resumed(
    tmp_path: Path,
) -> None:
    """Each was a red line in the browser's console: 21 of exit.json during one resume."""
    seen = run(
        tmp_path,
        f"""{_FOLLOWING}
        const run = {{ run: "r-1" }}, end = {{ outcome: "failed", processes_left: 0, traceback: "T" }};
        const source = follow("auto");
        const look = async (view) => {{
          files = {{ now: 100, "run.json": run, "view.json": {{ written_at: 99, ...view }} }};
          requests.length = waits.length = 0;
          await source.poll();
          const {{ view: shown }} = snapshots.at(-1);
          return {{ asked: [...requests], wait: waits.at(-1), traceback: shown.traceback ?? null }};
        }};
        files = {{ now: 100, "run.json": run, "view.json": {{ phase: "running" }} }};
        await source.start();
        const found = {{ running: await look({{ phase: "running" }}),
          ended: await look({{ phase: "ended", ...end }}),
          resumed: await look({{ phase: "starting", processes_left: null, traceback: null }}) }};
        console.log(JSON.stringify({{ ...found, transport: source.transport }}));
        """,
    )
    running, ended, resumed = seen["running"], seen["ended"], seen["resumed"]
    assert seen["transport"] == "http"
    assert running["asked"] == ended["asked"] == resumed["asked"] == ["view.json"]
    assert (ended["traceback"], resumed["traceback"]) == ("T", None)
    # An ended run is looked at again, though seldom: someone may resume it in a terminal.
    assert running["wait"] == resumed["wait"] == 700
    assert ended["wait"] == 15_000


def test_a_run_without_a_view_is_asked_for_once_while_curves_are_compared(tmp_path: Path) -> None:
    """A job that waits in a queue has none; the comparison looks every few seconds."""
    seen = run(
        tmp_path,
        f"""{_FOLLOWING}
        const {{ Comparison }} = await import("./compare.js");
        const model = {{ on() {{}}, off() {{}}, send: ({{ type, run }}) => sent.push(`${{type}} ${{run}}`) }};
        const context = {{ config: {{ store_path: "" }}, model, url: (path) => `/files/${{path}}` }};
        const look = {{ rows: [], views: new Map(), unserved: new Set(), context }};
        for (const _ of [1, 2, 3]) await Comparison.prototype.load.call(look, "queued");
        console.log(JSON.stringify([requests, sent]));
        """,
    )
    assert seen == [["view.json"], ["series queued"] * 3]


def test_a_run_of_an_earlier_version_tells_its_end_in_a_file_of_its_own(tmp_path: Path) -> None:
    seen = run(
        tmp_path,
        f"""{_FOLLOWING}
        const source = follow("auto");
        source.transport = "http";
        files = {{ now: 100, "view.json": {{ phase: "ended" }}, "exit.json": {{ traceback: "T" }} }};
        await source.poll();
        console.log(JSON.stringify([requests, snapshots.at(-1).view.traceback]));
        """,
    )
    assert seen == [["view.json", "exit.json"], "T"]


def test_over_the_comm_an_ended_run_is_asked_about_and_followed_again(tmp_path: Path) -> None:
    seen = run(
        tmp_path,
        f"""{_FOLLOWING}
        const source = follow("comm");
        await source.start();
        const told = (message) => heard["msg:custom"](message);
        told({{ type: "snapshot", view: {{ phase: "ended" }}, age_seconds: 100 }});
        const asks = source.needsStatus(false);
        source.askStatus();
        told({{ type: "status", state: "ended", outcome: "failed" }});
        const before = [...sent];
        source.lastStatus.at = 0;
        source.askStatus();
        told({{ type: "status", state: "running", outcome: null }});
        console.log(JSON.stringify({{ asks, before, after: sent.slice(before.length) }}));
        """,
    )
    assert seen == {
        "asks": True,
        "before": ["subscribe", "status"],
        "after": ["status", "subscribe"],
    }


def test_a_lost_kernel_is_said_where_ipywidgets_marks_the_view_around_the_face(
    tmp_path: Path,
) -> None:
    """What anywidget draws into lies inside of the view that has the mark."""
    (tmp_path / "loader.js").write_text(assets.LOADER.read_text())
    said = run(
        tmp_path,
        """
        const { default: face } = await import("./loader.js");
        const heard = {}, said = [];
        let marked = false;
        const el = {
          dataset: {}, parentElement: null, classList: { contains: () => false }, append() {},
          prepend: (node) => said.push(node), querySelectorAll: () => [],
          closest: (selector) => (marked && selector === ".jupyter-widgets-disconnected" ? {} : null),
        };
        const config = { instance: "1", face: "none.js" };
        const model = { get: () => config, on: (name, call) => (heard[name] = call), send() {} };
        face.render({ model, el }).catch(() => {});
        const after = async () => { heard.comm_live_update(); await new Promise((done) => setTimeout(done, 5)); return said.length; };
        const before = await after();
        marked = true;
        console.log(JSON.stringify([before, await after()]));
        process.exit(0);
        """,
    )
    assert said == [0, 1]


def test_a_page_says_that_it_is_there_while_somebody_may_look(tmp_path: Path) -> None:
    (tmp_path / "loader.js").write_text(assets.LOADER.read_text())
    said = run(
        tmp_path,
        """
        const { default: face } = await import("./loader.js");
        const heard = {}, sent = [];
        const el = { dataset: {}, append() {}, closest: () => null };
        const model = { get: () => ({ face: "none.js" }), on: (name, call) => (heard[name] = call), off() {},
          send: ({ type }) => type === "here" && sent.push(type) };
        face.render({ model, el }).catch(() => {});
        let now = Date.now();
        Date.now = () => now;
        const after = (seconds, hidden) => { now += 1000 * seconds; document.hidden = hidden; heard.change(); return sent.length; };
        console.log(JSON.stringify([sent.length, after(1, false), after(10, true), after(1, false)]));
        process.exit(0);
        """,
    )
    assert said == [1, 1, 1, 2]


def test_the_note_above_the_runs_tells_what_the_table_leaves_out(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """const { noteOf } = await import("./runs.js");
        console.log(JSON.stringify([
          noteOf(null, 0, 0), noteOf(0, 0, 0), noteOf(1, 1, 0), noteOf(2, 2, 1), noteOf(200, 10000, 0)]));""",
    )
    assert told == [
        "Reading the store …",
        "No runs in this store yet: launch one, and it is listed here",
        "",
        "Select another run to compare losses",
        "200 of 10,000 runs; workbench runs lists all. Select runs to compare losses",
    ]


def test_runs_of_one_name_are_called_by_their_ids(tmp_path: Path) -> None:
    names = [
        *(
            ("gpt", "gpt"),
            ("gpt-2", "gpt"),
            ("Mein-Lauf", "Mein Lauf"),
            ("Mein-Lauf-2", "Mein Lauf"),
        ),
        *(("other-3", "other"), ("first-try", "first try"), ("b", "first-try")),
    ]
    rows = [{"run": run_id, "name": name} for run_id, name in names]
    called = run(
        tmp_path,
        f"""const {{ withNames }} = await import("./run_words.js");
        console.log(JSON.stringify(withNames({json.dumps(rows)}).map((row) => row.called)));""",
    )
    assert called == ["gpt", "gpt-2", "Mein-Lauf", "Mein-Lauf-2", "other-3", "first try", "b"]


def test_a_loss_that_is_no_number_is_said_wherever_the_last_one_stands(tmp_path: Path) -> None:
    view = {"steps": 600, "loss_last": 2.7236634750825267e17, "nonfinite_step": 403}
    said = run(
        tmp_path,
        f"""{_ELEMENTS}
        const {{ Header }} = await import("./header.js");
        const {{ loss }} = await import("./traces.js");
        const {{ lines }} = await import("./compare_table.js");
        const {{ lossText }} = await import("./run_words.js");
        const actions = {{ stop() {{}}, resume() {{}}, show() {{}}, profile() {{}}, kernel: () => true }};
        const view = {json.dumps(view)}, healthy = {{ ...view, nonfinite_step: null }};
        const facts = (view) => {{
          const header = new Header("r-1", actions);
          const children = [0, 1, 2, 3].map(() => ({{ firstChild: new Node("dt"), lastChild: new Node("dd") }}));
          header.facts = {{ children, querySelectorAll: () => [] }};
          header.drawFacts(view, 0, {{ followed: false }});
          return [children[1].firstChild.text, children[1].lastChild.text];
        }};
        const theme = {{ accent: "#000", bad: "#f00", muted: "#888" }};
        const drawing = loss(view, {{ theme, smoothing: 0 }});
        const [early] = loss({{ ...view, nonfinite_step: 31 }}, {{ theme, smoothing: 0 }}).layout.annotations;
        const results = [{{ what: "loss_last", unit: "", values: {{ a: view.loss_last }} }}];
        const beside = lines({{ runs: ["a"], configuration: [], results, reach: {{ loss: null, runs: {{}} }} }});
        console.log(JSON.stringify([facts(view), facts(healthy), drawing.value, drawing.label,
          [...drawing.layout.annotations, early].map((one) => [one.text, one.xanchor]), lossText(healthy), beside.find((one) => one.what === "loss, last step").cells]));""",
    )
    broken, healthy, value, label, marks, cell, beside = said
    assert broken == ["Last finite loss", "2.72e+17"]
    assert healthy == ["Loss, last step", "2.72e+17"]
    assert value == "2.72e+17 (NaN at 403)"
    assert "The first NaN or infinite loss was that of step 403." in label
    text = "first NaN or infinite at step"
    assert marks == [[f"{text} 403 ", "right"], [f" {text} 31", "left"]]  # within the axis
    assert (cell, beside) == ("2.72e+17", ["2.72e+17"])


def test_the_browsers_tab_tells_of_findings_and_ends(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """const { newsOf } = await import("./page_mark.js");
        const now = (ended, outcome, text) => ({ ended, outcome, badge: { text }, unwatched: false });
        const view = { run: "r-1", name: "gpt", findings: [] };
        const found = (severity) => ({ ...view, findings: [{ kind: "nan-loss", severity, cleared_at: null }] });
        console.log(JSON.stringify([
          newsOf(view, now(false, null, "Running")),
          newsOf(found("note"), now(false, null, "Running")),
          newsOf(found("error"), now(false, null, "Running")),
          newsOf(view, now(true, "succeeded", "Succeeded")),
          newsOf(found("error"), now(true, "failed", "Failed")),
        ]));""",
    )
    texts = [(one["text"], one["tone"]) for one in told]
    assert texts[:2] == [("", "warn"), ("", "warn")]
    assert texts[2] == ("NaN loss: gpt", "bad")
    assert texts[3:] == [("Succeeded: gpt", "good"), ("Failed: gpt", "bad")]


def test_only_a_watched_run_reads_a_stop_file(tmp_path: Path) -> None:
    states = ("starting", "running", "stopping", "unsupervised", "queued")
    read = run(
        tmp_path,
        f"""const {{ readsFiles }} = await import("./runs.js");
        const rows = {json.dumps([{"state": state} for state in states])};
        console.log(JSON.stringify([...rows.map(readsFiles), readsFiles(undefined)]));""",
    )
    assert read == [True, True, True, False, False, False]


def test_the_devices_that_a_launch_gets_are_told_as_they_are(tmp_path: Path) -> None:
    """A run on the CPU that names no slots is not refused where all are held."""
    told = run(
        tmp_path,
        """const { headingOf } = await import("./device_picker.js");
        const [gpu, slot] = [{ kind: "gpu" }, { kind: "slot" }];
        console.log(JSON.stringify([headingOf(0, [gpu, gpu]), headingOf(0, [slot, slot]), headingOf(1, [slot])]));""",
    )
    assert told == [
        "Devices: none ticked, so the launch takes free ones",
        "Devices: none ticked, so the launch has all cores, beside the runs that have them",
        "Devices: 1 ticked",
    ]


def test_a_refused_stop_can_be_asked_for_again(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """const { StopButton } = await import("./stop_button.js");
        const stop = new StopButton(async () => {});
        stop.failed("nobody asked");
        const before = stop.note.textContent ?? "";
        stop.phase("running", 1);
        await stop.press();
        await stop.press();
        const asked = stop.action;
        stop.failed("Not stopped: x");
        console.log(JSON.stringify([before, asked, stop.action, stop.note.textContent]));""",
    )
    assert told == ["", "Stop now", "Stop", "Not stopped: x"]


def test_two_dashboards_give_the_pages_title_back(tmp_path: Path) -> None:
    titles = run(
        tmp_path,
        """Object.assign(document, { title: "lab", head: { append() {} }, addEventListener() {} });
        const { PageMark } = await import("./page_mark.js");
        const [one, other] = [new PageMark(), new PageMark()];
        for (const mark of [one, other]) mark.icon.remove = () => {};
        one.show({ text: "Succeeded: a", tone: "good" });
        other.show({ text: "Succeeded: b", tone: "good" });
        const titles = [document.title];
        for (const mark of [one, other, one]) {
          mark.restore();
          titles.push(document.title);
        }
        other.show({ text: "Failed: b", tone: "bad" });
        other.restore();
        console.log(JSON.stringify([...titles, document.title]));""",
    )
    assert titles == ["✓ Succeeded: b", "lab", "lab", "lab", "lab"]


@pytest.mark.parametrize("ahead", [-40, 0, 40])
def test_a_run_whose_clock_differs_is_as_silent_as_the_page_has_heard_nothing(
    tmp_path: Path, ahead: int
) -> None:
    """A healthy run on another node was said to have ended, or a dead one to live."""
    seen = run(
        tmp_path,
        f"""{_FOLLOWING}
        const {{ runState }} = await import("./state.js");
        let time = 1_000_000;
        Date.now = () => 1000 * time;
        const source = follow("auto");
        source.transport = "http";
        const look = async (seq, after) => {{
          time += after;
          if (seq !== files["view.json"]?.seq) files = {{ "view.json": {{ run: "r-1", phase: "running", seq, written_at: time + {ahead} }} }};
          files.now = time;
          await source.poll();
          const {{ view, ageSeconds }} = snapshots.at(-1);
          return [Math.round(ageSeconds), runState(view, ageSeconds, {{ transport: "http", kernel: "none" }}, null).badge.text];
        }};
        const found = [];
        for (const [seq, after] of [[1, 0], [2, 1], [3, 1], [3, 20], [3, 20], [4, 1]]) found.push(await look(seq, after));
        console.log(JSON.stringify(found));
        """,
    )
    assert seen[0][0] == max(0, -ahead)  # there is nothing else to go by
    assert all(age <= 1 and text == "Running" for age, text in (seen[1], seen[2], seen[5]))
    assert seen[3][0] in {20, 21}
    assert seen[4][0] in {40, 41}
    assert seen[4][1] == "Not supervised"

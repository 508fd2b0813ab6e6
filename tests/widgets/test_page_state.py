"""What the page makes of a run's state and of its buttons, by its own modules, without a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from workbench_widgets import assets

from workbench.store.status import HEARTBEAT_FRESH_SECONDS
from workbench.units import format_usd

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node, which runs the page's modules")
_DOM = """
globalThis.window = globalThis;
globalThis.document = { createElement: () => ({
  dataset: {}, style: {}, classList: { add() {} }, append() {}, setAttribute() {},
  addEventListener() {} }) };
"""


def run(folder: Path, script: str) -> Any:
    """What `script`, a module beside ours, prints as JSON."""
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
            "status": status and {"state": status, "outcome": None, "message": f"It is {status}."},
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
    # Time left is told, and an ordinary Stop obeyed, only while somebody watches.
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
          clearTimeout(button.timer);
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
        "The run is going on: stop it first",
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

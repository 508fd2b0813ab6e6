"""Live runs of this host, of any store: what the status bar is told, and what it makes of that."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.widgets.sample_runs import SampleRun
from tests.widgets.test_page_state import run as run_module
from workbench.pages import live_runs
from workbench.pages.live_runs import LiveRuns
from workbench.store.processes import watched_directories

WATCHER = "workbench.launching.supervise.watcher"
STATIC = Path(__file__).parents[2] / "widgets/labextension/training-workbench/static"
LIVE = {
    "run": "r-1",
    "name": "first",
    "state": "running",
    "rehearsal": False,
    "steps": 120,
    "steps_total": 500,
    "loss": 2.3456,
    "eta_seconds": 5400,
    "usd_per_hour": 3.1,
    "usd_so_far": 1.5,
    "gpus": 8,
    "busy_percent": 93.4,
    "trouble": None,
}


@contextmanager
def watched(directory: Path) -> Iterator[None]:
    """A living process whose command line is a watcher's."""
    wait = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", wait, WATCHER, str(directory), "--adopt"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.communicate()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> LiveRuns:
    monkeypatch.setattr(live_runs, "_READ_AGAIN_SECONDS", 0)
    return LiveRuns()


def of_here(runs: LiveRuns, store: Path) -> tuple[list[Any], list[Any]]:
    """What `read` tells, without the runs of other tests."""
    live, ended = runs.read()
    return [one for one in live if Path(one["store"]) == store], [
        one for one in ended if Path(one["store"]) == store
    ]


def test_a_live_run_of_any_store_is_found_and_its_end_is_told_once(
    tmp_path: Path, runs: LiveRuns
) -> None:
    store = tmp_path / "elsewhere"
    run = SampleRun(store, "one", gpus=8, processes=8, name="<b>first</b>")
    run.write(100)
    directory = store / "one"
    assert of_here(runs, store) == ([], [])
    with watched(directory):
        assert directory in watched_directories()
        (row,), ended = of_here(runs, store)
        assert (row["run"], row["name"], row["steps"], ended) == ("one", "<b>first</b>", 100, [])
        assert row["state"] == "running"
        run.write(101, phase="ended", outcome="failed")
        assert of_here(runs, store)[0] == []  # its watcher still lives, the run does not
    live, (end,) = of_here(runs, store)
    assert (live, end["name"], end["outcome"]) == ([], "<b>first</b>", "failed")


def test_a_finding_of_another_version_hides_no_run(tmp_path: Path, runs: LiveRuns) -> None:
    run = SampleRun(tmp_path, "one")
    run.write(120, findings=[{"kind": "later", "severity": "error", "cause": "Something."}])
    with watched(run.directory):
        (live,), _ = of_here(runs, tmp_path)
    assert live["trouble"] == "Something."


def test_what_cannot_be_read_is_no_live_run(tmp_path: Path, runs: LiveRuns) -> None:
    with watched(tmp_path / "gone" / "run"):
        assert of_here(runs, tmp_path / "gone") == ([], [])


def texts(folder: Path, *groups: list[dict[str, Any]]) -> list[list[str]]:
    module = (STATIC / "status_text.js").as_uri()
    return run_module(
        folder,
        f"""const {{ runsText, tooltip, worst, endText }} = await import({json.dumps(module)});
        const groups = {json.dumps(groups)};
        console.log(JSON.stringify(groups.map((runs) => [runsText(runs), tooltip(runs), worst(runs)])));
        """,
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "first · step 120 / 500 · loss 2.35 · GPU 93 % · $3.10/h"),
        ({"steps_total": None, "loss": None}, "first · step 120 · GPU 93 % · $3.10/h"),
        ({"gpus": 0, "usd_per_hour": None}, "first · step 120 / 500 · loss 2.35 · CPU 93 %"),
        ({"busy_percent": None}, "first · step 120 / 500 · loss 2.35 · $3.10/h"),
        ({"rehearsal": True}, "first · rehearsal · step 120 / 500 · loss 2.35 · GPU 93 %"),
        ({"steps": 0, "loss": None}, "first · before the first step · GPU 93 % · $3.10/h"),
        ({"state": "stopping"}, "first · stopping · loss 2.35 · GPU 93 % · $3.10/h"),
        (
            {"trouble": "Rank 1 is late."},
            "⚠ first · step 120 / 500 · loss 2.35 · GPU 93 % · $3.10/h",
        ),
    ],
)
def test_the_line_of_one_run(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    [[line, *_]] = texts(tmp_path, [{**LIVE, **change}])
    assert line == said


def test_several_runs_are_added_up_and_told_one_by_one(tmp_path: Path) -> None:
    small = {
        **LIVE,
        "name": "second",
        "gpus": 2,
        "busy_percent": 43.4,
        "trouble": "Rank 1 is late.",
    }
    [[line, hover, tone]] = texts(tmp_path, [LIVE, small])
    assert line == "⚠ 2 training runs · GPU 83 % · $6.20/h"  # of ten GPUs
    first, second, trouble = hover.split("\n")
    assert first == "first · step 120 / 500 · loss 2.35 · 90 min left · $1.50 so far"
    assert second.startswith("second")
    assert trouble == "⚠ Rank 1 is late."
    assert tone == "bad"


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Both were called gpt, in the list of live runs and in the message that one had failed."""
    again = {**LIVE, "run": "gpt-2", "name": "gpt"}
    [[line, hover, _], [_, two, _]] = texts(tmp_path, [again], [{**again, "run": "gpt"}, again])
    assert line.startswith("gpt-2 · step 120")
    assert hover.startswith("gpt-2 · ")
    assert [told.split(" · ")[0] for told in two.split("\n")] == ["gpt", "gpt-2"]
    module = (STATIC / "status_text.js").as_uri()
    end = json.dumps({"run": "gpt-2", "name": "gpt", "outcome": "failed"})
    script = f"""const {{ endText }} = await import({json.dumps(module)});
        console.log(JSON.stringify(endText({end})));"""
    assert run_module(tmp_path, script) == "gpt-2: failed"


def _opened(folder: Path, script: str) -> Any:
    """What `script` prints, in a JupyterLab of which only what the plugin uses is there."""
    module = json.dumps((STATIC / "plugin.js").as_uri())
    return run_module(folder, _LAB % {"plugin": module} + script)


_LAB = """
document.head = { append() {} };
document.addEventListener = () => {};
const waiting = [];
window.setTimeout = (next) => waiting.push(next);
const opened = [], commands = {}, answers = [];
class Widget { node = { append() {} }; setHidden() {} }
class MainAreaWidget {
  title = {}; toolbar = { hide() {} };
  node = { querySelector: () => ({ contentWindow: { location: { set hash(hash) { opened.push(hash); } } } }) };
}
const packages = {
  "@lumino/widgets": { Widget },
  "@jupyterlab/apputils": { MainAreaWidget },
  "@jupyterlab/ui-components": { LabIcon: class {}, IFrame: class { set url(url) { opened.push(url); } } },
  "@jupyterlab/services": {
    ServerConnection: { makeSettings: () => ({ baseUrl: "/" }), makeRequest: async () => answers.shift() },
  },
  "@jupyterlab/coreutils": { URLExt: { join: (...parts) => parts.join("") } },
  "@jupyterlab/statusbar": {},
  "@jupyterlab/launcher": {},
};
const app = {
  commands: { addCommand: (id, command) => (commands[id] = command) },
  shell: { add() {}, activateById() {} },
};
const { makePlugin } = await import(%(plugin)s);
const answer = (runs) => answers.push({ ok: true, status: 200, json: async () => ({ runs, ended: [], page: "/own" }) });
const start = async () => (await makePlugin(async (name) => packages[name])).activate(app);
const open = (given) => commands["training-workbench:open-runs"].execute(given);
"""


def test_the_card_opens_the_runs_of_this_server(tmp_path: Path) -> None:
    """Another server of the same user may have live runs on this host, too."""
    opened = _opened(
        tmp_path,
        """answer([{ page: "/theirs", own: false }]);
        await start();
        open({});
        open({ page: "/own", run: "one" });
        open({ page: "/own", run: "" });
        console.log(JSON.stringify(opened));""",
    )
    assert opened == ["/own/#", "#/run/one", "#"]


def test_the_cards_come_when_the_server_can_answer(tmp_path: Path) -> None:
    added = _opened(
        tmp_path,
        """const added = [];
        answers.push({ ok: false, status: 500 });
        answer([]);
        await start();
        added.push(Object.keys(commands).length);
        await waiting.shift()();
        added.push(Object.keys(commands).length);
        answers.push({ ok: false, status: 404 });
        await start();
        console.log(JSON.stringify([...added, waiting.length]));""",
    )
    assert added == [0, 2, 1]  # a server without our pages is not asked again

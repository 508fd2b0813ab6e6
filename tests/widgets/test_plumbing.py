"""Paths behind `/files/`, the fallback's markup, the assets, and the pure JavaScript."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

import nbformat
from workbench_widgets import RunDashboard, Workbench, assets, fallback_output
from workbench_widgets.fallback_output import face_config, fallback_bundle, fallback_html
from workbench_widgets.jupyter_files import served_path, server_roots

from tests.widgets.sample_runs import SampleRun

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_start_here.ipynb"


@pytest.mark.parametrize(
    ("root", "directory", "expected"),
    [
        ("root", "root/runs", "runs"),
        ("root", "root", ""),
        ("root", "root/a b/runs", "a b/runs"),
        ("root", "elsewhere/runs", None),
        ("root", "root/.hidden/runs", None),
        ("root", "root2/runs", None),
    ],
)
def test_served_path(tmp_path: Path, root: str, directory: str, expected: str | None) -> None:
    assert served_path(tmp_path / directory, [tmp_path / root]) == expected


def test_served_path_below_the_filesystem_root(tmp_path: Path) -> None:
    assert served_path(tmp_path / "runs", [Path("/")]) == str(tmp_path / "runs").lstrip("/")


def test_served_path_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "runs").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    assert served_path(tmp_path / "disk" / "runs", [tmp_path / "home"]) == "runs"


def test_our_own_server_comes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    for pid, root in ((os.getpid(), "/ours"), (os.getppid(), "/theirs")):
        (tmp_path / f"jpserver-{pid}.json").write_text(json.dumps({"pid": pid, "root_dir": root}))
    (tmp_path / "jpserver-7.json").write_text("not JSON")
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    assert server_roots() == [Path("/ours")]
    monkeypatch.delenv("JPY_PARENT_PID")
    assert set(server_roots()) == {Path("/ours"), Path("/theirs")}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_keeper_holds_no_foreign_markup() -> None:
    evil = "</script><img src=x onerror=alert(1)><!--<script>&lt;"
    config = face_config(face="run_dashboard.js", run=evil, about={"name": evil})
    html = fallback_html({**config, "assets_path": "runs/_assets"})
    tags = _Tags()
    tags.feed(html)
    assert tags.tags == ["div", "script", "script"]
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    assert json.loads(data)["about"]["name"] == evil
    assert "kernel" not in data


def test_a_face_is_displayed_before_its_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict] = []
    monkeypatch.setattr(fallback_output, "display", lambda data, **_more: shown.append(data))
    monkeypatch.setattr(fallback_output, "served_path", lambda _store: "runs")
    sample = SampleRun(tmp_path, "sample")
    for face in (RunDashboard(sample), Workbench(store=tmp_path, open=None)):
        shown.clear()
        face._ipython_display_()
        assert "application/vnd.jupyter.widget-view+json" in shown[0]
        assert "data-workbench-fallback" in shown[1]["text/html"]
        face.close()


def test_no_keeper_where_jupyter_serves_nothing() -> None:
    assert fallback_bundle(face_config(face="run_dashboard.js")) is None


def test_assets_are_published_once(tmp_path: Path) -> None:
    assert assets.publish(tmp_path, "runs.js")
    names = {path.name for path in (tmp_path / "_assets").iterdir()}
    assert names == {assets.bundle_name("runs.js"), assets.loader_name(), assets.plotly_name()}
    before = (tmp_path / "_assets" / assets.plotly_name()).stat().st_mtime_ns
    assert assets.publish(tmp_path, "runs.js")
    assert (tmp_path / "_assets" / assets.plotly_name()).stat().st_mtime_ns == before


def test_an_unwritable_store_falls_back_to_the_comm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not assets.publish(tmp_path / "file" / "store", "runs.js")


def test_another_text_under_our_name_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A colleague's store: what lies there would run in the page of whoever looks at it."""
    assert assets.publish(tmp_path, "runs.js")
    bundle = tmp_path / "_assets" / assets.bundle_name("runs.js")
    ours = bundle.read_bytes()
    bundle.write_bytes(ours.replace(b"mount", b"hurts"))
    with monkeypatch.context() as patch:
        patch.setattr(assets, "write_atomic", lambda *_: (_ for _ in ()).throw(PermissionError()))
        assert not assets.publish(tmp_path, "runs.js")
    assert assets.publish(tmp_path, "runs.js")
    assert bundle.read_bytes() == ours


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("added", [b"", b" "])
def test_a_page_runs_no_other_text_than_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: bytes
) -> None:
    """The files may change after they were published: the page itself looks at their hashes."""
    monkeypatch.setattr(fallback_output, "served_path", lambda store: store.name)
    config = fallback_output.store_config(tmp_path / "runs", face="runs.js", opens="compare.js")
    served = tmp_path / "files" / "runs"
    served.parent.mkdir()
    (tmp_path / "runs").rename(served)
    for path in (served / "_assets").iterdir():
        assert path.name in config["integrity"]
        path.write_bytes(path.read_bytes() + added)
    assert _read_by_a_page(tmp_path, config) == {
        "asked": ["bundle", "plotly"] if added else [],
        "plotly": config["integrity"][assets.plotly_name()],
    }
    html = fallback_html(config)
    assert "{ integrity: config.integrity[loader] }" in html
    assert "import(loader)" not in html


def _read_by_a_page(folder: Path, config: dict) -> dict:
    """What a page asks of Python after it read the files that `folder` serves."""
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "loader.js").write_text(assets.LOADER.read_text())
    (folder / "page.js").write_text(_PAGE % json.dumps(config))
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)
    )
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run(
            ["node", str(folder / "page.js"), str(server.server_port)],
            capture_output=True,
            text=True,
            check=True,
        )
        server.shutdown()
    return json.loads(done.stdout)


_PAGE = """
const config = %s;
const asked = [], scripts = [], reads = [];
const read = globalThis.fetch;
globalThis.fetch = (...given) => (reads.push(read(...given)), reads.at(-1));
const text = JSON.stringify({ baseUrl: `http://127.0.0.1:${process.argv[2]}/` });
globalThis.window = globalThis;
globalThis.document = {
  addEventListener() {}, getElementById: () => ({ textContent: text }),
  createElement: (name) => ({ name, dataset: {}, setAttribute() {} }),
  head: { append: (node) => node.name === "script" && scripts.push(node) },
};
const model = { on() {}, off() {}, send: (message) => asked.push(message.name) };
const { mount } = await import("./loader.js");
const element = { append() {}, getRootNode: () => null };
mount(element, { ...config, face: "run_dashboard.js" }, model); // the face that asks for plotly.js at once
const [script] = scripts;
const response = await fetch(script.src, { integrity: script.integrity }).catch(() => null);
if (!response) script.onerror();
await Promise.allSettled(reads);
await new Promise((done) => setTimeout(done)); // what follows the last of them
console.log(JSON.stringify({ asked: asked.sort(), plotly: script.integrity }));
process.exit(0);
"""


def test_modules_import_each_other_without_cycles() -> None:
    modules = assets.modules()
    imports = {name: set(re.findall(r'from "\./([\w.]+)"', text)) for name, text in modules.items()}
    done: set[str] = set()
    while done != set(imports):
        ready = {name for name, needed in imports.items() if name not in done and needed <= done}
        assert ready, f"cycle or unknown module among {set(imports) - done}"
        done |= ready


def test_javascript_is_small_typed_and_never_writes_markup() -> None:
    for path in assets.STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("// @ts-check"), path.name
        assert len(text.splitlines()) <= 300, path.name
        for forbidden in (
            "innerHTML",
            "insertAdjacentHTML",
            "outerHTML",
            "document.write",
            "https://",
        ):
            assert forbidden not in text, f"{forbidden} in {path.name}"


def test_python_never_shows_foreign_text_as_markup() -> None:
    for path in Path(assets.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "print(" not in text
        assert "asyncio" not in text
        for value in re.findall(r"widgets\.HTML\(([^)]*)\)", text):
            assert value == "_HINT", f"widgets.HTML({value}) in {path.name}: constants only"


NODE_CASES = """
import { plainLine, number, bytes, seconds, short, percent, plotText } from "./format.js";
import { smooth } from "./traces.js";
const same = (got, wanted) => {
  if (JSON.stringify(got) !== JSON.stringify(wanted)) throw new Error(`${JSON.stringify(got)} is not ${JSON.stringify(wanted)}`);
};
same(plainLine("\\u001b[32mgreen\\u001b[0m"), "green");
same(plainLine("10%\\r50%\\r100%\\r"), "100%");
same(plainLine("\\u001b]0;title\\u0007x\\u001b]52;c;aGk=\\u001b\\\\y"), "xy");
same(plainLine("a\\u202eb\\u200bc"), "abc");
same(plainLine("x".repeat(5000)).length, 2002);
same([number(null), bytes(undefined), seconds(NaN), short(null), percent(null)], Array(5).fill("n/a"));
same([number(0), bytes(0), percent(0)], ["0", "0 B", "0 %"]);
same([bytes(1536), seconds(75), seconds(3675), short(41234)], ["1.5 KiB", "1:15", "1:01:15", "41.2 k"]);
same([seconds(172799), seconds(172800), seconds(1303386)], ["47:59:59", "2 d 00:00", "15 d 02:03"]);
same(plotText("<b>&"), "&lt;b&gt;&amp;");
same(smooth([1, null, 1], 0.9).map((one) => one && Math.round(one * 1e9) / 1e9), [1, null, 1]);
same(smooth([4, 2], 0), [4, 2]);
"""


@pytest.mark.skipif(
    shutil.which("node") is None, reason="node is not installed (only tests use it)"
)
def test_formatting_in_javascript(tmp_path: Path) -> None:
    for path in assets.STATIC.glob("*.js"):
        shutil.copy(path, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "cases.js").write_text(NODE_CASES)
    done = subprocess.run(
        ["node", "cases.js"], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr


def test_start_notebook_is_short_and_clean() -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert len(book.cells) <= 40
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert sorted(len(cell.source.splitlines()) for cell in code)[len(code) // 2] <= 5
    assert book.cells[0].cell_type == "markdown"
    assert book.cells[-1].cell_type == "markdown"


@pytest.mark.slow
def test_start_notebook_runs_where_there_is_no_run_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("nbclient")
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "runs"))
    book = nbformat.read(NOTEBOOK, as_version=4)
    client.NotebookClient(book, timeout=120, kernel_name="python3").execute(cwd=str(tmp_path))
    last = [cell for cell in book.cells if cell.cell_type == "code"][-1]
    assert "No run yet" in last.outputs[-1]["data"]["text/plain"]

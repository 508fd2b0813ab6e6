"""The faces without a browser: options, text forms, and what they send."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages.applied import views

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Launcher, RunDashboard, Runs, Workbench, assets
from workbench_widgets.options import refuse_unknown
from workbench_widgets.presence import ASK_AFTER, GONE_AFTER, GONE_SECONDS, Presence
from workbench_widgets.run import snapshots
from workbench_widgets.run.snapshots import SnapshotPusher

import workbench as wb
from tests.conftest import until as wait_until
from tests.widgets.sample_runs import SampleRun
from workbench.describe.option import declared, flattened
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.warm import client
from workbench.pages.snapshots import snapshot_of

BUDGET_BYTES = 300_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def run(store: Path) -> SampleRun:
    sample = SampleRun(store, "sample")
    sample.write(120)
    return sample


def until(condition, what: str) -> None:
    wait_until(condition, 20, what)


def test_every_module_of_a_face_has_what_anywidget_draws_with(store: Path) -> None:
    """Without the default export the page shows nothing at all, and only a browser would tell."""
    page = Workbench(store=str(store))
    modules = [str(child._esm) for child in walk(page) if hasattr(child, "_esm")]
    assert len(modules) >= 2  # the other tabs are made when somebody looks there
    assert all(re.search(r"^export default \{ render \};$", text, re.MULTILINE) for text in modules)


def walk(widget) -> Iterator[object]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


@pytest.mark.parametrize("face", [RunDashboard, Launcher, Runs, Workbench])
def test_unknown_options_are_refused_in_words(face: type, run: SampleRun) -> None:
    given = (run,) if face is RunDashboard else ()
    with pytest.raises(TypeError, match=rf"{face.__name__} has no option 'stroe'; its options are"):
        face(*given, stroe="elsewhere")
    with pytest.raises(TypeError, match=r"Did you mean 'smoothing'\?"):
        RunDashboard(run, smothing=0.5)
    with pytest.raises(TypeError, match=r"^M has no option 'modell'. Did you mean 'model'\?$"):
        refuse_unknown("M", ["modell"], ["model", *map(str, range(50))])


@pytest.mark.parametrize(
    "option", [{"transport": "pigeon"}, {"refresh_seconds": 0}, {"smoothing": 1}]
)
def test_options_out_of_range_are_refused(run: SampleRun, option: dict) -> None:
    with pytest.raises(ValueError, match=r"choose|give 0"):
        RunDashboard(run, **option)


def test_every_face_has_a_short_text_form(run: SampleRun, store: Path) -> None:
    faces = (
        RunDashboard(run),
        Runs(store=store),
        Launcher(store=store),
        Workbench(store=store, open=None),
    )
    for face in faces:
        assert len(repr(face)) < 1500
        assert "function" not in repr(face)  # no trait is serialised
        face.close()
    assert "step 120/400" in repr(faces[0])


def test_unknown_values_are_not_zero_in_the_text_form(store: Path) -> None:
    waiting = SampleRun(store, "waiting")
    assert repr(RunDashboard(waiting)) == "RunDashboard('waiting': starting, no step yet, loss n/a)"


def test_state_and_code_are_within_the_budget(run: SampleRun, store: Path) -> None:
    over_comm = sum(
        len(json.dumps(face.get_state())) for face in (RunDashboard(run), Runs(store=store))
    )
    assert over_comm < 40_000
    for face in assets.faces():
        code = len(assets.bundle_text(face).encode()) + len(assets.LOADER.read_bytes())
        assert over_comm + code < BUDGET_BYTES, face


def test_no_log_text_in_the_saved_state(store: Path) -> None:
    sample = SampleRun(store, "secret", log_lines=["token hf_verysecretvalue"])
    sample.write(20)
    for face in (RunDashboard(sample), Runs(store=store), Workbench(store=store)):
        assert "hf_verysecretvalue" not in json.dumps(face.get_state(), default=str)
        face.close()


def test_comm_pushes_each_snapshot_once_and_ends_with_the_run(run: SampleRun) -> None:
    sent: list[dict] = []
    pusher = SnapshotPusher(run, sent.append)
    pusher.start()
    until(lambda: len(sent) == 1, "the present snapshot")
    run.write(130)
    until(lambda: len(sent) == 2, "the next one")
    run.write(140, phase="ended", outcome="succeeded")
    until(lambda: views(sent)[-1]["phase"] == "ended", "the last one, with how it ended")
    assert views(sent)[-1]["processes_left"] == 0  # of exit.json: the sample's view is an old one
    until(
        lambda: "workbench-snapshots" not in {one.name for one in threading.enumerate()}, "its end"
    )
    assert [one["steps"] for one in views(sent)] == [120, 130, 140]
    assert ["view" in one for one in sent] == [True, False, False]  # then what changed alone
    pusher.start()  # a reloaded page asks again
    until(lambda: len(sent) == 4, "the last snapshot again")
    assert sent[-1]["view"]["steps"] == 140  # whole: a reloaded page has nothing


@pytest.mark.parametrize("busy", [None, "a cell"])
def test_a_page_that_has_gone_is_sent_little(
    run: SampleRun, monkeypatch: pytest.MonkeyPatch, busy: str | None
) -> None:
    """Jupyter keeps what a closed laptop does not take. A busy kernel hears no page at all."""
    monkeypatch.setattr(snapshots, "PUSH_SECONDS", 0.001)
    monkeypatch.setattr(snapshots, "BYTES_PER_SECOND", 1e9)
    sent: list[dict] = []
    presence = Presence(lambda: busy is not None)
    pusher = SnapshotPusher(run, sent.append, presence)
    pusher.start()
    for number in range(1, GONE_AFTER + 3):
        if presence.gone:
            break
        until(lambda number=number: len(sent) == number, "the next snapshot")
        run.write(120 + number)
    assert presence.gone == (busy is None)
    if busy is None:
        until(lambda: len(sent) == GONE_AFTER, "the last of them")
        asks = [bool(one.get("slow")) for one in sent]
        assert asks == [False] * ASK_AFTER + [True] * (GONE_AFTER - ASK_AFTER)
        assert pusher._pause_seconds(0) == GONE_SECONDS
        run.write(200)
        pusher.heard()
        until(lambda: len(sent) > GONE_AFTER, "what came meanwhile")
        assert "slow" not in sent[-1]
    pusher.stop()


def test_a_table_without_a_page_is_read_rarely(store: Path) -> None:
    table = Runs(store=store, refresh_seconds=3600)
    table.presence = Presence(lambda: False)
    for number in range(GONE_AFTER):
        table.of = number + 1
    assert table.presence.gone
    closed = threading.Event()
    waited: list[bool] = []
    waiting = threading.Thread(target=lambda: waited.append(table.presence.wait(closed, 0)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    table._on_message(table, {"type": "here"}, [])
    waiting.join(60)
    assert waited == [False]  # it is read again
    table.close()


def test_a_snapshot_is_at_most_one_view(run: SampleRun) -> None:
    snapshot = snapshot_of(run.directory)
    assert snapshot is not None
    assert len(json.dumps(snapshot)) < (run.directory / "view.json").stat().st_size + 2_000


def test_a_broken_view_is_waited_for(run: SampleRun) -> None:
    (run.directory / "view.json").write_text('{"half": ')
    assert snapshot_of(run.directory) is None
    assert "no step yet" in repr(RunDashboard(run))


def test_launcher_shows_the_command_or_the_reason(store: Path, tmp_path: Path) -> None:
    form = Launcher(store=store, arguments="--steps 3")
    assert "gpt.py --steps 3" in form.preview.command
    assert not form.button.disabled
    form.fields.arguments.value = "--steps 'three"
    until(lambda: "No closing quotation" in form.preview.problem, "the quote is named")
    assert form.button.disabled
    form.fields.arguments.value = "--steps 3"
    form.fields.target_menu.value = form.fields.target_menu.options[-1][1]
    form.fields.path.value = str(tmp_path / "missing.py")
    until(lambda: "missing.py" in form.preview.problem, "the missing script is named")
    assert form.preview.command == ""
    form.close()


def test_launcher_starts_once_and_never_in_the_callers_thread(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    release = threading.Event()

    def launch(**wish: object) -> SampleRun:
        threads.append(threading.current_thread().name)
        release.wait(240)
        return SampleRun(store, "started")

    monkeypatch.setattr(wb, "launch", launch)
    form = Launcher(store=store)
    form.button.click()
    form.button.click()  # a double click
    release.set()
    until(lambda: form.run is not None, "the run")
    assert threads == ["workbench-launch"]
    assert "started" in form.preview.note
    form.close()


def test_a_refused_launch_can_be_pressed_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason may have gone a moment later: a device that is held, a full disk."""
    reasons = ["GPU 0 is held by run other."]

    def launch(**_wish: object) -> SampleRun:
        if reasons:
            raise wb.UsageError(reasons.pop())
        return SampleRun(store, "started")

    monkeypatch.setattr(wb, "launch", launch)
    form = Launcher(store=store)
    command = form.preview.command
    form._launch_once()
    assert form.preview.problem == "GPU 0 is held by run other."
    assert form.why_not.text == form.preview.problem  # beside Launch: the picker has no problem
    assert form.preview.command == command
    assert not form.button.disabled
    form._launch_once()
    assert form.run is not None
    assert form.preview.problem == ""
    form.close()


def test_every_option_of_a_launch_is_an_input(tmp_path: Path) -> None:
    form = Launcher(store=tmp_path, cpu=True)
    inputs = form.fields.options
    elsewhere = {"strategy", "processes", "nodes", "address", "store", *declared(wb.Strategy)}
    assert inputs.keys() == flattened(LaunchOptions).keys() - elsewhere
    inputs["environment"].value = "A=1 B='x y'"
    inputs["grace_seconds"].value = "45"
    inputs["restarts"].value = 2
    request = form.picker.look().request
    assert request is not None
    assert request.options.environment == {"A": "1", "B": "x y"}
    assert (request.options.recovery.grace, request.options.recovery.restarts) == (45, 2)
    inputs["grace_seconds"].value = "soon"
    assert "grace seconds is a number, not 'soon'" in form.picker.look().problem
    inputs["environment"].value = "A='x"
    problem = "The environment cannot be read: No closing quotation."
    assert form.picker.look().problem == problem
    assert inputs["max_usd"].description == "Maximum $"  # a unit keeps its own letters
    form.close()


def test_launcher_adapts_to_the_choice(store: Path) -> None:
    form = Launcher(store=store)
    assert form.fields.path.layout.display == "none"
    form.fields.target_menu.value = form.fields.target_menu.options[-1][1]
    assert form.fields.path.layout.display == ""
    assert form.fields.arguments.value == ""  # the recipe's suggestion goes with the recipe
    form.picker.set(family="single")
    assert "processes" in form.picker.controls["hidden"]
    until(lambda: "Give the path" in form.picker.figure["headline"], "what to do next")
    assert not form.preview.problem
    assert not form.picker.problem
    assert form.picker.figure["grid"]["ranks"] == 0  # the recipe's figure is gone
    assert form.button.disabled
    form.fields.path.value = "missing.py"
    until(lambda: "missing.py" in form.picker.problem.get("message", ""), "now it is wrong")
    assert not form.picker.figure["setting"]
    form.close()


def test_a_warm_start_is_prepared_and_said(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server, of small modules and in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        monkeypatch.setenv(client.FOLDER, folder)
        monkeypatch.setattr(client, "MODULES", ("json",))
        bench = Workbench(store=store, warm=True)
        form = bench.launcher
        assert form.fields.request_keywords()["warm"] is True
        until(lambda: "ready" in form.warm_note.value, "the server is ready")
        (server,) = client.servers()
        assert str(server["pid"]) in form.warm_note.value
        form.fields.warm.value = False
        assert form.warm_note.value == ""
        assert form.fields.request_keywords()["warm"] is False
        client.stop_servers()
        monkeypatch.setattr(client, "MODULES", ("no_such_module",))
        form.fields.warm.value = True
        until(lambda: "Launches start cold" in form.warm_note.value, "the reason")
        bench.close()


def test_runs_acts_only_on_its_rows(run: SampleRun, store: Path) -> None:
    table = Runs(store=store)
    opened: list[str] = []
    table.on_open(opened.append)
    table._on_message(table, {"type": "open", "run": "../../etc"}, [])
    table._on_message(table, "nonsense", [])
    assert opened == []
    table._on_message(table, {"type": "open", "run": "sample"}, [])
    assert opened == ["sample"]
    table.close()


def test_a_fork_stands_below_its_parent(store: Path) -> None:
    for name in ("parent", "other", "child"):
        SampleRun(store, name).write(10, phase="ended", outcome="succeeded")
    record = store / "child" / "run.json"
    began = {"run": "parent", "checkpoint": "/x", "step": 5}
    record.write_text(json.dumps({**json.loads(record.read_text()), "resumed_from": began}))
    table = Runs(store=store)
    rows = {row["run"]: (row["depth"], row["from"]) for row in table.rows}
    assert rows == {"parent": (0, ""), "other": (0, ""), "child": (1, "step 5 of parent")}
    order = list(rows)
    assert order[order.index("parent") + 1] == "child"
    assert "child" in repr(table)
    table.close()


def test_workbench_opens_and_switches(store: Path) -> None:
    for name in ("one", "two"):
        SampleRun(store, name).write(10, phase="ended", outcome="succeeded")
    bench = Workbench(store=store, open="one")
    first = bench.dashboard
    assert first is not None
    assert bench.runs.opened == "one"
    assert bench.launcher.layout.display == "none"  # folded: the dashboard has its room
    bench.open_tab("Runs")
    bench.show(wb.attach("two", store))
    assert first.comm is None  # closed
    assert bench.dashboard is not None
    assert bench.dashboard.run.id == "two"
    assert bench._tabs.selected_index == 0
    bench._form_button.click()
    assert bench.launcher.layout.display is None
    with pytest.raises(ValueError, match="choose one of Launch, Runs"):
        bench.open_tab("Lunch")
    bench.close()
    empty = Workbench(store=store.parent / "empty")
    assert empty.dashboard is None
    empty.close()
    with pytest.raises(wb.RunNotFoundError):
        Workbench(store=store, open="three")


def test_the_run_that_was_opened_last_is_shown(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow", "quick"):
        SampleRun(store, name).write(10, phase="ended", outcome="succeeded")
    attach, go_on, read = wb.attach, threading.Event(), threading.Event()

    def attach_slowly(run: str, place: Path) -> object:
        if run == "slow":
            go_on.wait(60)
        return attach(run, place)

    monkeypatch.setattr(wb, "attach", attach_slowly)
    bench = Workbench(store=store, open=None)
    show = bench._show
    monkeypatch.setattr(
        bench, "_show", lambda run, ask: (show(run, ask), read.set() if run.id == "slow" else None)
    )
    bench._open_later("slow")
    bench._open_later("quick")
    until(lambda: bench.dashboard is not None, "the quick one")
    go_on.set()
    assert read.wait(60)
    assert bench.dashboard is not None
    assert bench.dashboard.run.id == "quick"
    bench.close()

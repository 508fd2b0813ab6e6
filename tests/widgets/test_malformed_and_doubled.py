"""A page that says nonsense, a double click, and a store or run that has gone meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import (
    Checkpoints,
    Compare,
    Export,
    Launcher,
    QueuePanel,
    RunDashboard,
    Runs,
    ScalingStudy,
    Sweep,
)
from workbench_widgets.answering import DOUBLE_CLICK_SECONDS
from workbench_widgets.launch.folders import listing
from workbench_widgets.launch.script_note import ScriptNote

import workbench as wb
from tests.conftest import until
from tests.widgets.sample_runs import SampleRun
from tests.widgets.small_dom import on_page
from tests.widgets.test_reused import settings


@pytest.fixture
def uncaught(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What threads have raised."""
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_value))
    return raised


def ended_run(store: Path, name: str) -> SampleRun:
    run = SampleRun(store, name)
    run.write(20, phase="ended", outcome="stopped")
    return run


def test_a_run_that_is_no_name_is_refused_in_words(
    tmp_path: Path, uncaught: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_run(tmp_path, "a")
    compare = Compare(store=tmp_path)
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(compare, "send", said.append)
    for kind in ("label", "size", "delete"):
        for run in ([], {"a": 1}, None, 3):
            compare._on_message(compare, {"type": kind, "run": run}, [])
    until(lambda: len(said) + len(uncaught) == 12, what="an answer to each")
    assert not uncaught
    assert all(answer["bad"] and "is listed." in answer["text"] for answer in said)
    assert (tmp_path / "a").is_dir()
    compare.close()


def test_the_text_of_one_selected_run_claims_nothing_of_a_loss(tmp_path: Path) -> None:
    ended_run(tmp_path, "a")
    compare = Compare(store=tmp_path, runs=["a"])
    assert repr(compare).splitlines() == [f"Compare: 1 runs of {tmp_path}, 1 selected", "  a"]
    SampleRun(tmp_path, "b").write(0)
    SampleRun(tmp_path, "c").write(0)
    compare.pick(["b", "c"])
    assert repr(compare).splitlines()[1:] == ["  b", "  c"]
    compare.close()


def test_a_file_picker_shows_the_root_where_a_folder_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "train.py").touch()
    shown = listing("\0", root=tmp_path)
    assert [entry["name"] for entry in shown["entries"]] == ["loop", "train.py"]
    assert not shown["problem"]
    assert listing("loop", root=tmp_path)["folder"] in {"", "loop"}


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "1", None])
def test_a_pause_between_two_readings_that_cannot_be_is_refused(
    tmp_path: Path, seconds: Any
) -> None:
    run = ended_run(tmp_path, "a")
    for kind in (Runs, QueuePanel, Sweep):
        with pytest.raises(ValueError, match=r"^refresh_seconds=.*: give 0.2 to 86,400"):
            kind(store=tmp_path, refresh_seconds=seconds)
    for kind in (RunDashboard, Checkpoints):
        with pytest.raises(ValueError, match=r"^refresh_seconds=.*: give 0.2 to 60"):
            kind(run, refresh_seconds=seconds)


def test_a_study_takes_sizes_as_scale_does(tmp_path: Path) -> None:
    study = ScalingStudy(sizes=[1, 2], to=(4, 8), store=tmp_path)
    assert (study.fields["sizes"], study.fields["to"]) == ("1,2", "4,8")
    study.close()


def test_an_unknown_engine_is_refused_in_words(tmp_path: Path) -> None:
    for engine in ("k8s", None):
        with pytest.raises(wb.UnknownNameError, match="slurm"):
            Export("gpt", store=tmp_path, engine=engine)
    face = Export("gpt", store=tmp_path)
    face._on_message(face, {"type": "change", "changes": {"engine": "slurmm"}}, [])
    assert "slurm" in face.problem["message"]
    face.close()


def test_a_button_of_a_queue_whose_store_has_gone_says_so(
    tmp_path: Path, uncaught: list[Any]
) -> None:
    store = tmp_path / "runs"
    store.mkdir()
    panel = QueuePanel(store=store, refresh_seconds=60)
    store.rmdir()
    store.write_text("not a folder any more")
    panel.act("drop", "a")
    assert panel.problem
    panel.close()
    assert not uncaught


def test_a_face_of_a_run_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended_run(tmp_path, "a")
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path))
    for kind in (RunDashboard, Checkpoints):
        for name in ("last", "a", run.directory):
            face = kind(name)
            assert face.run.id == "a"
            face.close()
        with pytest.raises(wb.RunNotFoundError, match="missing"):
            kind("missing")


def test_a_double_click_is_one_launch_even_where_launching_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[SampleRun] = []

    def launch(**_wish: object) -> SampleRun:
        launched.append(SampleRun(tmp_path, f"run-{len(launched)}"))
        return launched[-1]

    monkeypatch.setattr(wb, "launch", launch)
    form = Launcher(store=tmp_path, cpu=True)
    monkeypatch.setattr(form.picker, "look", lambda: form.picker.seen)

    def click() -> None:
        form.button.click()
        until(lambda: launched and not form._launching.locked(), what="the end of the launch")

    click()
    click()
    assert len(launched) == 1
    time.sleep(DOUBLE_CLICK_SECONDS)
    click()
    until(lambda: len(launched) == 2, what="the launch that was asked for later")
    form.close()


class HeldNote(ScriptNote):
    """Works until it is stopped."""

    def offered(self, request: wb.Request) -> bool:
        return request is not None

    def work(self, request: wb.Request, on_progress: Callable[[str], None]) -> str:
        while True:
            on_progress(f"working on {request.name}")
            time.sleep(0.01)


def test_a_double_click_does_not_stop_what_it_has_begun(tmp_path: Path) -> None:
    note = HeldNote("Hold", "pause", "Press.")
    note.show(wb.request("gpt", cpu=True, processes=1, store=tmp_path))
    note.button.click()
    note.button.click()
    assert note.running
    assert not note._stop.is_set()
    time.sleep(DOUBLE_CLICK_SECONDS)
    note.button.click()
    until(lambda: not note.running, what="the end of the work")
    assert "Stopped" in note.line.value
    note.close()


def test_a_double_click_is_one_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    face = RunDashboard(ended_run(tmp_path, "a"))
    begun, release = list[Any](), threading.Event()

    def profile(run: Any, _send: object) -> None:
        begun.append(run)
        release.wait(60)

    monkeypatch.setattr("workbench.pages.actions.profile", profile)
    first = threading.Thread(target=face._profile, args=({},))
    first.start()
    until(lambda: begun, what="the first trace")
    face._profile({})
    release.set()
    first.join()
    assert len(begun) == 1
    face.close()


def test_a_double_click_on_a_row_of_the_queue_is_one_press(tmp_path: Path) -> None:
    """After the first the next run stands there: it was not what was pressed."""
    told = on_page(
        tmp_path,
        """
        globalThis.MutationObserver = globalThis.ResizeObserver = class { observe() {} disconnect() {} };
        globalThis.matchMedia = () => ({ matches: false, addEventListener() {}, removeEventListener() {} });
        const { mount } = await import("./queue.js");
        const job = (run, position) => ({ run, position, priority: 0, devices: [], devices_wanted: 1 });
        const shown = { state: "paused", devices: [], jobs: [job("a", 1), job("b", 2)] };
        const sent = [];
        const model = { get: (name) => ({ shown, problem: "" })[name], on() {}, off() {}, send: (message) => sent.push([message.type, message.run]) };
        const root = new Node("root");
        mount(root, { model, config: {} });
        const all = (node) => [node, ...node.children.flatMap((one) => (one.children ? all(one) : []))];
        const [first, second] = all(root).filter((one) => one.textContent === "Drop" && one.tag === "button");
        first.emit("click", { detail: 1 });
        second.emit("click", { detail: 2 });
        second.emit("click", { detail: 0 });
        tell(sent);""",
    )
    assert told == [["drop", "a"], ["drop", "b"]]


def test_a_run_that_was_deleted_meanwhile_is_not_resumed_and_that_is_said(
    tmp_path: Path, uncaught: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    form = Launcher(store=tmp_path, cpu=True)
    form.reused.set(settings(2, tmp_path))
    form.reused._strategy, form.reused.button.disabled = wb.Strategy.parse("ddp", 2), False
    form.reused.button.click()
    until(lambda: "Not resumed" in form.reused.line.text or uncaught, what="the reason")
    assert not uncaught
    form.close()


def test_a_double_click_and_a_held_key_confirm_nothing(tmp_path: Path) -> None:
    told = on_page(
        tmp_path,
        """
        const { ResumeButton } = await import("./resume.js");
        let done = 0;
        const made = new ResumeButton("Delete", () => (done += 1));
        const { button } = made;
        const click = (detail) => button.emit("click", { detail });
        const seen = [];
        click(1), click(2), click(3);
        seen.push([button.textContent, done]);
        let kept = 0;
        button.emit("keydown", { key: "Enter", repeat: true, preventDefault: () => (kept += 1) });
        button.emit("keydown", { key: "Enter", repeat: false, preventDefault: () => (kept += 1) });
        seen.push([button.textContent, kept]);
        click(1);
        seen.push([button.textContent, done]);
        click(1), click(0);
        tell([...seen, [button.textContent, done]]);""",
    )
    assert told == [
        ["Press again: delete", 0],
        ["Press again: delete", 1],
        ["Delete", 1],
        ["Delete", 2],
    ]

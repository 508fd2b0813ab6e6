"""``Launcher``: the form that starts a run."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import traitlets

import workbench as wb
from workbench.errors import sentence
from workbench.launching.prepare.accelerate_config import CPU_RANKS
from workbench.launching.resume.settings import settings_of
from workbench.store.layout import RunPaths
from workbench.units import format_bytes
from workbench_widgets.answering import Presses, in_background
from workbench_widgets.control_tree import ControlBox
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.launch.launch_form import LaunchForm
from workbench_widgets.launch.reused import ReusedRun
from workbench_widgets.launch.script_notes import CalibrateNote, MeasureNote, VerifyNote
from workbench_widgets.launch.warm_note import WarmNote
from workbench_widgets.note import Note
from workbench_widgets.options import refuse_unknown
from workbench_widgets.strategy.picker import StrategyPicker
from workbench_widgets.strategy.preview import Look

_OPTIONS = ("store", "target", "arguments", "strategy", "processes", "goal", "cpu", "name", "warm")
_SHIM = "\0cpu_ranks.py\n"  # stands for the file's text, which travels once


class LaunchPreview(Face):
    """The exact command. Drawn as text, never as markup."""

    text = traitlets.Unicode("").tag(sync=True)
    problem = traitlets.Unicode("")  # why there is none; the form says it beside Launch
    note = traitlets.Unicode("").tag(sync=True)

    def __init__(self, store: Path) -> None:
        self._shim = CPU_RANKS.read_text(encoding="utf-8")
        files = {"mark": _SHIM, "text": self._shim}
        super().__init__(store_config(store, face="preview.js", shim=files))

    @property
    def command(self) -> str:
        """Pasteable shell text, all files in it."""
        return self.text.replace(_SHIM, self._shim)

    @command.setter
    def command(self, text: str) -> None:
        self.text = text.replace(self._shim, _SHIM)

    def __repr__(self) -> str:
        return self.problem or "".join(self.command.splitlines()[-1:])


class Launcher(ControlBox):
    """Choose what to train and how to spread it; shows the exact command, then starts it.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        target: A recipe's name or the path of a script to begin with.
        arguments: The script's arguments, as typed in a shell or as a list.
        strategy: A name such as ``"ddp"``, ``"fsdp"`` or ``"pp2-dp2-tp2"``, or a ``wb.Strategy``.
        processes: Number of processes; default all GPUs, or 2 on a host without.
        goal: ``"fit"``, ``"fast"`` or ``"cheap"`` picks the strategy; default ``"hand"``.
        cpu: Use CPU processes although there are GPUs.
        name: Display name of the run.
        warm: Import torch once, in a process that launches are then forked from: they start seconds
            sooner. It begins at once, in the background.

    The trait ``run`` is the handle of the run that was launched last; ``picker`` is the
    `StrategyPicker` inside.

    Raises:
        TypeError: an unknown option.
        UsageError: a strategy that the picker's controls cannot say.
    """

    run = traitlets.Any(None, allow_none=True)

    def __init__(self, *, store: str | Path | None = None, **options: Any) -> None:
        self._launching, self._presses = threading.Lock(), Presses()
        refuse_unknown("Launcher", options, _OPTIONS)
        self.store = Path(wb.Store(store).root)
        self.fields = LaunchForm(**{**options, "store": self.store})
        names = ("strategy", "processes", "goal")
        chosen: dict[str, Any] = {name: options.get(name) for name in names}
        self.picker = StrategyPicker(_keywords=self._keywords, _labels=self.fields.labels, **chosen)
        self.preview = LaunchPreview(self.store)
        self.button = widgets.Button(description="Launch", button_style="primary", icon="play")
        self.warm_note = WarmNote()
        self.measure_note = MeasureNote(self.store, self.refresh)
        self.reused = ReusedRun(self.store, self.fields.request_keywords, self._resumed)
        self.why_not = Note(self.store)
        go = widgets.HBox([self.button, self.warm_note, self.why_not])
        go.add_class("wb-go")
        self.calibrate_note = CalibrateNote(self.store, self.refresh)
        self.verify_note = VerifyNote()
        self._notes = (self.measure_note, self.calibrate_note, self.verify_note)
        spread = [self.fields.target_box, self.picker, *self._notes]
        super().__init__([go, self.reused, *spread, self.fields.options_box, self.preview])
        self.add_class("wb-form")
        self.button.on_click(self._on_click)
        self.fields.observe(lambda _change: self.picker.look_soon(of_form=True))
        self.fields.devices.observe(self._count_ranks, names="value")
        self.picker.on_look(self._show)
        self._show(self.picker.seen)
        self.fields.warm.observe(self._switch_warm, names="value")
        self._switch_warm()

    def _keywords(self) -> dict[str, Any]:
        return {**self.fields.request_keywords(), "store": self.store}

    def refresh(self) -> None:
        """Dry-run the form: show the command, or the sentence that says what would work."""
        self.picker.look()

    def launch(self) -> None:
        """Start what the form says. Errors appear in the form."""
        look = self.picker.look()
        if look.request is None:
            return  # the picker says why not
        try:
            run = wb.launch(**self._keywords(), strategy=look.strategy)
        except Exception as error:  # noqa: BLE001 - whatever it is, the form has to say it
            # it may pass (a device that is held): the command stays, and so does Launch
            self._show(replace(look, problem=sentence(error)))
        else:
            self.preview.note = f"Launched as {run.id}. It continues if you close this page."
            self.run = run
            self.fields.devices.refresh()

    def reuse(self, run: wb.Run | str) -> None:
        """Set the form to what a run was launched with; it can be resumed with what is changed.

        Args:
            run: Its handle, or its name in this store.

        Raises:
            UsageError: it needs what the form does not have, or cannot be started from here.
            ForeignRunError: it is another user's, or others can write to it.
        """
        handle = wb.attach(run, self.store) if isinstance(run, str) else run
        settings = settings_of(RunPaths(Path(handle.directory)))
        strategy = settings.options.strategy
        if settings.options.nodes > 1 or not isinstance(strategy, wb.Strategy):
            raise wb.UsageError(
                f"{handle.id} runs on {settings.options.nodes} machines; the form launches on one. "
                f"In a terminal: workbench resume {handle.id}"
            )
        self.reused.set(None)
        self.picker.take(strategy)  # first: it may refuse, and then nothing else has changed
        self.fields.take(settings)
        self.reused.set(settings)
        self.refresh()
        self.reused.line.reveal()

    def _resumed(self, run: wb.Run) -> None:
        self.preview.note = f"Resumed as {run.id}. It continues if you close this page."
        self.run = run

    def _show(self, look: Look) -> None:
        """The command, or beside Launch why it cannot be."""
        look = replace(look, problem=self.picker.with_labels(look.problem))
        request = look.request
        self.fields.arguments.show_look(look)
        with self.preview.hold_sync():
            self.preview.command = request.shell() if request else ""
            self.preview.problem = look.problem
            self.preview.note = _note(request) if request else ""
        self.why_not.say(look.problem, bad=True)
        self.why_not.layout.display = "" if look.problem else "none"
        self.button.disabled = look.request is None
        self.button.tooltip = look.problem or look.missing or "Start what the form says"
        for note in (*self._notes, self.reused):
            note.show(request)

    def _count_ranks(self, change: dict[str, Any]) -> None:
        """A rank for each GPU that is ticked; slots of cores are shared by the ranks."""
        kinds = {device["kind"] for device in self.fields.devices.devices}
        if change["new"] and kinds == {"gpu"}:
            self.picker.set(processes=len(change["new"]))

    def _switch_warm(self, _change: object = None) -> None:
        self.warm_note.switch(on=self.fields.warm.value, request=self.picker.seen.request)

    def _on_click(self, _button: object) -> None:
        """Runs in the kernel's main thread or in a subshell, so it only hands over."""
        if self._presses.is_another():
            in_background(self._launch_once, "workbench-launch")

    def _launch_once(self) -> None:
        if not self._launching.acquire(blocking=False):
            return  # a double click is one launch
        try:
            self.button.disabled = True
            self.launch()
        finally:
            self.button.disabled = not self.preview.text
            self._launching.release()

    def close(self) -> None:
        """End the form. Runs continue."""
        close_tree(self.children)
        super().close()

    def __repr__(self) -> str:
        return f"Launcher({self.preview!r})"


def close_tree(faces: Iterable[widgets.Widget]) -> None:
    """Close widgets and what is inside them; ipywidgets leaves the children open."""
    for face in faces:
        close_tree(face.children if isinstance(face, widgets.Box) else ())
        if face.comm is not None:
            face.close()


def _note(request: wb.Request) -> str:
    """One line under the command: where it runs and what it is predicted to need."""
    device = "GPU" if request.device == "cuda" else "CPU"
    many = "process" if request.processes == 1 else "processes"
    parts = [f"{request.processes} {device} {many}"]
    if request.predicted is not None:
        parts.append(f"{format_bytes(request.predicted.total_bytes)} predicted for each")
    return ", ".join(parts) + "."

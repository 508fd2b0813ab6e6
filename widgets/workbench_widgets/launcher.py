"""``Launcher``: the form that starts a run."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

import workbench as wb
from workbench.units import format_bytes
from workbench_widgets import assets
from workbench_widgets.keeper import store_config
from workbench_widgets.launch_form import LaunchForm
from workbench_widgets.options import refuse_unknown
from workbench_widgets.run_dashboard import send_asset

_OPTIONS = ("store", "target", "arguments", "strategy", "processes", "cpu", "name")


class LaunchPreview(anywidget.AnyWidget):
    """The exact command, or why there is none. Drawn as text, never as markup."""

    _esm = assets.LOADER
    config = traitlets.Dict().tag(sync=True)
    command = traitlets.Unicode("").tag(sync=True)
    problem = traitlets.Unicode("").tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)

    def __init__(self, store: Path) -> None:
        super().__init__(config=store_config(store, face="preview.js"))
        self.on_msg(self._on_message)

    def _on_message(self, _widget: object, message: Any, _buffers: object) -> None:
        if isinstance(message, dict) and message.get("name") == "bundle":
            send_asset(self, "bundle")

    def __repr__(self) -> str:
        """Plain text for terminals and saved notebooks."""
        return self.problem or self.command


class Launcher(widgets.VBox):
    """Choose what to train and how to spread it; shows the exact command, then starts it.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        target: A recipe's name or the path of a script to begin with.
        arguments: The script's arguments, as typed in a shell.
        strategy: ``"ddp"``, ``"fsdp"``, ``"fsdp-grad-op"``, ``"hsdp"`` or ``"single"``.
        processes: Number of processes; default all GPUs, or 2 on a host without.
        cpu: Use CPU processes although there are GPUs.
        name: Display name of the run.

    The trait ``run`` is the handle of the run that was launched last.

    Raises:
        TypeError: an unknown option.
    """

    run = traitlets.Any(None, allow_none=True)

    def __init__(self, *, store: str | Path | None = None, **options: Any) -> None:
        self._launching = threading.Lock()
        self._changed = threading.Event()
        unknown = {name: value for name, value in options.items() if name not in _OPTIONS}
        refuse_unknown("Launcher", unknown, _OPTIONS)
        self.store = Path(wb.Store(store).root)
        self.fields = LaunchForm(**options)
        self.preview = LaunchPreview(self.store)
        self.button = widgets.Button(description="Launch", button_style="primary", icon="play")
        super().__init__([self.fields.box, self.preview, self.button])
        self.add_class("wb-form")
        self.button.on_click(self._on_click)
        self.fields.observe(self._on_change)
        self.refresh()
        threading.Thread(target=self._refresh_later, name="workbench-form", daemon=True).start()

    def refresh(self) -> None:
        """Dry-run the form: show the command, or the sentence that says what would work."""
        try:
            request = wb.request(**self.fields.wish(), store=self.store)
        except Exception as error:  # noqa: BLE001 - whatever it is, the form has to say it
            self._show(problem=_sentence(error))
        else:
            self._show(command=request.shell(), note=_note(request))

    def launch(self) -> None:
        """Start what the form says. Errors appear in the form."""
        try:
            run = wb.launch(**self.fields.wish(), store=self.store)
        except Exception as error:  # noqa: BLE001 - whatever it is, the form has to say it
            self._show(problem=_sentence(error))
        else:
            self.run = run
            self.preview.note = f"Launched as {run.id}. It runs on if you close this page."

    def _show(self, *, command: str = "", problem: str = "", note: str = "") -> None:
        with self.preview.hold_sync():
            self.preview.command, self.preview.problem, self.preview.note = command, problem, note
        self.button.disabled = bool(problem)

    def _on_change(self, _change: object) -> None:
        self._changed.set()

    def _refresh_later(self) -> None:
        """Dry runs follow the typing in a thread of their own; the last state of the form wins."""
        while self._changed.wait() and self.comm is not None:
            self._changed.clear()
            self.refresh()

    def _on_click(self, _button: object) -> None:
        """Runs in the kernel's main thread or in a subshell, so it only hands over."""
        threading.Thread(target=self._launch_once, name="workbench-launch", daemon=True).start()

    def _launch_once(self) -> None:
        if not self._launching.acquire(blocking=False):
            return  # a double click is one launch
        try:
            self.button.disabled = True
            self.launch()
        finally:
            self.button.disabled = bool(self.preview.problem)
            self._launching.release()

    def close(self) -> None:
        """End the form. Runs go on."""
        close_tree(self.children)
        super().close()
        self._changed.set()

    def __repr__(self) -> str:
        """Plain text for terminals, screen readers and saved notebooks."""
        return f"Launcher({self.preview!r})"


def close_tree(faces: Iterable[widgets.Widget]) -> None:
    """Close widgets and what is inside them; ipywidgets leaves the children open."""
    for face in faces:
        close_tree(face.children if isinstance(face, widgets.Box) else ())
        if face.comm is not None:
            face.close()


def _sentence(error: Exception) -> str:
    """The message of an error made for people; of any other, its type too."""
    if isinstance(error, wb.WorkbenchError | ValueError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _note(request: Any) -> str:
    """One line under the command: where it runs and what it is predicted to need."""
    device = "GPU" if request.device == "cuda" else "CPU"
    many = "process" if request.processes == 1 else "processes"
    parts = [f"{request.processes} {device} {many}"]
    if request.predicted is not None:
        parts.append(f"{format_bytes(request.predicted.total_bytes)} predicted for each")
    return ", ".join(parts) + "."

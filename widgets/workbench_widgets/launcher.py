"""``Launcher``: the form that starts a run."""

from __future__ import annotations

import shlex
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
from workbench_widgets.options import refuse_unknown
from workbench_widgets.run_dashboard import send_asset

_OPTIONS = ("store", "target", "arguments", "strategy", "processes", "cpu", "name")
_ANY_SCRIPT = "\0script"  # no recipe has this name
_STRATEGIES = [("DDP: a copy per process", "ddp"), ("One process", "single")]


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
        strategy: ``"ddp"`` or ``"single"``.
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
        self.fields = _Fields(**options)
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


class _Fields:
    """The form's inputs and the wish they state."""

    def __init__(self, **options: Any) -> None:
        known = wb.recipes.recipes()
        gpus = len(wb.detect_host().gpus)
        target = options.get("target") or next(iter(known), "")
        is_recipe = target in known
        wide = widgets.Layout(width="auto", grid_column="span 2")
        auto = widgets.Layout(width="auto")
        self.what = widgets.Dropdown(
            description="What to train",
            options=[*((f"Recipe: {name}", name) for name in known), ("A script …", _ANY_SCRIPT)],
            value=target if is_recipe else _ANY_SCRIPT,
            layout=auto,
        )
        self.path = widgets.Text(
            description="Path of the script",
            value="" if is_recipe else str(target),
            placeholder="train.py",
            layout=auto,
        )
        self.arguments = widgets.Text(
            description="Arguments",
            value=options.get("arguments", "--minutes 2" if is_recipe else ""),
            placeholder="as in a shell",
            layout=wide,
        )
        self.strategy = widgets.Dropdown(
            description="Strategy",
            options=_STRATEGIES,
            value=options.get("strategy") or "ddp",
            layout=auto,
        )
        self.processes = widgets.BoundedIntText(
            description="Processes",
            value=options.get("processes") or gpus or 2,
            min=1,
            max=1024,
            layout=auto,
        )
        self.name = widgets.Text(
            description="Name",
            value=options.get("name") or "",
            placeholder="optional",
            layout=auto,
        )
        self.cpu = widgets.Checkbox(
            description="On the CPU, not the GPUs",
            value=bool(options.get("cpu")),
            indent=False,
            layout=auto,
        )
        self.has_gpus = gpus > 0
        self.inputs = (
            self.what,
            self.path,
            self.arguments,
            self.strategy,
            self.processes,
            self.name,
            self.cpu,
        )
        columns = "repeat(auto-fill, minmax(168px, 1fr))"
        self.box = widgets.GridBox(
            self.inputs, layout=widgets.Layout(grid_template_columns=columns, width="100%")
        )
        self.box.add_class("wb-fields")
        self._adapt()

    def observe(self, changed: Any) -> None:
        """Call back on every change, after the form has adapted itself to it."""
        for field in self.inputs:
            field.observe(self._adapt, names="value")
            field.observe(changed, names="value")

    def _adapt(self, _change: object = None) -> None:
        """Show only what matters: the path for scripts, the CPU box where there are GPUs."""
        self.path.layout.display = "" if self.what.value == _ANY_SCRIPT else "none"
        self.cpu.layout.display = "" if self.has_gpus else "none"
        self.processes.disabled = self.strategy.value == "single"

    def wish(self) -> dict[str, Any]:
        """Keyword arguments of ``wb.request`` and ``wb.launch``.

        Raises:
            ValueError: the arguments have an open quotation mark, or no script was named.
        """
        target = self.path.value.strip() if self.what.value == _ANY_SCRIPT else self.what.value
        if not target:
            raise ValueError("Give the path of a Python script, for example train.py.")
        try:
            arguments = shlex.split(self.arguments.value)
        except ValueError as error:
            raise ValueError(f"The arguments cannot be read: {error}.") from error
        single = self.strategy.value == "single"
        return {
            "target": target,
            "arguments": arguments,
            "strategy": self.strategy.value,
            "processes": 1 if single else self.processes.value,
            "cpu": self.cpu.value,
            "name": self.name.value.strip() or None,
        }


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

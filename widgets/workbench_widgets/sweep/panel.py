"""``Sweep``: the sweeps of a store: trials, figures, the best run; start, stop and resume."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.errors import sentence
from workbench.launching.prepare.options import NAMES
from workbench.observe.view_json import finite
from workbench.sweeping import Sweep as Handle
from workbench.sweeping import find, start, sweeps
from workbench.sweeping.figures import figures
from workbench.sweeping.plan import labels
from workbench.sweeping.prepared import PreparedSweep
from workbench_widgets.fallback_output import store_config
from workbench_widgets.options import refuse_unknown
from workbench_widgets.rereading import StoreFace, check_pause
from workbench_widgets.sweep import form

_FORM = ("target", "arguments", *form.FIELDS)
_OPENED = "run_dashboard.js"
_LAUNCH_NAMES = tuple(
    name for name in NAMES if name not in {*_FORM, "store", "queue", "job", "cluster"}
)
"""Keywords of a launch that have no control."""


class Sweep(StoreFace):
    """The sweeps of a store: each with its trials, figures, hours and dollars; a form starts one.

    Files decide: a sweep continues without this widget, and another one shows the same.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        open: Sweep to show at first: a name or ``"last"`` (the newest, when there is one).
        refresh_seconds: Least time between two readings of the store.
        launch: What has no control and every trial is started with: ``cpu``, ``warm``,
            ``devices``, ``environment`` …, as for ``wb.launch``.

    Raises:
        TypeError: an unknown option.
        UsageError: `open` names no sweep of the store.
        ValueError: an option out of its range.
    """

    _unread: dict[str, Any] | None = None  # what was said of sweeps that could not be read
    names = traitlets.List().tag(sync=True)
    shown = traitlets.Dict().tag(sync=True)
    figures = traitlets.Dict().tag(sync=True)
    ready = traitlets.Dict().tag(sync=True)
    said = traitlets.Dict({"text": "", "bad": False}).tag(sync=True)

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        open: str = "last",  # noqa: A002 - the word on the button
        refresh_seconds: float = 2.0,
        _openable: bool = False,
        **launch: Any,
    ) -> None:
        refuse_unknown("Sweep", launch, ("store", "open", "refresh_seconds", *_LAUNCH_NAMES))
        check_pause(refresh_seconds)
        self.store = Path(wb.Store(store).root)
        self._launch = launch
        self._working = threading.RLock()
        self._handles: dict[str, Handle] = {}
        self._prepared: PreparedSweep | None = None
        self._drawn: Any = None
        self._opened = "" if open == "last" else find(open, self.store).name
        opens = None if _openable else _OPENED  # Open shows it below the table
        config = store_config(self.store, face="sweep.js", openable=_openable, opens=opens)
        config |= {"fields": form.controls(), "first": form.first_values()}
        super().__init__(config)
        self._read(draw=False)  # the figures follow: Optuna and plotly take half a second to load
        self.start_rereading("workbench-sweep", refresh_seconds, at_once=True)

    def show(self, name: str) -> None:
        """Show a sweep: a name, unique prefix or "last".

        Raises:
            UsageError: there is none, or several fit.
        """
        sweep = find(name, self.store)
        with self._working:
            self._opened = sweep.name
            self.refresh()

    def refresh(self) -> None:
        """Read the files now; what has not changed is not sent again."""
        self._read(draw=True)

    def _read(self, *, draw: bool) -> None:
        with self._working:
            sweeps_here = {sweep.name: sweep for sweep in sweeps(self.store)}
            unchanged = {
                name: old
                for name, old in self._handles.items()
                if name in sweeps_here and old.plan.id == sweeps_here[name].plan.id
            }
            self._handles = {**sweeps_here, **unchanged}
            self.names = [
                {
                    "name": name,
                    "state": self._handles[name].state,
                    "varied": labels(sweep.plan.parameters),
                }
                for name, sweep in sweeps_here.items()
            ]
            if self._opened not in sweeps_here:
                self._opened = next(iter(sweeps_here), "")
            sweep = self._handles.get(self._opened)
            try:
                self._show(sweep, draw=draw)
            except wb.HostError as error:  # without Optuna there is nothing to read trials with
                self.shown, self.figures = {}, {}
                self._say_unread(error)
            else:
                self._take_back_unread()

    def _say_unread(self, error: Exception) -> None:
        self.said = self._unread = {"text": sentence(error), "bad": True}

    def _take_back_unread(self) -> None:
        """They can be read again; what a button said stays."""
        if self._unread is not None and self.said == self._unread:
            self.said = {"text": "", "bad": False}
        self._unread = None

    def _show(self, sweep: Handle | None, *, draw: bool) -> None:
        if sweep is None:
            self.shown, self.figures, self._drawn = {}, {}, None
            return
        about = sweep.document()
        about["names"] = [parameter.name for parameter in sweep.plan.parameters]
        about["steps_total"] = sweep.plan.steps_total
        self.shown = finite(about)
        ended = about["so_far"]
        looked = [row["value"] for row in about["trials"]] if about["first_look"] else None
        key = [sweep.plan.id, ended["finished"], ended["pruned"], ended["failed"], looked]
        if draw and key != self._drawn:  # importance takes a while: only where something is new
            drawn = figures(sweep)
            self.figures = {title: json.loads(figure.to_json()) for title, figure in drawn.items()}
            self._drawn = key

    def check(self, **values: str) -> None:
        """Hold a form against script and host: `ready` says what would start, and what it takes.

        Raises:
            UsageError: it cannot be started so.
            HostError: Optuna, torch or accelerate is missing here.
        """
        refuse_unknown("Sweep.check", values, _FORM)
        with self._working:
            self._prepared, self.ready = None, {}
            form_values = {**form.first_values(), **values}
            self._prepared = form.prepared(form_values, self.store, self._launch)
            self.ready = {**form.document(self._prepared), "values": values}

    def start(self) -> Handle:
        """Start what was checked last; returns its handle.

        Raises:
            UsageError: nothing was checked.
            StoreError: the store cannot be written.
        """
        with self._working:
            if self._prepared is None:
                raise wb.UsageError("Press Predict first: it shows what would start.")
            prepared, self._prepared, self.ready = self._prepared, None, {}
            made = start(prepared)
            self.show(made.name)
            return made

    def reread(self) -> None:
        """Read the sweeps; where their store has gone, the panel says so."""
        try:
            self.refresh()
        except (wb.WorkbenchError, OSError) as error:
            self._say_unread(error)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        """Runs in the kernel's main thread, so it only hands over."""
        if kind == "open":
            run = str(message.get("run"))
            if run in {row["run"] for row in self.shown.get("trials", [])}:
                for callback in self._on_open:
                    callback(run)
        elif kind in {"show", "check", "start", "stop", "resume"}:
            threading.Thread(target=self.act, args=(kind, message), daemon=True).start()

    def act(self, kind: str, message: dict[str, Any]) -> None:
        """Do what a button says; an error appears in the panel."""
        try:
            with self._working:
                self._do(kind, message)
        except Exception as error:  # noqa: BLE001 - whatever it is, the panel has to say it
            self.said = {"text": sentence(error), "bad": True, "of": kind}
        else:
            self.said = {"text": "", "bad": False, "of": kind}

    def _do(self, kind: str, message: dict[str, Any]) -> None:
        values = message.get("values")
        if kind == "show":
            self.show(str(message.get("sweep")))
        elif kind == "check" and isinstance(values, dict):
            self.check(**{name: str(values[name]) for name in _FORM if name in values})
        elif kind == "start":
            if self.ready and values is not None and values != self.ready["values"]:
                raise wb.UsageError("The form says something else by now: press Predict again.")
            self.start()
        elif kind in {"stop", "resume"}:
            handle = self._handles.get(str(message.get("sweep")))
            if handle is not None:
                handle.request_stop() if kind == "stop" else handle.resume()
            self.refresh()

    def __repr__(self) -> str:
        if not self.shown:
            return f"Sweep: none in {self.store}"
        about, best = self.shown, self.shown["best"] or {}
        ended = about["planned"] - about["so_far"]["running"] - about["so_far"]["waiting"]
        line = f"Sweep {about['sweep']}: {about['state']}, {ended} of {about['planned']} trials"
        chosen = ", ".join(f"{name}={value}" for name, value in (best.get("values") or {}).items())
        return (
            f"{line}\n  best: {chosen}, {about['metric_text']} {best['value']:.6g}"
            if best
            else line
        )

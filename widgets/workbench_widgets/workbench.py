"""``Workbench``: estimate, launch, watch and compare runs; the start notebook's one cell."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

import workbench as wb
from workbench.errors import sentence
from workbench_widgets import assets
from workbench_widgets.answering import in_background, inner_faces
from workbench_widgets.control_tree import ControlBox
from workbench_widgets.cost.calculator import CostCalculator
from workbench_widgets.fallback_output import show, store_config
from workbench_widgets.launch.launcher import Launcher, close_tree
from workbench_widgets.lessons import Lessons
from workbench_widgets.memory.calculator import MemoryCalculator
from workbench_widgets.options import refuse_extra
from workbench_widgets.planner.planner import Planner
from workbench_widgets.queue.panel import QueuePanel
from workbench_widgets.run.dashboard import RunDashboard
from workbench_widgets.store.compare import Compare
from workbench_widgets.store.runs import Runs
from workbench_widgets.sweep.panel import Sweep

_HINT = "No run is open. Launch one above, or open one in the tab Runs."
_LAUNCH = "Launch"


class Workbench(ControlBox):
    """Tabs: launch and watch a run, runs, queue, sweeps, memory, cost, plans, comparison, lessons.

    Once a run is launched or opened, the form folds to a line above its dashboard.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        open: Run to open at first: an id, a name, ``"last"`` (the newest, when there is one)
            or None.
        warm: Launch from a process that has torch imported: seconds sooner. It is started at once,
            in the background; the form says when it is ready.

    Raises:
        TypeError: an unknown option.
        RunNotFoundError: `open` names a run that is not in the store.
    """

    runs: Any = None  # closing what was refused has none

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        open: str | None = "last",  # noqa: A002 - the word on the button
        warm: bool = False,
        **unknown: object,
    ) -> None:
        refuse_extra(Workbench, unknown)
        self.store = Path(wb.Store(store).root)
        self.launcher = Launcher(store=self.store, warm=warm)
        self.runs = Runs(store=self.store, _openable=True)
        self.dashboard: RunDashboard | None = None
        hint = widgets.Label(_HINT)
        hint.add_class("wb-hint")
        self._place = widgets.VBox([hint])
        self._form_button = widgets.Button(description="New run", icon="plus")
        self._form_button.add_class("wb-form-fold")
        self._form_button.layout.display = "none"
        self._form_button.on_click(lambda _: self.fold_form(folded=False))
        self._switching = threading.Lock()
        self._asks, self._shown_ask = itertools.count(1), 0
        self._identity = uuid.uuid4().hex[:12]
        self._makers = self._tab_makers()
        self._tabs = widgets.Tab([widgets.VBox() for _ in self._makers], titles=[*self._makers])
        self._tabs.add_class("wb-tabs")
        super().__init__([self._tabs])
        self._build(_LAUNCH)
        self.launcher.observe(lambda change: self.show(change["new"]), names="run")
        self._tabs.observe(self._on_tab, names="selected_index")
        self.runs.on_open(self._open_later)
        if open is not None:
            self._open_first(open)

    def _tab_makers(self) -> dict[str, Callable[[], list[widgets.Widget]]]:
        """What is in each tab, in their order; made when someone looks there. A line a tab."""
        return {
            _LAUNCH: lambda: [self._form_button, self.launcher, self._place],
            "Runs": lambda: [self.runs],
            "Queue": lambda: [QueuePanel(store=self.store)],
            "Sweep": lambda: [self._sweep()],
            "Memory": lambda: [MemoryCalculator()],
            "Cost": lambda: [CostCalculator()],
            "Plan": lambda: [self._planner()],
            "Compare": lambda: [Compare(store=self.store)],
            "Learn": lambda: [Lessons()],
        }

    def _sweep(self) -> Sweep:
        made = Sweep(store=self.store, _openable=True)
        made.on_open(self._open_later)
        return made

    def _planner(self) -> Planner:
        """For this host's GPUs where it has some; its plans are handed to the form."""
        return Planner(launcher=self.launcher, here=wb.detect_host().accelerator is not None)

    def _on_tab(self, change: dict[str, Any]) -> None:
        if change["new"] is None:
            return
        tab = [*self._makers][change["new"]]
        before = tuple(self._tabs.children[change["new"]].children)
        with inner_faces():
            self._build(tab)
        for face in before:  # made at an earlier look: runs may have come since
            if isinstance(face, Compare):
                face.refresh_later()

    def _build(self, tab: str) -> tuple[widgets.Widget, ...]:
        box = self._tabs.children[[*self._makers].index(tab)]
        if not box.children:
            box.children = self._makers[tab]()
        return tuple(box.children)

    def open_tab(self, tab: str) -> tuple[widgets.Widget, ...]:
        """Bring a tab to the front; returns the faces in it.

        Raises:
            ValueError: there is no such tab.
        """
        if tab not in self._makers:
            raise ValueError(f"tab={tab!r}: choose one of {', '.join(self._makers)}")
        self._tabs.selected_index = [*self._makers].index(tab)
        return self._build(tab)

    def fold_form(self, *, folded: bool = True) -> None:
        """Give the room of the launch form to the dashboard, or take it back."""
        self.launcher.layout.display = "none" if folded else None
        self._form_button.layout.display = None if folded else "none"

    def _open_first(self, run: str) -> None:
        try:
            handle = wb.attach(run, self.store)
        except wb.RunNotFoundError:
            if run != "last":
                raise
            return  # an empty store: the hint says what to do
        self.show(handle, folded=run != "last" or handle.status.live)

    def _open_later(self, run: str) -> None:
        """Open pressed: reading the run may take a while, so not in the kernel's thread."""
        ask = next(self._asks)

        def attach() -> None:
            try:
                self._show(wb.attach(run, self.store), ask)
            except wb.WorkbenchError:
                self.runs.refresh()  # deleted meanwhile

        in_background(attach, "workbench-open")

    def show(self, run: Any, *, folded: bool = True) -> None:
        """Show this run's dashboard in place of the one before, the launch form folded."""
        self._show(run, next(self._asks), folded=folded)

    def _show(self, run: Any, ask: int, *, folded: bool = True) -> None:
        """Unless a run that was asked for later is shown already."""
        with self._switching:
            if ask < self._shown_ask:
                return
            self._shown_ask = ask
            before, self.dashboard = self.dashboard, RunDashboard(run, _reusable=True)
            self.dashboard.on_reuse(self._reuse_later)
            if folded:  # someone asked for this run: it comes into sight
                self.dashboard.config = {**self.dashboard.config, "reveal": True}
            self.fold_form(folded=folded)
            self._place.children = (self.dashboard,)
            self._tabs.selected_index = 0
            self.runs.opened = run.id
            self._note_open(run.id)
            if before is not None:
                before.close()
        self.runs.refresh()

    def reuse(self, run: Any) -> None:
        """Set the launch form to what a run was launched with, and bring it into sight.

        Raises:
            UsageError: as `Launcher.reuse`.
        """
        self.fold_form(folded=False)
        self._tabs.selected_index = 0
        self.launcher.reuse(run)

    def _reuse_later(self, run: Any) -> None:
        dashboard = self.dashboard

        def reuse() -> None:
            try:
                self.reuse(run)
            except (wb.WorkbenchError, OSError) as error:
                text = f"Not reused: {sentence(error)}"
                if dashboard is not None:
                    dashboard.send({"type": "resumed", "bad": True, "run": run.id, "text": text})

        in_background(reuse, "workbench-reuse")

    @property
    def _open_name(self) -> str:
        return f"open-{self._identity}.json"

    def _note_open(self, run_id: str) -> None:
        """Tell the fallback which run to draw while the kernel cannot."""
        try:
            folder = self.store / assets.ASSETS_FOLDER
            assets.write_atomic(folder / self._open_name, json.dumps({"run": run_id}).encode())
        except OSError:
            return  # a read-only store has no fallback

    def close(self) -> None:
        """End the faces. Runs continue."""
        close_tree([*self.children, *([] if self.runs is None else [self.runs])])
        super().close()

    def _ipython_display_(self) -> None:
        fallback = {"transport": "auto", "refresh_ms": 700, "smoothing": 0.6}
        config = store_config(self.store, face="run_dashboard.js", **fallback)
        config["open_file"] = f"{config['assets_path']}/{self._open_name}"
        show(super()._repr_mimebundle_(), config)

    def __repr__(self) -> str:
        return f"Workbench({str(self.store)!r}, open: {self.dashboard!r})"

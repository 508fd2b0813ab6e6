"""``Workbench``: estimate, launch, watch and compare runs; the start notebook's one cell."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import ipywidgets as widgets

import workbench as wb
from workbench_widgets import assets
from workbench_widgets.cost.calculator import CostCalculator
from workbench_widgets.fallback_output import show, store_config
from workbench_widgets.launch.launcher import Launcher, close_tree
from workbench_widgets.memory.calculator import MemoryCalculator
from workbench_widgets.options import refuse_unknown
from workbench_widgets.planner.planner import Planner
from workbench_widgets.run.dashboard import RunDashboard
from workbench_widgets.store.compare import Compare
from workbench_widgets.store.runs import Runs

_OPTIONS = ("store", "open", "warm")
_FOLDED = (
    "Memory: will it fit?",
    "Cost: what will the run cost?",
    "Plan: which machines, how long, how much?",
    "Compare: settings, results, cost",
)
_HINT = "<p class='wb-hint'>No run is open. Launch one above, or open one from the list below.</p>"


class Workbench(widgets.VBox):
    """The launch form, the calculators and planner (folded), the open run, the table of runs.

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

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        open: str | None = "last",  # noqa: A002 - the word on the button
        warm: bool = False,
        **unknown: object,
    ) -> None:
        refuse_unknown("Workbench", unknown, _OPTIONS)
        self.store = Path(wb.Store(store).root)
        self.launcher = Launcher(store=self.store, warm=warm)
        self.runs = Runs(store=self.store, _openable=True)
        self.dashboard: RunDashboard | None = None
        self._place = widgets.VBox([widgets.HTML(_HINT)])
        self._switching = threading.Lock()
        self._identity = uuid.uuid4().hex[:12]
        self._fold = widgets.Accordion(
            [widgets.VBox() for _ in _FOLDED], titles=_FOLDED, selected_index=None
        )
        super().__init__([self.launcher, self._fold, self._place, self.runs])
        self.launcher.observe(lambda change: self.show(change["new"]), names="run")
        self._fold.observe(self._unfold, names="selected_index")
        self.runs.on_open(self._open_later)
        if open is not None:
            self._open_first(open)

    def _open_first(self, run: str) -> None:
        try:
            handle = wb.attach(run, self.store)
        except wb.RunNotFoundError:
            if run != "last":
                raise
            return  # an empty store: the hint says what to do
        self.show(handle)

    def _unfold(self, change: dict[str, Any]) -> None:
        """A calculator is made when somebody asks for it."""
        if change["new"] is None:
            return
        box = self._fold.children[change["new"]]
        if not box.children:
            made = (MemoryCalculator, CostCalculator, self._planner, self._comparing)[change["new"]]
            box.children = (made(),)

    def _planner(self) -> Planner:
        """Its plans are handed to this form."""
        return Planner(launcher=self.launcher)

    def _comparing(self) -> Compare:
        """Over the same store."""
        return Compare(store=self.store)

    def _open_later(self, run: str) -> None:
        """Open pressed: reading the run may take a while, so not in the kernel's thread."""

        def attach() -> None:
            try:
                self.show(wb.attach(run, self.store))
            except wb.WorkbenchError:
                self.runs.refresh()  # deleted meanwhile

        threading.Thread(target=attach, name="workbench-open", daemon=True).start()

    def show(self, run: Any) -> None:
        """Show this run's dashboard in place of the one before."""
        with self._switching:
            before, self.dashboard = self.dashboard, RunDashboard(run)
            self._place.children = (self.dashboard,)
            self.runs.opened = run.id
            self._note_open(run.id)
            if before is not None:
                before.close()
        self.runs.refresh()

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
        """End the faces. Runs go on."""
        close_tree(self.children)
        super().close()

    def _ipython_display_(self) -> None:
        fallback = {"transport": "auto", "refresh_ms": 700, "smoothing": 0.6}
        config = store_config(self.store, face="run_dashboard.js", **fallback)
        config["open_file"] = f"{config['assets_path']}/{self._open_name}"
        show(super()._repr_mimebundle_(), config)

    def __repr__(self) -> str:
        """Plain text for terminals, screen readers and saved notebooks."""
        return f"Workbench({str(self.store)!r}, open: {self.dashboard!r})"

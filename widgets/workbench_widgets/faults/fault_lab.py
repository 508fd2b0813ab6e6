"""``FaultLab``: break a small training at the press of a button, and watch what is found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

import workbench as wb
from workbench.errors import sentence
from workbench_widgets.answering import in_background
from workbench_widgets.control_tree import ControlBox
from workbench_widgets.faults import faults
from workbench_widgets.launch.launcher import close_tree
from workbench_widgets.note import Note
from workbench_widgets.options import refuse_extra
from workbench_widgets.run.dashboard import RunDashboard
from workbench_widgets.run.face import handle_of

_BEGIN = "Start the training, wait for its first steps, then inject a fault."
_GOING = "Training runs: two processes on this machine. Inject a fault at any time."


class FaultLab(ControlBox):
    """Start a training of two processes, break it for real, and read what is found.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        run: A run of `start` to continue with, or its name in `store`; default: none yet.
        restarts: How often a failed run is started again from its newest whole checkpoint.
        transport: As for `RunDashboard`.

    ``dashboard`` shows the run; ``run`` is its handle.

    Raises:
        TypeError: an unknown option.
        RunNotFoundError: no run of that name.
    """

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        run: wb.Run | str | Path | None = None,
        restarts: int = 2,
        transport: str = "auto",
        **unknown: object,
    ) -> None:
        refuse_extra(FaultLab, unknown)
        self.store = Path(wb.Store(store).root)
        self.run: wb.Run | None = None
        self.dashboard: RunDashboard | None = None
        self._restarts, self._transport = restarts, transport
        self._busy = threading.Lock()
        self._place = widgets.VBox()
        self.note = Note(self.store)
        super().__init__([self._form(), self._place])
        self._say(_BEGIN)
        if run is not None:
            self._show(handle_of(run, self.store))

    def _form(self) -> widgets.VBox:
        self.rank = widgets.Dropdown(options=[("rank 0", 0), ("rank 1", 1)], value=1)
        self.ms = widgets.BoundedIntText(value=100, min=1, max=60_000)
        self.begin = widgets.Button(description="Start the training", button_style="primary")
        self.healing = widgets.Button(
            description="Heal", tooltip=("End lasting faults: slow, frozen")
        )
        self.begin.on_click(self._begin_once)
        self.healing.on_click(lambda _button: self._later(self.heal))
        fields = widgets.HBox(
            [
                self.begin,
                self._labelled("Break", self.rank),
                self._labelled("Milliseconds, for slow faults", self.ms),
                self.healing,
            ]
        )
        fields.add_class("wb-lab-row")
        self.buttons: dict[str, widgets.Button] = {}
        rows = [self._group(name, group) for name, group in faults.groups().items()]
        table = widgets.VBox(rows)
        form = widgets.VBox([fields, table, self.note])
        form.add_class("wb-form")
        form.add_class("wb-lab")
        self._enable(on=False)
        return form

    @staticmethod
    def _labelled(label: str, field: Any) -> widgets.Widget:
        field.description = label
        field.layout.width = "auto"
        field.style.description_width = "initial"
        field.layout.min_width = "84px"
        return field

    def _group(self, name: str, group: list[faults.Fault]) -> widgets.HBox:
        label = widgets.Label(name)
        label.add_class("wb-lab-group")
        buttons = list[widgets.Widget]()
        for fault in group:
            button = widgets.Button(description=fault.title)
            button.on_click(self._pressed(fault.name))
            self.buttons[fault.name] = button
            buttons.append(button)
        row = widgets.HBox([label, *buttons])
        row.add_class("wb-lab-row")
        return row

    def _pressed(self, name: str) -> Callable[[object], None]:
        return lambda _button: self._later(
            lambda: self.inject(name, rank=int(self.rank.value or 0))
        )

    def _later(self, action: Callable[[], object]) -> None:
        """Clicks only hand over; what goes wrong is said in the form."""

        def act() -> None:
            with self._busy:  # one after the other, in the order of the clicks
                try:
                    action()
                except Exception as error:  # noqa: BLE001 - whatever it is, the form has to say it
                    self._say(sentence(error), bad=True)

        in_background(act, "workbench-fault")

    def _begin_once(self, _button: object) -> None:
        """A double click is one start."""
        self.begin.disabled = True

        def start() -> None:
            try:
                self.start()
            finally:
                self.begin.disabled = False

        self._later(start)

    def start(self, **options: Any) -> wb.Run:
        """Start a training and show it; `options` are those of `faults.start`.

        Raises:
            UsageError: the one before still trains.
        """
        if self.run is not None and self.run.status.live:
            raise wb.UsageError(
                f"{self.run.id} is still training. Inject a fault or stop it first."
            )
        run = faults.start(store=self.store, **{"restarts": self._restarts, **options})
        self._show(run)
        return run

    def inject(self, name: str, *, rank: int = 1, ms: float | None = None) -> str:
        """Break the training; returns what to look at, and says it in the form.

        Raises:
            UnknownNameError: no such fault.
            UsageError: nothing trains, or there is no such rank.
        """
        if self.run is None:
            raise wb.UsageError("Start the training first.")
        look = faults.inject(self.run, name, rank=rank, ms=self.ms.value if ms is None else ms)
        self._say(look)
        return look

    def heal(self) -> None:
        """End a lasting fault."""
        if self.run is not None:
            faults.heal(self.run)
            self._say("Fault ended. The finding clears after a few normal steps.")

    def _show(self, run: wb.Run) -> None:
        before, self.dashboard = self.dashboard, RunDashboard(run, transport=self._transport)
        self.run = run
        self._place.children = (self.dashboard,)
        if before is not None:
            before.close()
        self._enable(on=True)
        self._say(_GOING)

    def _enable(self, *, on: bool) -> None:
        for button in (*self.buttons.values(), self.healing):
            button.disabled = not on

    def _say(self, text: str, *, bad: bool = False) -> None:
        self.note.say(text, bad=bad)

    def close(self) -> None:
        """End the faces. The training continues."""
        close_tree(self.children)
        super().close()

    def __repr__(self) -> str:
        return f"FaultLab({self.dashboard!r})" if self.dashboard else "FaultLab(not started)"

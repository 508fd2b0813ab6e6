"""``MemoryCalculator``: what a training job needs on its fullest GPU, while the sliders move."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anywidget
import traitlets

import workbench as wb
from workbench_widgets import assets
from workbench_widgets.keeper import store_config
from workbench_widgets.memory_choice import MemoryChoice
from workbench_widgets.memory_fields import fields
from workbench_widgets.memory_figure import figure
from workbench_widgets.memory_simulation import ExactRun
from workbench_widgets.memory_switches import advice
from workbench_widgets.memory_text import as_text
from workbench_widgets.run_dashboard import send_asset

SETTLED_SECONDS = 0.08  # without a move; then the advice follows, which costs more to find


class MemoryCalculator(anywidget.AnyWidget):
    """Controls for model, GPU, strategy and batch; three numbers, their parts, and what would help.

    Args:
        **options: A control's first value: ``model`` (catalog name or path of a ``config.json``),
            ``gpu`` (a name, or several to compare), ``gpus`` (per node), ``nodes``, ``strategy``
            (default ``"single"``, with several GPUs ``"ddp"``), ``tp``, ``pp``, ``cp``, ``ep``,
            ``schedule``, ``sequence_parallel``, ``precision``, ``optimizer``, ``recompute``,
            ``lora_rank``, ``lora_targets``, ``quantization``, ``attention``, ``loss``,
            ``kernels``, ``offload``, ``expandable_segments``, ``optimizer_in_backward``,
            ``bucket_views``, ``micro_batch``, ``seq_len``, ``accumulate``.

    ``estimate`` is the ``wb.Estimate`` of what the controls say, ``choice`` all their values.

    Raises:
        TypeError: an unknown option.
        UsageError: a value that cannot be.
    """

    _esm = assets.LOADER
    config = traitlets.Dict().tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)
    figure = traitlets.Dict().tag(sync=True)
    advice = traitlets.Dict().tag(sync=True)
    problem = traitlets.Dict().tag(sync=True)
    answered = traitlets.Unicode("").tag(sync=True)
    exact = traitlets.Dict().tag(sync=True)
    _exact: ExactRun | None = None
    _later: threading.Timer | None = None

    def __init__(self, **options: Any) -> None:
        self.choice = MemoryChoice.from_options(options)
        self._changing = threading.Lock()
        self._advising = threading.Lock()
        self._moves = 0
        self._exact = ExactRun(self._show_exact)
        config = store_config(
            Path(wb.Store(None).root), face="memory_calculator.js", groups=fields()
        )
        super().__init__(
            config=config,
            controls=self._controls(),
            figure=self._figure(),
            advice=self._advice(self.choice),
        )
        self.on_msg(self._on_message)

    @property
    def estimate(self) -> wb.Estimate:
        """The closed form's answer for what the controls say.

        Raises:
            UsageError: the controls say something that cannot be.
        """
        choice = self.choice
        return wb.training_memory(choice.workload(), choice.layout(), choice.cluster())

    def set(self, **changes: Any) -> None:
        """Move controls from Python, as the page does.

        Raises:
            TypeError: an unknown control.
        """
        MemoryChoice.from_options(changes)
        self._change(changes)
        self._advise(self.choice)

    def _controls(self) -> dict[str, Any]:
        return {"values": self.choice.document(), "hidden": self.choice.hidden()}

    def _figure(self) -> dict[str, Any]:
        return {**figure(self.choice), "at": self._moves}

    def _advice(self, choice: MemoryChoice) -> dict[str, Any]:
        return {**advice(choice), "at": self._moves}

    def _change(self, changes: dict[str, Any], token: str = "") -> None:
        """One move of a control: one message back. The last good figure stays when it cannot be."""
        with self._changing, self.hold_sync():
            self._moves += 1
            self.choice = self.choice.changed(changes)
            self.controls = self._controls()
            self.answered = token
            try:
                self.figure = self._figure()
                self.problem = {}
            except Exception as error:  # noqa: BLE001 - whatever it is, the control has to say it
                self.problem = {"field": next(iter(changes), ""), "message": sentence(error)}

    def _advise_later(self) -> None:
        """Advice for the controls as they stand once nobody moves them any more."""
        if self._later is not None:
            self._later.cancel()
        self._later = threading.Timer(SETTLED_SECONDS, self._advise, (self.choice,))
        self._later.name, self._later.daemon = "workbench-advice", True
        self._later.start()

    def _advise(self, choice: MemoryChoice) -> None:
        """One at a time: what has been overtaken by another move is not computed any more."""
        with self._advising:
            if self.choice is not choice:
                return
            try:
                found = self._advice(choice)
            except Exception:  # noqa: BLE001 - the figure has the same problem and says it
                return
        with self._changing:
            if self.choice is choice and self.comm is not None:
                self.advice = found

    def _show_exact(self, state: dict[str, Any]) -> None:
        with self._changing:
            self.exact = state

    def _on_message(self, _widget: object, message: Any, _buffers: object) -> None:
        """Answer the front end. Runs in the kernel's main thread or a subshell: never blocks."""
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "asset" and message.get("name") in ("bundle", "plotly"):
            send_asset(self, message["name"])
        elif kind == "change" and isinstance(message.get("changes"), dict):
            self._change(message["changes"], str(message.get("token", "")))
            self._advise_later()
        elif kind == "simulate" and self._exact is not None:
            self._exact.start(self.choice)
        elif kind == "cancel" and self._exact is not None:
            self._exact.cancel()

    def close(self) -> None:
        """End the widget, and a simulation that is under way."""
        if self._exact is not None:
            self._exact.cancel()
        if self._later is not None:
            self._later.cancel()
        super().close()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget; where no JavaScript runs, the same figures as text."""
        bundle = super()._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/plain"] = repr(self)
        return bundle

    def __repr__(self) -> str:
        """Plain text for terminals, screen readers and saved notebooks."""
        said = self.problem.get("message")
        text = as_text(self.figure, self.advice)
        return f"{said}\n(The last valid setting:)\n{text}" if said else text


def sentence(error: Exception) -> str:
    """The message of an error made for people; of any other, its type too."""
    if isinstance(error, wb.WorkbenchError | ValueError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"

"""``MemoryCalculator``: what a training job needs on its fullest GPU, while the sliders move."""

from __future__ import annotations

import threading
from typing import Any

import traitlets

import workbench as wb
from workbench_widgets.calculator import Calculator
from workbench_widgets.debounce import Debouncer
from workbench_widgets.job_form import JobForm
from workbench_widgets.memory.fields import fields
from workbench_widgets.memory.figure import as_text, figure
from workbench_widgets.memory.simulation import ExactRun
from workbench_widgets.memory.switches import advice

SETTLED_SECONDS = 0.08  # without a move; then the advice follows, which costs more to find


class MemoryCalculator(Calculator):
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

    advice = traitlets.Dict().tag(sync=True)
    exact = traitlets.Dict().tag(sync=True)
    _exact: ExactRun | None = None

    def __init__(self, **options: Any) -> None:
        self._later = Debouncer("workbench-advice")
        self._advising = threading.Lock()
        self._exact = ExactRun(self._show_exact)
        choice = JobForm.from_options(options)
        super().__init__(choice, face="memory_calculator.js", groups=fields())
        self.advice = self._advice(choice)

    @property
    def estimate(self) -> wb.Estimate:
        """The closed form's answer for what the controls say.

        Raises:
            UsageError: the controls say something that cannot be.
        """
        choice = self.choice
        return wb.training_memory(choice.job())

    def _figure(self) -> dict[str, Any]:
        return {**figure(self.choice), "at": self._moves}

    def _advice(self, choice: JobForm) -> dict[str, Any]:
        document = advice(choice)
        return {
            **document,
            "why": [self.with_labels(text) for text in document["why"]],
            "at": self._moves,
        }

    def _text(self) -> str:
        return as_text(self.figure, self.advice)

    def _moved(self, *, at_once: bool = False) -> None:
        """Advice for the controls as they stand, once they have stopped moving."""
        if at_once:
            self._later.cancel()
            self._advise(self.choice)
        else:
            self._later.after(SETTLED_SECONDS, self._advise, self.choice)

    def _advise(self, choice: JobForm) -> None:
        """One at a time: what has been overtaken by another move is not computed any more."""
        with self._advising:
            if self.choice is not choice:
                return
            try:
                advice = self._advice(choice)
            except Exception:  # noqa: BLE001 - the figure has the same problem and says it
                return
        with self._changing:
            if self.choice is choice and self.comm is not None:
                self.advice = advice

    def _show_exact(self, state: dict[str, Any]) -> None:
        with self._changing:
            self.exact = state

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        if kind == "simulate" and self._exact is not None:
            self._exact.start(self.choice)
        elif kind == "cancel" and self._exact is not None:
            self._exact.cancel()
        else:
            super()._receive(kind, message)

    def close(self) -> None:
        """End the widget, and a simulation that is under way."""
        if self._exact is not None:
            self._exact.cancel()
        self._later.cancel()
        super().close()

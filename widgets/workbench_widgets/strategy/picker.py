"""``StrategyPicker``: how to spread a run, which rank then holds what, or why it cannot be."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import traitlets

import workbench as wb
from workbench.errors import sentence
from workbench.units import UNKNOWN
from workbench_widgets.calculator import Calculator
from workbench_widgets.strategy.advice import advice_lines
from workbench_widgets.strategy.choice import StrategyChoice
from workbench_widgets.strategy.fields import fields
from workbench_widgets.strategy.figure import NOTHING, figure
from workbench_widgets.strategy.preview import Look, NoTargetError, look

_LABELS = {"--nproc": "Processes", "--strategy": "Spread by"}
"""Flags whose controls have other names."""
ReadKeywords = Callable[[], dict[str, Any]]
"""What is trained where: keyword arguments of ``wb.request``, all but the strategy."""


class StrategyPicker(Calculator):
    """A strategy by goal or by hand: its ranks, memory and time, or the sentence against it.

    Args:
        target: A recipe's name or the path of a script.
        arguments: The script's arguments, as typed in a shell or as a list; default: the recipe's
            own for a first look on this host.
        cpu: Use CPU ranks even if there are GPUs.
        **options: A control's first value: ``strategy`` (a name such as ``"fsdp"`` or
            ``"pp2-dp2-tp2"``, or a ``wb.Strategy``), ``processes`` (default all GPUs, or 2 on a
            host without), ``goal`` (``"hand"``, ``"fit"``, ``"fast"``, ``"cheap"``), the degrees
            ``pp``, ``dp``, ``fsdp``, ``cp``, ``tp``, and the options of a strategy by name.

    ``strategy`` is the ``wb.Strategy`` of the controls, None while they say something that cannot
    be; ``problem["message"]`` then says why. ``request`` is the checked ``wb.Request``.

    Raises:
        TypeError: an unknown option.
        UsageError: a strategy that the controls cannot say.
    """

    strategy = traitlets.Any(None, allow_none=True)

    def __init__(
        self,
        target: str = "gpt",
        arguments: str | Sequence[str] | None = None,
        *,
        cpu: bool = False,
        _keywords: ReadKeywords | None = None,
        _labels: Callable[[], Mapping[str, str]] = dict,
        **options: Any,
    ) -> None:
        self._moved_at = threading.Event()  # first: close() needs it whatever is refused below
        choice = StrategyChoice.from_options(_explicit_options(options))
        self._labels_of_form = _labels
        self._keywords = _keywords or _fixed(target, arguments, cpu=cpu)
        self._callbacks: list[Callable[[Look], None]] = []
        self._looking = threading.Lock()
        self._field = ""
        self._of_form = False
        self.choice = choice
        self._drawn = ""
        self.seen = self._look_now()
        super().__init__(choice, face="strategy_picker.js", groups=fields())
        self._show(self.seen)
        threading.Thread(target=self._look_later, name="workbench-picker", daemon=True).start()

    @property
    def request(self) -> wb.Request | None:
        """What would be started; None while the controls say something that cannot be."""
        return self.seen.request

    def on_look(self, callback: Callable[[Look], None]) -> None:
        """Call back after every look at the controls, in the thread that looked."""
        self._callbacks.append(callback)

    def set(self, **changes: Any) -> None:
        """Move controls from Python, as the page does; ``strategy`` sets several at once.

        Raises:
            TypeError: an unknown control.
            UsageError: a strategy that the controls cannot say.
        """
        StrategyChoice.from_options(changes)
        self._change(self.choice.with_options(changes).document())
        self.look()

    def take(self, strategy: wb.Strategy) -> None:
        """Set the controls to exactly this strategy.

        Raises:
            UsageError: it has something that no control says.
        """
        self.set(strategy=strategy)

    def look(self) -> Look:
        """Dry-run what the controls and the form say now, and show it."""
        with self._looking:
            self._moved_at.clear()
            choice = self.choice
            seen = self._look_now()
            if self.choice is choice:
                self._show(seen)
            else:  # someone has moved meanwhile: the next look shows it
                self._moved_at.set()
        for callback in self._callbacks:
            callback(seen)
        return seen

    def look_soon(self, *, of_form: bool = False) -> None:
        """Look in a thread of its own; the last state of the controls wins.

        `of_form`: the form around it has changed, so what is drawn is of other arguments.
        """
        self._of_form = of_form
        self._moved_at.set()

    def _look_now(self) -> Look:
        try:
            keywords = self._keywords()
        except NoTargetError as error:
            return Look(missing=str(error))
        except ValueError as error:
            return Look(problem=sentence(error))
        return look(keywords, self.choice)

    def _look_later(self) -> None:
        while self.comm is not None:  # a look that has begun may clear the wake-up of `close`
            self._moved_at.wait()
            if self.comm is not None:
                self.look()

    def _show(self, look: Look) -> None:
        with self._changing, self.hold_sync():
            self.seen = look
            if look.request is not None:
                self.figure = self._figure_of(look)
                self._drawn = look.target
            elif look.missing or self._of_form or (look.target and look.target != self._drawn):
                self.figure = _nothing(look)  # what is drawn is of another target
                self._drawn = look.target
            message = self.with_labels(look.problem)
            self.problem = {"field": self._field, "message": message} if message else {}
            self.strategy = look.strategy

    def _figure(self) -> dict[str, Any]:
        return self._figure_of(self.seen) if self.seen.request else _nothing(self.seen)

    def _figure_of(self, look: Look) -> dict[str, Any]:
        document = figure(look)
        return {
            **document,
            "warnings": [self.with_labels(warning) for warning in document["warnings"]],
        }

    def _labels(self) -> dict[str, str]:
        """Those of the form around it, too."""
        return {**_LABELS, **self._labels_of_form(), **super()._labels()}

    def _change(self, changes: dict[str, Any], token: str = "") -> None:
        """Controls answer at once; the figure follows from a dry run."""
        with self._changing, self.hold_sync():
            self._moves += 1
            self._field = next(iter(changes), "") if token else ""
            self._of_form = False
            self.choice = self.choice.changed(changes)
            self.controls = self._controls()
            self.answered = token

    def _moved(self, *, at_once: bool = False) -> None:
        if at_once:
            self.look()
        else:
            self.look_soon()

    def _text(self) -> str:
        """The figure for pages without JavaScript."""
        document = self.figure
        lines = [document["headline"], document["setting"], document["step"], *document["why"]]
        lines += [f"Warning: {warning}" for warning in document["warnings"]]
        lines += advice_lines(document["advice"])
        return "\n".join(line for line in lines if line) or UNKNOWN

    def close(self) -> None:
        """End the widget and its thread."""
        super().close()
        self._moved_at.set()


def _nothing(look: Look) -> dict[str, Any]:
    """The empty figure, under what has to be given where that is known."""
    return {**NOTHING, "headline": look.missing or NOTHING["headline"]}


def _explicit_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options left open (None) are left out; as many processes as there are GPUs, else two."""
    explicit = {name: value for name, value in options.items() if value is not None}
    strategy = explicit.get("strategy")
    counted = isinstance(strategy, wb.Strategy) or (
        strategy is not None and wb.Strategy.ranks_of(str(strategy)) is not None
    )
    if "processes" not in explicit and not counted:
        explicit["processes"] = len(wb.detect_host().gpus) or 2
    return explicit


def _fixed(target: str, arguments: str | Sequence[str] | None, *, cpu: bool) -> ReadKeywords:
    if arguments is None:
        recipe = wb.recipes.recipes().get(target)
        gpu = bool(wb.detect_host().gpus) and not cpu
        usual = () if recipe is None else recipe.gpu_arguments if gpu else recipe.cpu_arguments
        arguments = list(usual)
    words = shlex.split(arguments) if isinstance(arguments, str) else list(arguments)
    return lambda: {"target": target, "arguments": words, "cpu": cpu}

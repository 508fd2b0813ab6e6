"""``Arguments``: a script's arguments as fields and as one text, each in step with the other."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.errors import sentence
from workbench.launching.prepare.epoch import epoch_of, shortest_epoch
from workbench.launching.prepare.targets import Target, resolve
from workbench.script_options.checks import problems_in
from workbench.script_options.from_run import WHAT_IT_DOES
from workbench.script_options.reading import read_options
from workbench.script_options.typed_text import Value, values_in, with_value
from workbench.script_options.values import Reading
from workbench.store.measurements import is_batch_option
from workbench.units import format_bytes, format_count, format_seconds, format_usd
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.launch.folders import listing
from workbench_widgets.launch.option_fields import all_options, groups, read_back, shown_values
from workbench_widgets.strategy.preview import Look

_TEXT = ""
"""Name of the control that holds the whole text."""
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


class Arguments(Face):
    """The arguments of what is launched; ``value`` is their text, as in a shell."""

    value = traitlets.Unicode("").tag(sync=True)
    form = traitlets.Dict().tag(sync=True)
    controls = traitlets.Dict().tag(sync=True)
    figure = traitlets.Dict().tag(sync=True)
    answered = traitlets.Unicode("").tag(sync=True)

    def __init__(self, value: str, *, store: Path) -> None:
        self.reading = Reading()
        self._target: Target | None = None
        self._request: wb.Request | None = None
        self._of_look: dict[str, str] = {}
        self._of_move: dict[str, str] = {}
        self._changing = threading.RLock()
        super().__init__(store_config(store, face="launch_fields.js"), value=value)
        self.observe(self._on_value, names="value")
        self._show()

    def read(self, target: str) -> None:
        """Show the fields of a recipe or script; of its source alone: nothing is run."""
        try:
            resolved: Target | None = resolve(target) if target else None
        except wb.UsageError:  # the launch says what is wrong
            resolved = None
        reading = Reading()
        if resolved is not None:
            reading = read_options(resolved.path, recipe=resolved.recipe, module=resolved.module)
        with self._changing:
            self._target, self._of_look, self._of_move = resolved, {}, {}
            self._show_reading(reading)

    def read_by_run(self) -> threading.Thread | None:
        """Run the script up to its parser, in the background; None where there is none."""
        target = self._target
        if target is None or target.recipe:
            return None
        self.form = {**self.form, "running": True}
        thread = threading.Thread(
            target=self._read_by_run, args=(target,), name="workbench-options", daemon=True
        )
        thread.start()
        return thread

    def _read_by_run(self, target: Target) -> None:
        reading = read_options(target.path, module=target.module, run=True)
        with self._changing:
            if self._target is target:
                self._show_reading(reading)

    def set(self, values: Mapping[str, Value]) -> None:
        """Set options by name, each in its place in the text.

        Raises:
            UsageError: a quotation mark is open, or a value cannot stand there.
        """
        text = self.value
        for name, value in values.items():
            text = with_value(text, self.reading.known, name, value)
        self.value = text

    def check(self) -> None:
        """Refuse values that the script's own parser would refuse.

        Raises:
            UsageError: the first of them, or a quotation mark that is open.
        """
        values = values_in(self.value, self.reading.known)
        wrong = problems_in(values, self.reading.known) if self.reading.complete else {}
        for problem in wrong.values():
            raise wb.UsageError(problem)

    def show_look(self, look: Look) -> None:
        """The prediction of what would be started, or what is wrong beside the field it names."""
        with self._changing, self.hold_sync():
            self._request = look.request
            names = [self.reading.known.of(flag) for flag in _FLAG.findall(look.problem)]
            option = next((name for name in names if name is not None), None)
            self._of_look = {option.name: look.problem} if option else {}
            self.figure = {
                "forecast": forecast(look.request) if look.request else "",
                "batch": self._sized_option(look.request),
                "epoch": self._batch_option() if self._has_epoch(look.request) else "",
            }
            self._show()

    def largest_micro_batch(self) -> str:
        """Fill in the largest micro-batch that fits; says what was found."""
        request, name = self._request, self._batch_option()
        if request is None or request.job is None or not name:
            return "The job is not known: the micro-batch cannot be sized."
        answer = wb.largest_micro_batch(request.job)
        if answer.value is None:
            return f"No micro-batch to fill in: {answer.reason}."
        self._change({name: str(answer.value)})
        return (
            f"{answer.value} fits: {answer.reason}." if answer.reason else f"{answer.value} fits."
        )

    def shortest_epoch(self) -> str:
        """Fill in the micro-batch with the shortest epoch; says what was found."""
        name = self._batch_option()
        shortest = shortest_epoch(self._request) if self._request is not None and name else None
        if shortest is None:
            return "The data or the step time are not known: no epoch can be compared."
        self._change({name: str(shortest.micro_batch)})
        return f"{shortest}."

    @staticmethod
    def _has_epoch(request: wb.Request | None) -> bool:
        return request is not None and None not in (request.epoch_steps, request.predicted_time)

    def _sized_option(self, request: wb.Request | None) -> str:
        """The option whose largest value can be answered: of a known job on a card; "" = none."""
        on_card = request is not None and request.device == "cuda" and request.job is not None
        return self._batch_option() if on_card else ""

    def _batch_option(self) -> str:
        names = (option.name for option in self.reading.known.options)
        return next((name for name in names if is_batch_option(name)), "")

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        if kind == "change" and isinstance(message.get("changes"), dict):
            self._change(message["changes"], str(message.get("token", "")))
        elif kind == "list":
            self.send(listing(str(message.get("folder", ""))))
        elif kind == "read":
            self.read_by_run()
        elif kind in {"largest", "shortest"}:
            find = self.largest_micro_batch if kind == "largest" else self.shortest_epoch
            threading.Thread(
                target=self._fill, args=(find,), name="workbench-batch", daemon=True
            ).start()

    def _fill(self, find: Callable[[], str]) -> None:
        try:
            note = find()
        except (wb.WorkbenchError, ValueError) as error:
            note = sentence(error)
        self.figure = {**self.figure, "note": note}

    def _change(self, changes: Mapping[str, Any], token: str = "") -> None:
        """One move of controls: the text follows; what cannot be is said beside its field."""
        with self._changing, self.hold_sync():
            text, self._of_move = self.value, {}
            options = {option.name: option for option in all_options(self.reading.known)}
            for name, value in changes.items():
                if name == _TEXT:
                    text = str(value)
                elif name in options:
                    try:
                        new = read_back(options[name], value)
                        text = with_value(text, self.reading.known, name, new)
                    except wb.UsageError as error:
                        self._of_move[name] = str(error)
            if text != self.value:
                self._of_look = {}
            self.value = text
            self._show()
            self.answered = token

    def _on_value(self, _change: object) -> None:
        with self._changing:
            self._show()

    def _show_reading(self, reading: Reading) -> None:
        with self.hold_sync():
            self.reading = reading
            self.form = {
                "groups": groups(reading),
                "note": reading.note if reading.way != "recipe" else "",
                "can_run": reading.can_run,
                "what": WHAT_IT_DOES,
                "running": False,
            }
            self._show()

    def _show(self) -> None:
        script_options = self.reading.known
        try:
            values, problem = values_in(self.value, script_options), ""
        except wb.UsageError as error:
            values, problem = {}, str(error)
        own = problems_in(values, script_options)
        changed = [option.name for option in all_options(script_options) if option.name in values]
        self.controls = {
            "text": self.value,
            "values": shown_values(values, script_options),
            "problems": {**self._of_look, **own, **self._of_move, _TEXT: problem},
            "changed": changed,
            "missing": [
                option.name
                for option in all_options(script_options)
                if option.required and option.name not in values
            ],
        }

    def __repr__(self) -> str:
        return f"Arguments({self.value!r})"


def forecast(request: wb.Request) -> str:
    """One line on what a launch needs: memory, step, hours, dollars, tokens; "" = not known."""
    step, work, parts = request.predicted_time, request.workload, list[str]()
    if request.predicted is not None:
        parts.append(f"{format_bytes(request.predicted.total_bytes)} a rank")
    if step is not None:
        parts.append(f"{format_seconds(step.step_seconds)} a step")
    steps, seconds = request.steps_total, request.seconds_total
    if step is not None and steps is not None:
        seconds = min(seconds or float("inf"), steps * step.step_seconds)
    if seconds is not None:
        parts.append(f"{format_seconds(seconds)} in all")
    if request.predicted_usd is not None:
        parts.append(format_usd(request.predicted_usd))
    if work is not None:
        batch = work.micro_batch * work.accumulate * request.strategy.data_ranks
        unit = "tokens" if work.counts_tokens else "samples"
        tokens = f"{format_count(batch * work.seq_len)} {unit} a step"
        if steps is not None:
            tokens += f", {format_count(batch * work.seq_len * steps)} in all"
        parts.append(tokens)
    epoch = epoch_of(request)
    if epoch is not None:
        parts.append(str(epoch))
    return " · ".join(parts)

"""What the calculators share: controls whose every move Python answers with one message."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import traitlets

import workbench as wb
from workbench.errors import sentence
from workbench_widgets.controls import in_labels, labels_of
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.form import Form


class Calculator(Face):
    """Abstract: a subclass has a choice, a figure of it and a text."""

    controls = traitlets.Dict().tag(sync=True)
    figure = traitlets.Dict().tag(sync=True)
    problem = traitlets.Dict().tag(sync=True)
    answered = traitlets.Unicode("").tag(sync=True)
    _moves = 0
    choice: Any

    def __init__(self, choice: Form, *, face: str, groups: list[dict[str, Any]]) -> None:
        self.choice = choice
        self._changing = threading.RLock()
        self._own_labels = labels_of(groups)
        config = store_config(Path(wb.Store(None).root), face=face, groups=groups)
        super().__init__(config, controls=self._controls(), figure=self._figure())

    def set(self, **changes: Any) -> None:
        """Move controls from Python, as the page does. Raises TypeError: an unknown control."""
        type(self.choice).from_options(changes)
        self._change(changes)
        self._moved(at_once=True)

    def with_labels(self, message: str | Exception) -> str:
        """A message in the words of this face: its controls instead of the command's flags."""
        text = message if isinstance(message, str) else sentence(message)
        return in_labels(text, self._labels())

    def _labels(self) -> dict[str, str]:
        """The command's flags -> labels of the controls that stand for them."""
        return self._own_labels

    def _figure(self) -> dict[str, Any]:
        """What is drawn, as plain values. Raises UsageError: what the controls say cannot be."""
        raise NotImplementedError

    def _text(self) -> str:
        """The figure for pages without JavaScript."""
        raise NotImplementedError

    def _moved(self, *, at_once: bool = False) -> None:
        """After a move: what follows later, or `at_once` when Python itself has moved."""

    def _controls(self) -> dict[str, Any]:
        return {"values": self.choice.document(), "hidden": self.choice.hidden()}

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
                self.problem = {
                    "field": next(iter(changes), ""),
                    "message": self.with_labels(error),
                }

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        """A move of controls; never blocks."""
        if kind == "change" and isinstance(message.get("changes"), dict):
            self._change(message["changes"], str(message.get("token", "")))
            self._moved()

    def __repr__(self) -> str:
        problem = self.problem.get("message")
        text = self._text()
        return f"{problem}\n(Last valid setting:)\n{text}" if problem else text

"""``ReusedRun``: a run whose settings the form was set to, and that can be resumed with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets

import workbench as wb
from workbench.describe.option import declared
from workbench.errors import sentence
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.resume.planned import planned_resume
from workbench.launching.resume.settings import RunSettings
from workbench.recover import Recovery
from workbench.script_options.arguments import ALL
from workbench_widgets.answering import in_background
from workbench_widgets.launch.launch_form import OPTIONS, value_of
from workbench_widgets.note import Note

_RECOVERY = declared(Recovery)
_COMPARED = [name for name in OPTIONS if name not in {"queue", "priority", "calibration"}]
"""Options that a run keeps."""


def resume_keywords(
    settings: RunSettings, form: Mapping[str, Any], strategy: wb.Strategy
) -> dict[str, Any]:
    """What `Run.resume` takes so that the run goes on with what the form says.

    Args:
        settings: The run's own.
        form: Keywords of ``wb.launch``, all but the strategy.
        strategy: The one in the picker.

    Raises:
        UsageError: the form holds another script, or leaves out what a resumed run keeps.
    """
    run = settings.run.run
    if form["target"] != settings.target:
        raise wb.UsageError(
            f"The form holds another script than {run}, which ran {settings.target}. Launch starts "
            "it as a new run."
        )
    words = tuple(form["arguments"])
    options = {name: value for name, value in form.items() if name not in {"target", "arguments"}}
    now, before = LaunchOptions.from_keywords(options), settings.options
    changes = _changed_options(now, before)
    if strategy != before.strategy:
        changes["strategy"] = strategy
    if words != settings.arguments:
        changes |= {"arguments": words, "drop": (ALL,)}
    return changes


def _changed_options(now: LaunchOptions, before: LaunchOptions) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in _COMPARED:
        value, old = value_of(now, name), value_of(before, name)
        if value == old or (name == "devices" and not value):  # free ones
            continue
        if name in _RECOVERY:
            changes.setdefault("recovery", {})[name] = value
            continue
        left_out = set(old) - set(value) if isinstance(value, Mapping) else set[str]()
        if left_out or value is None:
            words = " ".join((OPTIONS[name].title, *sorted(left_out)))
            raise wb.UsageError(
                f"A resumed run keeps its {words}. Launch starts a new run without."
            )
        changes[name] = value
    return changes


class ReusedRun(widgets.HBox):
    """A line that says from which run the form was set, and a button that resumes this run.

    Args:
        store: Folder of runs.
        read: Reads the form: keywords of ``wb.launch``, all but the strategy.
        resumed: Called with the handle of the resumed run, in the thread that resumed it.
    """

    def __init__(
        self,
        store: Path,
        read: Callable[[], Mapping[str, Any]],
        resumed: Callable[[wb.Run], None],
    ) -> None:
        self._read, self._resumed = read, resumed
        self._settings: RunSettings | None = None
        self._strategy: wb.Strategy | None = None
        self.button = widgets.Button(description="Resume", icon="step-forward")
        self.forget = widgets.Button(description="Forget the run", icon="times")
        self.forget.tooltip = "Keep the form as it is, for a new run"
        self.line = Note(store)
        self._parts = (self.button, self.forget, self.line)
        super().__init__()
        self.add_class("wb-reused")
        self.button.on_click(lambda _: in_background(self.resume, "workbench-resume"))
        self.forget.on_click(lambda _: self.set(None))
        self.set(None)

    def set(self, settings: RunSettings | None) -> None:
        """Offer to resume the run of these settings; None: no run."""
        self._settings = settings
        self.children = () if settings is None else self._parts
        self.layout.display = "none" if settings is None else ""

    def close(self) -> None:
        """End the row, and what is not in it now."""
        for part in self._parts:
            part.close()
        super().close()

    def show(self, request: wb.Request | None) -> None:
        """Say what a resume would do with what the form says now."""
        settings = self._settings
        if settings is None:
            return
        self._strategy = None if request is None else request.strategy
        of_run = f"Settings of {settings.run.run}."
        if request is None:
            self._say(of_run, resumable=False)
            return
        try:
            keywords = self._keywords(settings, request.strategy)
            planned = planned_resume(settings.paths, read=False, **keywords)
        except Exception as error:  # noqa: BLE001 - whatever it is, the form has to say it
            self._say(f"{of_run} Not resumable: {sentence(error)}", resumable=False)
            return
        where = "in the same run" if planned.same_run else "in a new run"
        start = f"from step {planned.step:,}" if planned.checkpoint else "from the beginning"
        self._say(" ".join((f"{of_run} Resume continues {start}, {where}.", *planned.notes)))

    def _keywords(self, settings: RunSettings, strategy: wb.Strategy) -> dict[str, Any]:
        return resume_keywords(settings, self._read(), strategy)

    def _say(self, text: str, *, resumable: bool = True) -> None:
        self.button.disabled = not resumable
        folder = self._settings.folder if self._settings else Path.cwd()
        if folder != Path.cwd():
            text = f"{text} It was started in {folder}; Launch starts in {Path.cwd()}."
        self.line.say(text)

    def resume(self) -> None:
        """Resume the run with what the form says. Errors appear in the line."""
        settings, strategy = self._settings, self._strategy
        if settings is None or strategy is None or self.button.disabled:
            return
        self.button.disabled = True  # a double click is one resumption
        try:
            run = wb.attach(settings.run.run, settings.paths.directory.parent)
            resumed = run.resume(**self._keywords(settings, strategy))
        except Exception as error:  # noqa: BLE001 - whatever it is, the form has to say it
            self._say(f"Not resumed: {sentence(error)}")
        else:
            self.set(None)
            self._resumed(resumed)

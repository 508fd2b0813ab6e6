"""The inputs of the launch form beside the strategy, and the wish they state."""

from __future__ import annotations

import shlex
from typing import Any

import ipywidgets as widgets

import workbench as wb
from workbench.describe.option import declared
from workbench.launching.prepare.options import LaunchOptions
from workbench.observe.trackers import names
from workbench.recover import Recovery
from workbench_widgets.strategy.preview import NoTargetError

_ANY_SCRIPT = "\0script"  # no recipe has this name
_COLUMNS = "repeat(auto-fill, minmax(168px, 1fr))"


class LaunchForm:
    """Recipe or script, arguments and name; adapts itself to the choice."""

    def __init__(self, **options: Any) -> None:
        self._recipes = wb.recipes.recipes()
        self._gpus = len(wb.detect_host().gpus)
        target = options.get("target") or next(iter(self._recipes), "")
        chosen = target if target in self._recipes else _ANY_SCRIPT
        self._suggested = self._suggestion(chosen)
        self.what = widgets.Dropdown(options=self._targets(), value=chosen)
        self.path = widgets.Text("" if chosen == target else str(target), placeholder="train.py")
        self.arguments = widgets.Text(
            options.get("arguments", self._suggested), placeholder="as in a shell"
        )
        self.name = widgets.Text(options.get("name") or "", placeholder="optional")
        self.restarts = widgets.BoundedIntText(
            0, min=0, max=1000, tooltip="From the newest complete checkpoint, when the run fails"
        )
        self.tracker = widgets.Dropdown(options=[("none", ""), *((one, one) for one in names())])
        self.cpu = widgets.Checkbox(bool(options.get("cpu")), indent=False)
        help_text = declared(LaunchOptions)["warm"].help
        self.warm = widgets.Checkbox(bool(options.get("warm")), indent=False, tooltip=help_text)
        self.box = self._arrange()
        self._adapt()

    def _arrange(self) -> widgets.GridBox:
        labels = {
            "What to train": self.what,
            "Path of the script": self.path,
            "Arguments": self.arguments,
            "Name": self.name,
            "Maximum restarts": self.restarts,
            "Tracker": self.tracker,
            "Use CPU instead of GPUs": self.cpu,
            "Warm start": self.warm,
        }
        for label, field in labels.items():
            field.description = label
            field.layout.width = "auto"
        self.inputs = tuple(labels.values())
        self.arguments.add_class("wb-wide")
        layout = widgets.Layout(grid_template_columns=_COLUMNS, width="100%")
        box = widgets.GridBox(self.inputs, layout=layout)
        box.add_class("wb-fields")
        return box

    def _targets(self) -> list[tuple[str, str]]:
        names = [(f"Recipe: {name}", name) for name in self._recipes]
        return [*names, ("A script …", _ANY_SCRIPT)]

    def _suggestion(self, target: str) -> str:
        """A recipe's own arguments for a first look on this host, as typed in a shell."""
        recipe = self._recipes.get(target)
        if recipe is None:
            return ""
        return shlex.join(recipe.gpu_arguments if self._gpus else recipe.cpu_arguments)

    def observe(self, changed: Any) -> None:
        """Call back on every change, after the form has adapted itself to it."""
        self.what.observe(self._suggest, names="value")
        for field in self.inputs:
            field.observe(self._adapt, names="value")
            field.observe(changed, names="value")

    def _suggest(self, _change: object) -> None:
        """Another target, other arguments, unless somebody has typed their own."""
        typed = self.arguments.value != self._suggested
        self._suggested = self._suggestion(str(self.what.value))
        if not typed:
            self.arguments.value = self._suggested

    def _adapt(self, _change: object = None) -> None:
        """Show only what matters: the path for scripts, the CPU box where there are GPUs."""
        self.path.layout.display = "" if self.what.value == _ANY_SCRIPT else "none"
        self.cpu.layout.display = "" if self._gpus else "none"

    @property
    def recipe(self) -> str | None:
        """The recipe's name; None for a script."""
        return None if self.what.value == _ANY_SCRIPT else str(self.what.value)

    def wish(self) -> dict[str, Any]:
        """Keyword arguments of ``wb.request`` and ``wb.launch``, all but the strategy.

        Raises:
            ValueError: the arguments have an open quotation mark, or no script was named
                (`NoTargetError`).
        """
        target = self.recipe or self.path.value.strip()
        if not target:
            raise NoTargetError("Give the path of a Python script, for example train.py.")
        try:
            arguments = shlex.split(self.arguments.value)
        except ValueError as error:
            raise ValueError(f"The arguments cannot be read: {error}.") from error
        return {
            "target": target,
            "arguments": arguments,
            "cpu": self.cpu.value,
            "name": self.name.value.strip() or None,
            "recovery": Recovery(restarts=self.restarts.value),
            "warm": self.warm.value,
            "trackers": (self.tracker.value,) if self.tracker.value else (),
        }

    def set_arguments(self, values: dict[str, str]) -> None:
        """Put flags with their values into the arguments, in the place of such flags there.

        Raises:
            ValueError: the arguments have an open quotation mark.
        """
        given, kept = iter(shlex.split(self.arguments.value)), []
        for word in given:
            if word in values:
                next(given, None)
            elif word.partition("=")[0] not in values:
                kept.append(word)
        added = [part for flag, value in values.items() for part in (flag, value)]
        self.arguments.value = shlex.join([*kept, *added])

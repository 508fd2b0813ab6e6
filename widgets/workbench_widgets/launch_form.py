"""The inputs of the launch form, and the wish they state."""

from __future__ import annotations

import shlex
from typing import Any

import ipywidgets as widgets

import workbench as wb

_ANY_SCRIPT = "\0script"  # no recipe has this name
_STRATEGIES = [
    ("DDP: a copy per process", "ddp"),
    ("FSDP: all sharded", "fsdp"),
    ("FSDP, weights kept", "fsdp-grad-op"),
    ("HSDP: two groups", "hsdp"),
    ("One process", "single"),
]
_COLUMNS = "repeat(auto-fill, minmax(168px, 1fr))"


class LaunchForm:
    """Recipe or script, arguments, strategy, processes and name; adapts itself to the choice."""

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
        self.strategy = widgets.Dropdown(
            options=_STRATEGIES, value=options.get("strategy") or "ddp"
        )
        count = options.get("processes") or self._gpus or 2
        self.processes = widgets.BoundedIntText(count, min=1, max=1024)
        self.name = widgets.Text(options.get("name") or "", placeholder="optional")
        self.cpu = widgets.Checkbox(bool(options.get("cpu")), indent=False)
        self.box = self._arrange()
        self._adapt()

    def _arrange(self) -> widgets.GridBox:
        labels = {
            "What to train": self.what,
            "Path of the script": self.path,
            "Arguments": self.arguments,
            "Strategy": self.strategy,
            "Processes": self.processes,
            "Name": self.name,
            "On the CPU, not the GPUs": self.cpu,
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
        self.processes.disabled = self.strategy.value == "single"

    def wish(self) -> dict[str, Any]:
        """Keyword arguments of ``wb.request`` and ``wb.launch``.

        Raises:
            ValueError: the arguments have an open quotation mark, or no script was named.
        """
        target = self.path.value.strip() if self.what.value == _ANY_SCRIPT else self.what.value
        if not target:
            raise ValueError("Give the path of a Python script, for example train.py.")
        try:
            arguments = shlex.split(self.arguments.value)
        except ValueError as error:
            raise ValueError(f"The arguments cannot be read: {error}.") from error
        single = self.strategy.value == "single"
        return {
            "target": target,
            "arguments": arguments,
            "strategy": self.strategy.value,
            "processes": 1 if single else self.processes.value,
            "cpu": self.cpu.value,
            "name": self.name.value.strip() or None,
        }

"""The launch form's inputs beside the strategy: what to train, and the options of a launch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import traitlets

import workbench as wb
from workbench.describe import Strategy
from workbench.describe.option import DeclaredField, declared, flattened, text_of
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.resume.settings import RunSettings
from workbench.observe.trackers import names
from workbench.recover import Recovery
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import store_config
from workbench_widgets.launch.arguments import Arguments
from workbench_widgets.launch.folders import listing
from workbench_widgets.options import as_typed
from workbench_widgets.queue.picker import DevicePicker
from workbench_widgets.strategy.preview import NoTargetError

_ANY_SCRIPT = "\0script"  # no recipe has this name
_COLUMNS = "repeat(auto-fill, minmax(168px, 1fr))"
_LABELS = {
    "name": "Name",
    "restarts": "Maximum restarts",
    "trackers": "Tracker",
    "cpu": "Use CPU instead of GPUs",
    "warm": "Warm start",
}
"""Options that are always in view -> their labels."""
_REST_LABELS = {
    "wrap": "Block class (FSDP)",
    "share": "Use held devices too",
    "queue": "File in the queue",
    "priority": "Priority in the queue",
    "port": "Port (0 = a free one)",
    "capture": "Observe loss and steps",
    "environment": "Variables of the ranks",
    "preemption": "Pre-emption notices from",
    "backoff_seconds": "Wait before a restart (seconds)",
    "restart_on_hang": "End a hang, and restart",
    "grace_seconds": "Notice to end (seconds)",
    "idle_minutes": "Idle limit (minutes)",
    "rollback_on": "Roll back on",
    "rollback_then": "After a rollback",
    "max_rollbacks": "Maximum rollbacks",
    "on_idle": "Command when idle",
    "on_end": "Command at the end",
    "hooks_dry_run": "Only log commands",
    "notify": "Send messages to",
    "mirror": "Copy to",
    "max_hours": "Ends after (hours)",
    "max_usd": "Maximum $",
    "max_kwh": "Maximum kWh",
    "grid_gco2e_per_kwh": "Grid (gCO2e per kWh)",
}
"""Labels of the others whose names do not say enough, or not with the signs of their units."""
_HINTS = {
    "wrap": "e.g. LlamaDecoderLayer",
    "environment": "e.g. NCCL_DEBUG=INFO",
    "preemption": "aws, gcp, a file, a URL",
    "max_hours": "no limit",
    "max_usd": "no limit",
    "max_kwh": "no limit",
    "rollback_on": "e.g. nan,spike",
    "stop_when": "e.g. loss > 10 for 20",
    "on_idle": "e.g. poweroff",
    "on_end": "e.g. poweroff",
    "notify": "all",
    "mirror": "e.g. s3://bucket/runs",
    "grid_gco2e_per_kwh": "world average",
    "calibration": "all",
}
"""What an empty input shows: what it then means, or an example."""
_CHOICES = {"skip-data": "leave out the data since", "lower-lr": "halve the learning rate"}
"""Values whose names do not say enough."""
_ELSEWHERE = {"strategy", "processes", "nodes", "address", "store", *declared(Strategy)}
OPTIONS = {
    name: field for name, (_, field) in flattened(LaunchOptions).items() if name not in _ELSEWHERE
}
"""What the form asks of a launch; the rest is the picker's, the page's, or for several machines."""


def value_of(options: LaunchOptions, name: str) -> Any:
    """The value of one of `OPTIONS`, whichever group holds it."""
    return getattr(options.recovery if name in declared(Recovery) else options, name)


def _label(field: DeclaredField) -> str:
    labels = _LABELS | _REST_LABELS
    return labels.get(field.name) or field.name.replace("_", " ").capitalize()


def _control(field: DeclaredField, value: Any) -> Any:
    """The input of a declared option, with its help as tooltip."""
    more = {"description": _label(field), "tooltip": field.help}
    if field.name == "trackers":
        return widgets.Dropdown(options=[("none", ""), *((name, name) for name in names())], **more)
    if field.is_switch:
        return widgets.Checkbox(bool(value or field.default), indent=False, **more)
    if field.option.choices:
        options = [(_CHOICES.get(choice, choice), choice) for choice in field.option.choices]
        return widgets.Dropdown(options=options, value=value or field.default, **more)
    if field.plain_type is int:
        return widgets.BoundedIntText(value or field.default, min=0, max=1_000_000, **more)
    initial = field.default if field.plain_type is float and value is None else value
    return widgets.Text(str(initial or ""), placeholder=_HINTS.get(field.name, "default"), **more)


class LaunchForm:
    """Recipe or script, arguments and name; adapts itself to the choice."""

    def __init__(self, *, store: Path, **options: Any) -> None:
        self._recipes = wb.recipes.recipes()
        self._gpus = len(wb.detect_host().gpus)
        target = options.get("target") or next(iter(self._recipes), "")
        chosen = target if target in self._recipes else _ANY_SCRIPT
        self._suggested = self._suggestion(chosen, cpu=bool(options.get("cpu")))
        self.target_menu = widgets.Dropdown(options=self._targets(), value=chosen)
        self.path = ScriptPath("" if chosen == target else str(target), store=store)
        typed = as_typed(options.get("arguments", self._suggested))
        self.arguments = Arguments(typed, store=store)
        self.devices = DevicePicker(store=store)
        self.options = {
            name: self.devices if name == "devices" else _control(field, options.get(name))
            for name, field in OPTIONS.items()
        }
        self.cpu, self.warm = self.options["cpu"], self.options["warm"]
        self.target_box, self.options_box = self._arrange()
        self._read()
        self._adapt()

    def _arrange(self) -> tuple[widgets.VBox, widgets.VBox]:
        """What to train, and how it is trained; what spreads it over ranks goes between them."""
        self.target_menu.description = "What to train"
        first = [self.target_menu, *(self.options[name] for name in _LABELS)]
        aside = {*_LABELS, "devices"}
        other_controls = [field for name, field in self.options.items() if name not in aside]
        self.inputs = (self.path, self.arguments, self.devices, *first, *other_controls)
        self.more, self._other_options = widgets.ToggleButton(), _grid(other_controls)
        self.more.add_class("wb-more")
        self.more.observe(self._unfold, names="value")
        self._unfold()
        options = [self.arguments, self.devices, self.more, self._other_options]
        return widgets.VBox([_grid(first), self.path]), widgets.VBox(options)

    def _unfold(self, _change: object = None) -> None:
        """Show or hide the rest. A button: no key reaches the header of ipywidgets' Accordion."""
        self._other_options.layout.display = "grid" if self.more.value else "none"
        self.more.icon = "caret-down" if self.more.value else "caret-right"
        verb = "Hide" if self.more.value else "Show"
        self.more.description = f"{verb} all other options of the launch"

    def _targets(self) -> list[tuple[str, str]]:
        names = [(f"Recipe: {name}", name) for name in self._recipes]
        return [*names, ("A script …", _ANY_SCRIPT)]

    def _suggestion(self, target: str, *, cpu: bool) -> str:
        """A recipe's own arguments for a first look on this host, as typed in a shell."""
        recipe = self._recipes.get(target)
        if recipe is None:
            return ""
        on_gpu = bool(self._gpus) and not cpu
        return shlex.join(recipe.gpu_arguments if on_gpu else recipe.cpu_arguments)

    def observe(self, changed: Any) -> None:
        """Call back on every change, after the form has adapted itself to it."""
        for field in (self.target_menu, self.cpu):
            field.observe(self._suggest, names="value")
        self.path.observe(self._read, names="value")
        for field in self.inputs:
            field.observe(self._adapt, names="value")
            field.observe(changed, names="value")

    def _suggest(self, _change: object) -> None:
        """Another target, other arguments, unless someone has typed their own."""
        typed = self.arguments.value != self._suggested
        self._suggested = self._suggestion(str(self.target_menu.value), cpu=bool(self.cpu.value))
        if not typed:
            self.arguments.value = self._suggested
        self._read()

    def _read(self, _change: object = None) -> None:
        """Fields for what is chosen now."""
        self.arguments.read(self.target)

    @property
    def target(self) -> str:
        """The recipe's name or the script's path; "" = none is given yet."""
        return self.recipe or self.path.value.strip()

    def _adapt(self, _change: object = None) -> None:
        """Show only what matters: the path for scripts, the CPU box where there are GPUs."""
        self.path.layout.display = "" if self.target_menu.value == _ANY_SCRIPT else "none"
        self.cpu.layout.display = "" if self._gpus else "none"
        on_cpu = not self._gpus or bool(self.cpu.value)
        self.devices.show_kind("slot" if on_cpu else "gpu")

    @property
    def recipe(self) -> str | None:
        """The recipe's name; None for a script."""
        return None if self.target_menu.value == _ANY_SCRIPT else str(self.target_menu.value)

    def request_keywords(self) -> dict[str, Any]:
        """Keyword arguments of ``wb.request`` and ``wb.launch``, all but the strategy.

        Raises:
            ValueError: the arguments have an open quotation mark, or no script was named
                (`NoTargetError`).
        """
        target = self.target
        if not target:
            raise NoTargetError("Give the path of a Python script, for example train.py.")
        self.arguments.check()
        try:
            arguments = shlex.split(self.arguments.value)
        except ValueError as error:
            raise ValueError(f"The arguments cannot be read: {error}.") from error
        return {"target": target, "arguments": arguments, **self._launch_options()}

    def _launch_options(self) -> dict[str, Any]:
        """The options that were set, as keywords of a launch."""
        values: dict[str, Any] = {}
        recovery: dict[str, Any] = {}
        for name, field in OPTIONS.items():
            value = self.options[name].value
            value = value.strip() if isinstance(value, str) else value
            if value in ("", ()):
                continue
            if field.option.split == "pairs":
                value = _split(field, value)
            elif field.plain_type is float:
                value = _number(field, value)
            place = recovery if name in declared(Recovery) else values
            place[name] = field.read(value)
        return {**values, "recovery": Recovery(**recovery)}

    def take(self, settings: RunSettings) -> None:
        """Set every input to what a run was launched with; its devices are chosen again."""
        options, is_recipe = settings.options, settings.target in self._recipes
        self.target_menu.value = settings.target if is_recipe else _ANY_SCRIPT
        self.path.value = "" if is_recipe else settings.target
        for name, field in OPTIONS.items():
            if name != "devices":
                _set(self.options[name], field, value_of(options, name))
        self.devices.value = ()
        self.arguments.value = shlex.join(settings.arguments)

    def labels(self) -> dict[str, str]:
        """Flags of a launch -> labels of their inputs here; not those that the script has too."""
        own = self.arguments.reading.known
        return {
            field.flag: _label(field) for field in OPTIONS.values() if own.of(field.flag) is None
        }


def _grid(fields: list[Any]) -> widgets.GridBox:
    for field in fields:
        field.layout.width = "auto"
    layout = widgets.Layout(grid_template_columns=_COLUMNS, width="100%")
    box = widgets.GridBox(fields, layout=layout)
    box.add_class("wb-fields")
    return box


def _set(control: Any, field: DeclaredField, value: Any) -> None:
    """Show an option's value in its control, as `_launch_options` reads it."""
    if field.option.choices or isinstance(control, widgets.Checkbox | widgets.BoundedIntText):
        control.value = value
    elif value is None or (value == field.default and field.plain_type is not float):
        control.value = ""
    else:
        pairs = field.option.split == "pairs"
        words = [f"{name}={text}" for name, text in value.items()] if pairs else []
        entry = shlex.join(words) if pairs else text_of(value)
        if isinstance(control, widgets.Dropdown) and entry not in dict(control.options).values():
            control.options = [*control.options, (entry, entry)]
        control.value = entry


def _split(field: DeclaredField, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        words = field.name.replace("_", " ")
        raise ValueError(f"The {words} cannot be read: {error}.") from None


def _number(field: DeclaredField, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{field.title} is a number, not {text!r}.") from None


class ScriptPath(Face):
    """A path with a file picker; ``value`` is what stands in it."""

    value = traitlets.Unicode("").tag(sync=True)

    def __init__(self, value: str, *, store: Path) -> None:
        super().__init__(store_config(store, face="script_path.js"), value=value)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        if kind == "path" and isinstance(message.get("value"), str):
            self.value = message["value"].strip()
        elif kind == "list":
            self.send(listing(str(message.get("folder", "")), (".py",)))

    def __repr__(self) -> str:
        return f"ScriptPath({self.value!r})"

"""What a form says of a sweep, as `prepare_sweep` takes it; what it would start, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.describe.option import DeclaredField, declared, shell_words, text_of
from workbench.launching.prepare.options import LaunchOptions
from workbench.sweeping.plan import SweepOptions, labels
from workbench.sweeping.prepared import PreparedSweep, prepare_sweep, shell

_LAUNCH = ("strategy", "processes", "name")
_OWN = declared(SweepOptions)
FIELDS: Mapping[str, DeclaredField] = {
    **_OWN,
    **{name: declared(LaunchOptions)[name] for name in _LAUNCH},
}
"""The controls beside what runs."""


def controls() -> list[dict[str, Any]]:
    """The controls as the page draws them: name, label, help, kind, choices."""
    return [_control(field) for field in FIELDS.values()]


def _control(field: DeclaredField) -> dict[str, Any]:
    pairs = field.option.split == "pairs"
    return {
        "name": field.name,
        "label": field.name.replace("_", " ").capitalize(),
        "help": field.help + field.default_text,
        "kind": "lines" if pairs else "select" if field.option.choices else "text",
        "choices": ["" if choice is None else choice for choice in field.option.choices],
        "hint": field.option.metavar or "",
    }


def first_values() -> dict[str, str]:
    """What stands in the controls at first: the declared defaults."""
    return {
        name: text_of(field.default) if isinstance(field.default, str | int) else ""
        for name, field in FIELDS.items()
    }


def prepared(
    values: Mapping[str, str], store: Path, launch_options: Mapping[str, Any]
) -> PreparedSweep:
    """Check what the form says against script and host; nothing is written or started.

    Raises:
        UsageError: it cannot be started so.
        HostError: Optuna, torch or accelerate is missing here.
    """
    typed = {
        name: field.read(text.splitlines() if field.option.split == "pairs" else text)
        for name, field in FIELDS.items()
        if (text := _kept_lines(values.get(name, "")))
    }
    launch = {name: typed[name] for name in _LAUNCH if name in typed}
    return prepare_sweep(
        values["target"].strip(),
        list(shell_words(values.get("arguments"))),
        SweepOptions(**{name: value for name, value in typed.items() if name in _OWN}),
        LaunchOptions.from_keywords({**launch_options, **launch, "store": store}),
    )


def _kept_lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def document(ready: PreparedSweep) -> dict[str, Any]:
    """What would start, for the page: figures as numbers, facts as sentences."""
    plan = ready.plan
    looks = [] if plan.first_look is None else plan.looks(plan.steps_total or 9 * plan.first_look)
    return {
        "trials": plan.trials,
        "room": ready.room,
        "varied": labels(plan.parameters),
        "judged": f"{plan.metric}, {plan.direction} is better",
        "first": shell(ready),
        "looks": looks,
        "predicted": ready.prediction.document(),
        "notes": list(ready.notes),
    }

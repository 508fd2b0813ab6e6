"""What a form says of a sweep, as `prepare_sweep` takes it; what it would start, in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.describe.option import Declared, declared, shell_words, text_of
from workbench.launching.prepare.options import LaunchOptions
from workbench.sweeping.plan import SweepOptions, labels
from workbench.sweeping.prepared import Prepared, prepare_sweep, shell

_LAUNCH = ("strategy", "processes", "name")
_OWN = declared(SweepOptions)
FIELDS: Mapping[str, Declared] = {
    **_OWN,
    **{name: declared(LaunchOptions)[name] for name in _LAUNCH},
}
"""The controls beside what runs."""


def controls() -> list[dict[str, Any]]:
    """The controls as the page draws them: name, label, help, kind, choices."""
    return [_control(one) for one in FIELDS.values()]


def _control(one: Declared) -> dict[str, Any]:
    pairs = one.option.split == "pairs"
    return {
        "name": one.name,
        "label": one.name.replace("_", " ").capitalize(),
        "help": one.help + one.default_text,
        "kind": "lines" if pairs else "select" if one.option.choices else "text",
        "choices": ["" if choice is None else choice for choice in one.option.choices],
        "hint": one.option.metavar or "",
    }


def first_values() -> dict[str, str]:
    """What stands in the controls at first: the declared defaults."""
    return {
        name: text_of(one.default) if isinstance(one.default, str | int) else ""
        for name, one in FIELDS.items()
    }


def prepared(values: Mapping[str, str], store: Path, kept: Mapping[str, Any]) -> Prepared:
    """Check what the form says against script and host; nothing is written or started.

    Raises:
        UsageError: it cannot be started so.
        HostError: Optuna, torch or accelerate is missing here.
    """
    given = {
        name: one.read(text.splitlines() if one.option.split == "pairs" else text)
        for name, one in FIELDS.items()
        if (text := _kept_lines(values.get(name, "")))
    }
    launch = {name: given[name] for name in _LAUNCH if name in given}
    return prepare_sweep(
        values["target"].strip(),
        list(shell_words(values.get("arguments"))),
        SweepOptions(**{name: value for name, value in given.items() if name in _OWN}),
        LaunchOptions.from_keywords({**kept, **launch, "store": store}),
    )


def _kept_lines(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def document(ready: Prepared) -> dict[str, Any]:
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

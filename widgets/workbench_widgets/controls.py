"""Controls as plain values for the front end: a name, a label, a kind, and what it offers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.describe import catalog
from workbench.describe.job import options as job_options
from workbench.describe.option import DeclaredField
from workbench.errors import UsageError
from workbench.units import format_bytes, format_count

Field = dict[str, Any]
SAYS = {
    "bf16": "bf16 mixed",
    "fp16": "fp16 mixed",
    "fp8": "fp8 mixed",
    "bf16-pure": "all in bf16",
    "fp16-pure": "all in fp16",
    "adamw": "AdamW (torch's default, foreach)",
    "adamw-fused": "AdamW fused",
    "adamw-8bit": "AdamW 8-bit",
    "adamw-4bit": "AdamW 4-bit",
    "paged-adamw": "AdamW paged",
    "paged-adamw-8bit": "AdamW paged, 8-bit",
    "sgd": "SGD",
    "sgd-momentum": "SGD with momentum",
    "single": "One GPU",
    "ddp": "DDP: a full copy on each GPU",
    "fsdp": "FSDP: all states sharded",
    "fsdp-grad-op": "FSDP, weights kept after forward",
    "hsdp": "HSDP: sharded in groups",
    "zero1": "ZeRO-1: optimizer sharded",
    "zero2": "ZeRO-2: and gradients",
    "zero3": "ZeRO-3: and weights",
    "tp": "Tensor parallel only",
    "pp": "Pipeline alone",
    "cp": "Context parallel only",
    "nf4": "nf4 (QLoRA)",
    "nf4-dq": "nf4 double",
    "transformers": "transformers, eager",
    "megatron": "Megatron",
    "compiled": "torch.compile",
}
"""What a value is called where its own name says too little."""


_COMMAND_OR_FLAG = re.compile(r"\bworkbench [a-z][^.;,()]*|(?<![\w-])--[A-Za-z][\w-]*")


def labels_of(groups: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The command line's flags -> labels of the controls that stand for them."""
    fields = [field for group in groups for field in group["fields"] if field.get("label")]
    return {f"--{field['name'].replace('_', '-')}": field["label"] for field in fields}


def in_labels(text: str, labels: Mapping[str, str]) -> str:
    """A message in which controls stand for the flags of the command line; commands stay.

    >>> labels = {"--max-hours": "Ends after (hours)"}
    >>> in_labels("Give --max-hours, or in a terminal: workbench resume --max-hours 2.", labels)
    'Give "Ends after (hours)", or in a terminal: workbench resume --max-hours 2.'
    """

    def quoted_label(match: re.Match[str]) -> str:
        label = labels.get(match[0])
        return match[0] if label is None else f'"{label}"'

    return _COMMAND_OR_FLAG.sub(quoted_label, text)


def model_field() -> Field:
    """Every model of the catalog, or a path."""
    options = [
        {
            "value": model.id,
            "text": model.model.name,
            "detail": format_count(model.model.parameters),
        }
        for model in catalog.every_published()
    ]
    return {
        "name": "model",
        "label": "Model",
        "kind": "search",
        "options": options,
        "hint": "name, or path of a config.json",
    }


def gpu_field(label: str, kind: str = "several", hint: str = "add a GPU") -> Field:
    """Every accelerator of the catalog; ``kind``: several or search (one)."""
    options = [
        {"value": gpu.id, "text": gpu.name, "detail": format_bytes(gpu.memory_bytes)}
        for gpu in catalog.gpus()
    ]
    return {"name": "gpu", "label": label, "kind": kind, "options": options, "hint": hint}


def several(name: str, label: str, values: Iterable[str], hint: str) -> Field:
    """Any number of names."""
    options = [{"value": value, "text": value} for value in values]
    return {"name": name, "label": label, "kind": "several", "options": options, "hint": hint}


def select(
    name: str, label: str, values: Iterable[str], own: Mapping[str, str] | None = None
) -> Field:
    """One of a few values."""
    texts = {**SAYS, **(own or {})}
    options = [{"value": value, "text": texts.get(value, value)} for value in values]
    return {"name": name, "label": label, "kind": "select", "options": options}


def slider(name: str, label: str, unit: str, marks: Iterable[int]) -> Field:
    """A slider over round values, with a field for any other."""
    return {
        "name": name,
        "label": label,
        "unit": unit,
        "kind": "slider",
        "marks": sorted(set(marks)),
    }


def number(
    name: str, label: str, least: int = 1, most: int | None = None, *, unit: str = ""
) -> Field:
    """A whole number."""
    field: Field = {"name": name, "label": label, "kind": "number", "least": least, "most": most}
    return {**field, "unit": unit} if unit else field


def amount(name: str, label: str, unit: str = "", hint: str = "") -> Field:
    """A number with decimals, 0 or above; empty where `hint` says what that means."""
    return {
        "name": name,
        "label": label,
        "kind": "number",
        "least": 0,
        "step": "any",
        "unit": unit,
        "hint": hint,
    }


def text(name: str, label: str, hint: str = "", unit: str = "") -> Field:
    """A line of text."""
    return {"name": name, "label": label, "kind": "text", "hint": hint, "unit": unit}


def limit(name: str, label: str, unit: str) -> Field:
    """A slider whose marks come with every answer; its end is "no limit"."""
    return {"name": name, "label": label, "kind": "limit", "unit": unit}


def of_job(name: str, label: str, own: Mapping[str, str] | None = None) -> Field:
    """An option of a `Job`, with the values and limits that are declared for it."""
    return of_option(job_options()[name], label, own=own)


def of_option(
    field: DeclaredField, label: str = "", hint: str = "", own: Mapping[str, str] | None = None
) -> Field:
    """A declared option, with its values and limits; `hint`: what an empty control means."""
    if not label:
        words = field.name.split("_")
        words = [word for word in words if not field.option.unit or word not in _UNITS]
        label = " ".join(words).capitalize()
    return {**_of_type(field, label, hint, own or {}), "help": field.help}


_UNITS = {"gb", "per", "second", "seconds", "minutes", "hours", "hour", "days", "usd"}
"""Words of an option's name that its control does not repeat beside the unit."""


def _of_type(field: DeclaredField, label: str, hint: str, own: Mapping[str, str]) -> Field:
    is_free = field.default is None
    if field.option.split:
        return several(field.name, label, field.option.choices, hint or "add one") | {"empty": True}
    if field.is_switch and not is_free:
        return check(field.name, label)
    if field.is_switch or field.option.choices:
        values = _YES_NO.values() if field.is_switch else map(str, field.option.choices)
        free = {"": hint or "default"} if is_free else {}
        return select(field.name, label, (*free, *values), {**own, **free})
    if field.plain_type is int:
        least, most = field.option.least or 0, field.option.most
        return number(field.name, label, least, most, unit=field.option.unit) | _hint(hint)
    if field.plain_type is float:
        return amount(field.name, label, field.option.unit, hint)
    return text(field.name, label, hint, field.option.unit)


def remaining_options(
    groups: list[dict[str, Any]], declarations: Iterable[DeclaredField]
) -> dict[str, Any]:
    """A closed group with the options that the others leave out."""
    placed = {field["name"] for group in groups for field in group["fields"]}
    fields = [
        of_option(declaration, hint="default")
        for declaration in declarations
        if declaration.name not in placed
    ]
    return {"title": "All other options", "open": False, "fields": fields}


_YES_NO = {True: "yes", False: "no"}  # of a switch that may also be left to the library


def option_value(field: DeclaredField, value: Any) -> Any:
    """What a control is set to, as the option's field holds it.

    What cannot be read stands as it was typed: the job that is built of it says why.
    """
    if isinstance(value, list | tuple):
        return tuple(value)
    is_text = isinstance(value, str)
    if field.option.split and not is_text:
        return value
    if is_text and field.is_switch:
        return {word: is_on for is_on, word in _YES_NO.items()}.get(value, value or None)
    if is_text and not value and field.default is None:
        return None
    try:
        return field.read(value)
    except UsageError:
        return value


def control_value(field: DeclaredField | None, value: Any) -> Any:
    """What a control shows of an option's value; `field`: None = it is of no declared option."""
    if value is None and field is not None:
        is_number = field.plain_type in {int, float} and not field.option.choices
        return None if is_number else ""
    if field is not None and field.is_switch and field.default is None:
        return _YES_NO[bool(value)]
    if field is not None and field.option.choices and not field.option.split:
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _hint(hint: str) -> Field:
    return {"hint": hint} if hint else {}


def check(name: str, label: str) -> Field:
    """Yes or no."""
    return {"name": name, "label": label, "kind": "check"}

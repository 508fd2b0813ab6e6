"""What a trainer's own checks refuse although it has a key for each part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from workbench.describe.trainers import trainer as trainer_named
from workbench.describe.trainers.releases import month_of
from workbench.trainer_configs.rules import Fields, applies


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """Fields that a trainer does not take together."""

    when: Fields
    """As in `Number`; all of them."""
    reason: str
    """Why, and what to give instead: the end of a sentence."""
    since: str = ""
    """Month (YYYY-MM) from which a release that is named refuses it; "" = always."""
    until: str = ""
    """Month from which the unreleased source takes it, which only a date names; "" = never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """What is written beside keys that mean a field, and means none itself."""

    when: Fields
    """As in `Number`."""
    keys: Mapping[str, object]
    """Dotted key -> value."""


def refusals(limits: tuple[Impossible, ...], fields: Fields, trainer: str) -> dict[str, str]:
    """Field -> reason, of what the trainer (NAME or NAME@RELEASE) would refuse at its start."""
    name, _, release = trainer.partition("@")
    entry = trainer_named(name)
    month = month_of(release, entry.releases, entry.name) if release else ""
    reasons: dict[str, str] = {}
    for limit in limits:
        counts = not (limit.since and month < limit.since)
        counts = counts and not (limit.until and month >= limit.until)
        if counts and applies(limit.when, fields):
            name = next((field for field in limit.when if field not in reasons), limit.reason)
            reasons[name] = limit.reason
    return reasons


_CUT = "it works on whole matrices, and {} cuts them into flat pieces; give fsdp, or adamw-fused"
_WHOLE_MATRICES = frozenset({"muon", "adafactor"})
_ZEROS = frozenset({"zero1", "zero2", "zero3"})
_OPTIMIZERS = (
    *("adamw-8bit", "adamw-4bit", "paged-adamw", "paged-adamw-8bit", "adafactor", "lion"),
    *("lion-8bit", "sgd", "muon"),
)
_PAGED_OR_LION = frozenset({"paged-adamw-8bit", "lion-8bit"})
_OF_FSDP2 = {"data_parallel": frozenset({"fsdp", "hsdp"}), "engine": None}
FSDP2_OPTIMIZERS = Impossible(
    when={
        "optimizer": frozenset({"adamw-8bit", *_PAGED_OR_LION}),
        **_OF_FSDP2,
    },
    reason="bitsandbytes' 8-bit states do not know FSDP2's sharded tensors; give adamw-fused, "
    "whose states FSDP shards",
)
NEEDS_GPUS = Impossible(
    when={"device": "cpu"}, reason="it does not train on CPU ranks; give the GPUs, --gpu h100"
)
OPTIMIZERS = (
    # torchao's 8-bit AdamW is written instead of bitsandbytes'
    replace(FSDP2_OPTIMIZERS, when={"optimizer": _PAGED_OR_LION, **_OF_FSDP2}),
    Impossible(
        when={"optimizer": _WHOLE_MATRICES, "data_parallel": _ZEROS},
        reason=_CUT.format("DeepSpeed"),
    ),
    Impossible(when={"optimizer": _WHOLE_MATRICES, "engine": "fsdp1"}, reason=_CUT.format("FSDP1")),
    Impossible(
        when={
            "optimizer": frozenset(_OPTIMIZERS),
            "data_parallel": _ZEROS,
            "offload_optimizer": True,
        },
        reason="with offloaded states DeepSpeed trains with its CPU Adam instead; give adamw-fused",
    ),
)
"""Of every trainer on transformers: those that a launch refuses too."""

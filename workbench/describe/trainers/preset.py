"""`Preset`: a trainer at a release, and what it decides of a job that leaves it open."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.describe.implementation import ImplementationAssumptions
from workbench.describe.model import Model
from workbench.describe.option import declared, flat_names, text_of, words
from workbench.describe.strategy import Strategy
from workbench.describe.trainers.releases import month_of
from workbench.describe.trainers.table import DEFAULT, Line, Trainer, trainer
from workbench.describe.workload import Workload

_MAX_LISTED = 6
"""Assumptions in one line of text."""
LONG = 32_768
"""Tokens of a sequence on one rank from which a job counts as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A field of a job that a trainer decides."""

    field: str
    """Option of a job, or a strategy's field."""
    value: Any
    """Its value."""
    source: str
    """Repository, file and release."""
    trainer: str
    """Whose it is: the preset's trainer, or what that is based on."""

    @property
    def text(self) -> str:
        """In a few words.

        >>> Assumption(field="fused_optimizer", value=True, source="", trainer="").text
        'fused optimizer'
        """
        words_of = self.field.replace("_", " ")
        if isinstance(self.value, bool):
            return words_of if self.value else f"no {words_of}"
        return f"{words_of} {text_of(self.value)}"

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "field": self.field,
            "value": self.value,
            "source": self.source,
            "trainer": self.trainer,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A trainer at a release, with what of it applies to one job."""

    trainer: Trainer
    """Whose defaults these are."""
    release: str = ""
    """Version or date as given; "" = the latest."""
    is_named: bool = True
    """Whether someone named it; else it is what every job assumes."""
    is_imported: bool = False
    """Whether a script's imports named it."""
    assumptions: tuple[Assumption, ...] = ()
    """What it decided of the job, after what was given."""

    @property
    def label(self) -> str:
        """Title and release."""
        return f"{self.trainer.title} {self.release}".strip()

    @property
    def text(self) -> str:
        """As ``--trainer`` takes it."""
        return f"{self.trainer.name}@{self.release}" if self.release else self.trainer.name

    @property
    def note(self) -> str:
        """What is assumed, in one line."""
        own = [
            assumption
            for assumption in reversed(self.assumptions)
            if assumption.trainer == self.trainer.name
        ]
        texts = [assumption.text for assumption in (own or self.assumptions)[:_MAX_LISTED]]
        more = len(self.assumptions) - len(texts)
        rest = f" and {more} more" if more > 0 else ""
        assumptions = f"{', '.join(texts)}{rest}" if texts else "nothing beyond what was given"
        other = "" if self.is_named else " If you use another trainer, add --trainer NAME."
        imported = ", which the script imports" * self.is_imported
        if self.is_imported:
            other = " If another one trains, describe the job with trainer=NAME."
        return f"Assuming {self.label}{imported}: {assumptions}.{other}"

    def on(self, strategy: Strategy) -> Strategy:
        """A strategy with what the trainer does to it by itself."""
        names = flat_names(Strategy)
        own = {
            assumption.field: assumption.value
            for assumption in self.assumptions
            if assumption.field in names
        }
        return strategy.with_options(**own)

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "name": self.trainer.name,
            "release": self.release or None,
            "named": self.is_named,
            "imported": self.is_imported,
            "assumptions": [assumption.document() for assumption in self.assumptions],
        }

    def assumed(
        self, job_facts: frozenset[str], model: Model, strategy: Strategy
    ) -> dict[str, Assumption]:
        """What the trainer does in a job with these facts, by field; the most specific counts."""
        assumptions: dict[str, Assumption] = {}
        sizes = {"hidden": model.hidden, "tp": strategy.tp}
        for holder in self.trainer.lineage:
            month = month_of(self.release, self.trainer.releases, self.trainer.name)
            for line in holder.lines:
                if _applies(line, job_facts, month):
                    assumptions.pop(line.field, None)
                    assumptions[line.field] = Assumption(
                        field=line.field,
                        value=read_value(line.field, line.value, sizes),
                        source=line.source,
                        trainer=holder.name,
                    )
        return assumptions


def preset(text: str | None) -> Preset:
    """The preset of ``NAME`` or ``NAME@RELEASE``; None = what every job assumes.

    Raises:
        UnknownNameError: no such trainer.
        UsageError: a release that is not known of it.
    """
    if text is None:
        return Preset(trainer=trainer(DEFAULT), is_named=False)
    name, _, release = text.partition("@")
    entry = trainer(name)
    month_of(release, entry.releases, entry.name)
    return Preset(trainer=entry, release=release.strip())


def facts(
    strategy: Strategy, model: Model, options: Mapping[str, Any], arch: str = ""
) -> frozenset[str]:
    """What of a job an assumption may depend on, in the words of ``when``."""
    stage, lora = strategy.zero_stage, bool(options.get("lora_rank"))
    sharded = strategy.dp_shard > 1
    by_fact = {
        "lora": lora,
        "quantized": options.get("quantization") not in {None, "none"},
        "fsdp": stage is None and sharded,
        "ddp": strategy.dp_replicate > 1,
        "zero": stage is not None,
        f"zero{stage}": stage is not None,
        **{name: getattr(strategy, name) > 1 for name in ("tp", "pp", "cp", "ep")},
        "chunks": strategy.pipeline.virtual_stages > 1,
        "moe": model.experts > 0,
        "offload": bool(strategy.offload),
        "kept": options.get("recompute") == "none",
        "long": (options.get("seq_len") or 0) >= LONG * strategy.cp,
        "compiled": options.get("kernels") == "compiled" or options.get("compiled") is True,
        "uncompiled": options.get("compiled") is False,
        "split_experts": not strategy.data_ranks * strategy.cp % strategy.ep,
        str(options.get("precision") or "bf16"): True,
        str(options.get("optimizer") or "adamw"): True,
        model.kind: True,
        **dict.fromkeys(re.split(r"[ +]", arch.lower()), True),  # "Blackwell Ultra+Grace"
    }
    return frozenset(name for name, is_so in by_fact.items() if is_so)


def _applies(line: Line, job_facts: frozenset[str], month: str) -> bool:
    in_time = line.since <= month and (not line.until or month < line.until)
    return in_time and all(
        (fact[1:] not in job_facts) if fact.startswith("!") else fact in job_facts
        for fact in line.when
    )


@functools.cache
def _types() -> Mapping[str, Any]:
    """Field -> its type: the declared ones, and the strategy's others by their defaults."""
    declared_fields = {
        name: field
        for kind in (Workload, Strategy, ImplementationAssumptions)
        for name, field in declared(kind).items()
    }
    values = Strategy(name="").options() | {
        name: getattr(ImplementationAssumptions(), name)
        for name in flat_names(ImplementationAssumptions)
    }
    return {**{name: type(value) for name, value in values.items()}, **declared_fields}


def read_value(field: str, text: str, sizes: Mapping[str, int]) -> Any:
    """A value as its field holds it; a product such as ``0.9*hidden*hidden`` is worked out.

    Raises:
        KeyError: no such field of a job.
    """
    read = _types()[field]
    if getattr(read, "is_switch", False):
        return read.read(text)
    if getattr(getattr(read, "option", None), "split", "") == "commas":
        return words(text)
    factors = [str(sizes.get(part, part)) for part in text.split("*")]
    if all(part.replace(".", "", 1).isdigit() for part in factors):
        product = math.prod(map(float, factors), start=1.0)
        return int(product) if product.is_integer() or "*" in text else product
    return text

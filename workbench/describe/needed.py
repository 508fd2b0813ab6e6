"""What an option needs beside it: without that it changes nothing, and says so.

A `Needs` stands in the option's declaration. What someone typed without effect is refused in one
sentence; what a trainer or a file sets without effect is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from workbench.describe.implementation import ImplementationAssumptions
from workbench.describe.library_options import Scope
from workbench.describe.model import Model
from workbench.describe.option import Needs, annotated, declared
from workbench.describe.strategy import DEGREES, Strategy
from workbench.describe.workload import Workload

_KINDS = (Strategy, Workload, ImplementationAssumptions)
_RANKS = ("shard_ranks", "reduce_ranks")
"""Properties of a strategy that options need more than one of, as of degrees."""


@functools.cache
def needs() -> Mapping[str, Needs]:
    """Option -> what it needs beside it."""
    of_axis = {
        name: Needs(fact=scope.axis)
        for name, scope in annotated(Strategy, Scope).items()
        if scope.axis
    }
    return MappingProxyType(
        of_axis | {name: need for kind in _KINDS for name, need in annotated(kind, Needs).items()}
    )


@functools.cache
def _defaults() -> Mapping[str, Any]:
    return {name: field.default for kind in _KINDS for name, field in declared(kind).items()}


def of_strategy(strategy: Strategy) -> dict[str, Any]:
    """The facts that a strategy knows."""
    return strategy.options() | {name: getattr(strategy, name) for name in _RANKS}


def of_job(model: Model, workload: Workload, strategy: Strategy) -> dict[str, Any]:
    """The facts of a job; the model as it was named, before its trainer builds it otherwise."""
    return {
        **of_strategy(strategy),
        **{name: getattr(workload, name) for name in declared(Workload)},
        **{name: getattr(workload.kernels, name) for name in declared(ImplementationAssumptions)},
        "model.experts": model.experts,
        "model.tied_embeddings": model.tied_embeddings,
        "model.norm": model.norm,
        "model.one_answer": model.one_answer,
    }


def needs_layout(option: str) -> bool:
    """Whether the layout decides if an option changes anything.

    >>> needs_layout("expert_imbalance"), needs_layout("lora_targets")
    (True, False)
    """
    if option in declared(Strategy):
        return True
    need = needs().get(option)
    return need is not None and need.fact in of_strategy(Strategy(name=""))


def is_met(option: str, facts: Mapping[str, Any]) -> bool:
    """Whether what an option needs is there, as far as the facts tell."""
    need = needs().get(option)
    if need is None or need.fact not in facts:
        return True
    value = facts[need.fact]
    if need.values:
        return value in need.values
    return value > 1 if need.fact in {*DEGREES, *_RANKS} else bool(value)


def unmet(options: Iterable[str], facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of the options that differ from their default and change nothing."""
    return tuple(
        name
        for name in options
        if name in needs() and facts[name] != _defaults()[name] and not is_met(name, facts)
    )


def sentence(option: str, facts: Mapping[str, Any], strategy: str) -> str:
    """That an option changes nothing without what it needs.

    >>> facts = of_strategy(Strategy.parse("ddp", 2).with_options(schedule="gpipe"))
    >>> sentence("schedule", facts, "ddp")
    "schedule (gpipe) goes with pp; 'ddp' has pp 1. Leave it out."
    """
    need = needs()[option]
    words, value = need.fact.replace("_", " "), facts[need.fact]
    if need.text:
        goes, has = need.text, "none"
    else:
        *first, last = map(str, need.values or ("",))
        goes = f"{words} {' or '.join(filter(None, (', '.join(first), last)))}".rstrip()
        is_count = isinstance(value, int) and not isinstance(value, bool)
        has = f"{words} {value if is_count else value or ('off' if value is False else 'none')}"
    subject = repr(strategy) if need.fact in of_strategy(Strategy(name="")) else "this job"
    return (
        f"{option_text(option, facts[option])} goes with {goes}; {subject} has {has}. Leave it out."
    )


def option_text(option: str, value: Any) -> str:
    """An option as a sentence names it: a switch by its name, others with their value."""
    name = option.replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} ({','.join(value) if isinstance(value, tuple) else value})"  # pyright: ignore[reportUnknownArgumentType]

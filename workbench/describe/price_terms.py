"""What is known of each provider: terms, fabrics, form factors; one sourced fact per row.

The rows stand in data/providers.csv. `instances` is a glob over the provider's own names; "*" is
the provider as a whole. Nothing is inferred: what no source says is None.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from workbench.describe.network import Network
from workbench.describe.price import Terms

FILE = Path(__file__).parent / "data" / "providers.csv"
WHOLE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One cell of what is known, with where it was read."""

    provider: str
    """Short name, as in `Offer.provider`."""
    instances: str
    """Glob over instance names; "*" = the provider as a whole."""
    fact: str
    """Field of `Terms`, or `network`, `max_nodes`, `gpu` of an instance."""
    value: str
    """As text; numbers in the field's unit."""
    source: str
    """Where it was read."""
    date: str
    """When it was said, or read where the source has no date."""
    notes: str
    """What to know."""


@functools.cache
def facts(provider: str) -> tuple[Fact, ...]:
    """Everything known of `provider`; empty where nothing is."""
    return tuple(one for one in _every_fact() if one.provider == provider)


@functools.cache
def described() -> tuple[str, ...]:
    """The providers with at least one fact."""
    return tuple(sorted({one.provider for one in _every_fact()}))


@functools.cache
def terms(provider: str) -> Terms:
    """Terms of a provider as a whole; each figure's own source and date are named in `source`."""
    known = {one.fact: one for one in facts(provider) if one.instances == WHOLE}
    nodes = known.get("max_nodes")
    return Terms(
        provider=provider,
        billing_seconds=_number(known.get("billing_seconds")),
        minimum_seconds=_number(known.get("minimum_seconds")),
        storage_usd_per_gb_month=_number(known.get("storage_usd_per_gb_month")),
        stopped_storage_usd_per_gb_month=_number(known.get("stopped_storage_usd_per_gb_month")),
        egress_usd_per_gb=_number(known.get("egress_usd_per_gb")),
        max_nodes=int(nodes.value) if nodes else None,
        source="; ".join(f"{name}: {one.source} ({one.date})" for name, one in known.items()),
        date=min((one.date for one in known.values()), default=""),
        notes="; ".join(one.notes for one in known.values() if one.notes),
    )


@functools.lru_cache(maxsize=4096)
def fabric(provider: str, instance: str) -> tuple[Network | None, int | None]:
    """Network between nodes of this kind, and how many of them it joins; None where unknown."""
    network, nodes = _best(provider, instance, "network"), _best(provider, instance, "max_nodes")
    return (
        Network.parse(network.value) if network else None,
        int(nodes.value) if nodes else None,
    )


@functools.lru_cache(maxsize=4096)
def gpu_of(provider: str, instance: str) -> str | None:
    """Accelerator id where the instance's name decides the form factor; None where it does not."""
    found = _best(provider, instance, "gpu")
    return found.value if found else None


def _best(provider: str, instance: str, fact: str) -> Fact | None:
    """The fact with the most specific glob that fits."""
    fitting = [
        one
        for one in facts(provider)
        if one.fact == fact and one.instances != WHOLE and fnmatchcase(instance, one.instances)
    ]
    return max(fitting, key=lambda one: len(one.instances), default=None)


def _number(fact: Fact | None) -> float | None:
    return float(fact.value) if fact else None


@functools.cache
def _every_fact() -> tuple[Fact, ...]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(Fact(**row) for row in csv.DictReader(file))

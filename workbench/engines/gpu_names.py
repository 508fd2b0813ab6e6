"""What each engine calls an accelerator of the catalog; at some providers by another name.

data/gpus.csv has each engine's usual names, data/gpus_there.csv what differs at a provider, empty =
none there. SkyPilot calls the SXM card H100 at most of them, but at RunPod that is the PCIe one.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

_DATA = Path(__file__).parent / "data"


@functools.cache
def _usual() -> dict[str, dict[str, str]]:
    with (_DATA / "gpus.csv").open(encoding="utf-8", newline="") as file:
        return {row["gpu"]: row for row in csv.DictReader(file)}


@functools.cache
def _there() -> dict[tuple[str, str, str], str]:
    with (_DATA / "gpus_there.csv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return {(row["engine"], row["provider"], row["gpu"]): row["name"] for row in rows}


def gpu_name(engine: str, gpu: str, provider: str | None = None) -> str | None:
    """The engine's name of an accelerator of the catalog; None where we know none.

    >>> gpu_name("skypilot", "a100-sxm-80"), gpu_name("dstack", "h100-sxm")
    ('A100-80GB', 'H100:80GB')
    >>> gpu_name("skypilot", "h100-sxm"), gpu_name("skypilot", "h100-sxm", "runpod")
    ('H100', 'H100-SXM')
    """
    row = _usual().get(gpu)
    if row is None:
        return None
    return _there().get((engine, provider or "", gpu), row[engine]) or None


def gpus_named(engine: str, name: str, provider: str | None = None) -> list[str]:
    """Every accelerator that the engine calls so there.

    >>> gpus_named("skypilot", "H100", "runpod")
    ['h100-pcie']
    """
    return [gpu for gpu in _usual() if gpu_name(engine, gpu, provider) == name]


def known_gpus(engine: str, provider: str | None = None) -> list[str]:
    """Every accelerator that the engine has a name of there."""
    return [gpu for gpu in _usual() if gpu_name(engine, gpu, provider)]


def name_notes(engine: str, gpu: str, provider: str | None) -> list[str]:
    """Where the engine's name of `gpu` stands for another one, too or instead; [] = nowhere."""
    name = gpu_name(engine, gpu, provider)
    if name is None:
        return []
    if provider is not None:
        other_gpus = [other for other in gpus_named(engine, name, provider) if other != gpu]
        if not other_gpus:
            return []
        names = " or ".join([gpu, *other_gpus])
        return [f"{name} at {provider} may be {names}: check the proposed machine."]
    notes: list[str] = []
    for where in sorted(
        {there for renting_engine, there, _gpu in _there() if renting_engine == engine}
    ):
        chosen, there = gpus_named(engine, name, where), gpu_name(engine, gpu, where)
        if gpu in chosen or not (chosen or there):
            continue
        if chosen:
            notes.append(f"{name} at {where} is {' or '.join(chosen)}, not {gpu}: give --provider.")
        else:
            alternative = f"where {gpu} is called {there}: --provider {where} takes that name."
            notes.append(f"{name} is not offered at {where}, {alternative}")
    return notes

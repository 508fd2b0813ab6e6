"""What the strategy picker shows for a request, as plain values: ranks, memory, time, warnings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import workbench as wb
from workbench.estimate.host_step import is_covered
from workbench.estimate.rank_grid import AXIS_NAMES, Place, rank_grid
from workbench.units import format_bytes, format_count, format_seconds
from workbench_widgets.strategy.advice import advice
from workbench_widgets.strategy.preview import Look

DRAWN = 64
"""Ranks drawn one by one; more are summed up in words."""
_WORDS = {"pp": "pp", "dp_replicate": "dp", "dp_shard": "fsdp", "cp": "cp", "tp": "tp"}
_NUMBERED = re.compile(r"^(shard|slice|part) (\d+) of ")
_UNKNOWN_LAYERS = 1024  # of a script without a description: stages are drawn, blocks are not named
NOTHING: dict[str, Any] = {
    "headline": "These settings cannot be started.",
    "setting": "",
    "assumptions": [],
    "sources": [],
    "why": [],
    "warnings": [],
    "advice": [],
    "memory": {"parts": [], "whole": 0, "says": ""},
    "step": "",
    "grid": {"ranks": 0, "summary": "", "cells": []},
}
"""Before anything could be shown."""


def figure(look: Look) -> dict[str, Any]:
    """Everything that is drawn. `look` must have a request."""
    request = look.request
    assert request is not None
    memory = _memory(request)
    return {
        "headline": memory.pop("headline"),
        "fits": memory.pop("fits"),
        "setting": _setting(request),
        "assumptions": list(request.predicted.assumptions) if request.predicted else [],
        "sources": [],
        "why": list(look.why),
        "warnings": list(request.warnings),
        "advice": _advice(request),
        "memory": memory,
        "step": _step(request),
        "grid": grid(request.strategy, request.workload.model.layers if request.workload else None),
    }


def _advice(request: wb.Request) -> list[dict[str, Any]]:
    work, strategy, cluster = request.workload, request.strategy, request.cluster
    if request.device == "cpu":
        cluster = replace(cluster, gpus=(), accelerator=None)
    return [] if work is None else advice(work, strategy, cluster)


def _ranks(request: wb.Request) -> str:
    kind = "GPU" if request.device == "cuda" else "CPU"
    return f"{request.processes} {kind} {'rank' if request.processes == 1 else 'ranks'}"


def _setting(request: wb.Request) -> str:
    parts = [f"{request.strategy.name} on {_ranks(request)} of this host"]
    work = request.workload
    if work is not None:
        batch = work.micro_batch * work.accumulate * request.strategy.data_ranks
        many = "1 sequence" if batch == 1 else f"{batch:,} sequences"
        parts.append(f"{work.model.name}; {many} of {work.seq_len:,} tokens per step")
    return "; ".join(parts) + "."


def _memory(request: wb.Request) -> dict[str, Any]:
    """One rank beside its card, or all ranks beside the host."""
    predicted = request.predicted
    if predicted is None:
        unknown = f"{_ranks(request)}: memory n/a, the script's model is unknown."
        return {"headline": unknown, "fits": None, "parts": [], "whole": 0, "says": ""}
    parts = [{"name": name, "bytes": size} for name, size in predicted.parts.items() if size]
    if request.device == "cuda":
        needs, capacity, where = predicted.on_card_bytes, predicted.card_bytes, "each GPU"
    else:
        needs, capacity, where = predicted.total_bytes, request.cluster.memory_bytes, "this host"
        capacity = capacity and capacity // request.processes
    per_rank = f"{format_bytes(needs)} a rank"
    if capacity is None:
        return {"headline": f"{per_rank}.", "fits": None, "parts": parts, "whole": 0, "says": ""}
    fits = needs <= capacity
    share = format_bytes(capacity)
    text = f"of {share} on {where}"
    if request.device == "cpu" and request.processes > 1:
        text = f"of {share}, a rank's share of this host"
    headline = f"{'Fits' if fits else 'Does not fit'}: {per_rank} {text}."
    return {"headline": headline, "fits": fits, "parts": parts, "whole": capacity, "says": text}


def _step(request: wb.Request) -> str:
    """Seconds of one optimizer step, and whether they were measured here."""
    if request.workload is None:
        return "Step time: n/a, the script's model is unknown."
    step, basis = request.predicted_time, request.predicted_basis
    if step is None or basis is None:
        if request.device == "cuda":
            return "Step time: n/a, the catalog does not list rates of this GPU."
        if is_covered(request.workload, request.strategy):
            return "Step time: n/a until this CPU is calibrated (workbench calibrate)."
        return "Step time: n/a. A CPU is timed for dense models in fp32, on one rank or with DDP."
    return (
        f"Step time: about {format_seconds(step.step_seconds)}, "
        f"{format_count(step.tokens_per_second)} tokens/s ({format_seconds(step.exposed_seconds)} "
        f"of it is exposed communication); {basis}."
    )


def grid(strategy: wb.Strategy, layers: int | None) -> dict[str, Any]:
    """Which rank holds what and talks to whom; small, because it travels with every change.

    Ranks of a group are a stride apart. A cell is a line of places in the table of texts, what it
    holds | what it reads, each with the number that stands for its "#".
    """
    ranks = strategy.world_size
    axes: list[dict[str, Any]] = []
    stride = ranks
    for axis, name in AXIS_NAMES.items():
        degree = getattr(strategy, axis)
        stride //= degree
        if degree > 1:
            row = {"name": name, "word": _WORDS[axis], "says": _talk(strategy, axis)}
            axes.append({**row, "degree": degree, "stride": stride})
    document: dict[str, Any] = {"ranks": ranks, "axes": axes, "summary": "", "cells": []}
    if ranks > DRAWN:
        many = " x ".join(f"{axis['degree']} {axis['name']}" for axis in axes)
        return {**document, "summary": f"{ranks} ranks, too many to draw: {many}."}
    places = rank_grid(strategy, layers or _UNKNOWN_LAYERS)
    texts: dict[str, int] = {}
    cells = [_cell(place, strategy, texts, named=layers is not None) for place in places]
    hues = [_hue(place, strategy) for place in places]
    colours = _colours(strategy)
    return {**document, "colours": colours, "cells": cells, "hues": hues, "texts": list(texts)}


def _colours(strategy: wb.Strategy) -> str:
    """What a cell's colour means."""
    if strategy.pp > 1:
        return "stage"
    if strategy.shard_ranks > 1:
        return "shard"
    return "slice" if strategy.tp > 1 else "copy"


def _hue(place: Place, strategy: wb.Strategy) -> int:
    shard = place.dp_shard * strategy.cp + place.cp
    hues = {"stage": place.pp, "shard": shard, "slice": place.tp, "copy": 0}
    return hues[_colours(strategy)]


def _cell(place: Place, strategy: wb.Strategy, texts: dict[str, int], *, named: bool) -> str:
    first, *other_parts = place.holds.split(" · ")
    if not named:
        first = f"stage {place.pp + 1}" if strategy.pp > 1 else "the full model"
    holds = " ".join(_short(text, texts) for text in (first, *other_parts))
    return f"{holds}|{' '.join(_short(text, texts) for text in place.reads.split(', '))}"


def _short(text: str, texts: dict[str, int]) -> str:
    """Place of the text in the table, with its number where it has one."""
    match = _NUMBERED.match(text)
    if match is None:
        return str(texts.setdefault(text, len(texts)))
    plain = text[: match.start(2)] + "#" + text[match.end(2) :]
    return f"{texts.setdefault(plain, len(texts))}.{match[2]}"


def _talk(strategy: wb.Strategy, axis: str) -> str:
    """What travels along an axis, in words."""
    sharded = {
        1: "gradients reduced, updated weights gathered, once per step",
        2: "gradients reduce-scattered, updated weights gathered",
    }.get(
        strategy.zero_stage or 0,
        "weights gathered and gradients reduce-scattered, block by block",
    )
    return {
        "pp": "activations to the next stage, their gradients back",
        "dp_replicate": "gradients all-reduced, once per step"
        + ("; tokens sent to their experts and back, in each block" if strategy.ep > 1 else ""),
        "dp_shard": sharded,
        "cp": (
            "keys and values passed around the ring"
            if strategy.context.cp_method == "ring"
            else "heads exchanged for parts of the sequence"
        ),
        "tp": (
            "activations gathered and reduce-scattered in each block"
            if strategy.sequence_parallel
            else "activations all-reduced in each block"
        ),
    }[axis]

"""What the memory calculator shows for one setting: plain values for the page, and text."""

from __future__ import annotations

from typing import Any

import workbench as wb
from workbench.describe import catalog
from workbench.estimate.card import remarks
from workbench.estimate.parts import OUTSIDE_ALLOCATOR, Estimate, StageMemory
from workbench.units import format_bytes, format_count
from workbench_widgets.job_form import JobForm

_STAGES_MAX = 64  # rows drawn; a pipeline with more shows the first ones
_BAR = 40  # characters of the longest bar
_SWITCHES_MAX = 6
_NUMBERS = {"allocated": "allocated", "reserved": "reserved", "on_card": "on the card"}


def figure(choice: JobForm) -> dict[str, Any]:
    """Everything that is drawn, as plain values. Raises UsageError: what cannot be, and why."""
    job = choice.job()
    workload, layout = job.workload, job.strategy
    estimate = wb.training_memory(job)
    cards = [_card(name, estimate) for name in choice["gpu"]]
    hardware = remarks(job, estimate.host_bytes)
    return {
        "headline": _headline(cards[0], estimate),
        "fits": cards[0]["fits"],
        "setting": " ".join(
            [_setting(workload, layout), _range(estimate), *map(_sentence, hardware)]
        ),
        "range": [estimate.low_bytes, estimate.high_bytes],
        "allocated": estimate.allocated_bytes,
        "reserved": estimate.reserved_bytes,
        "on_card": estimate.on_card_bytes,
        "parts": _parts(estimate),
        "cards": cards,
        "peaks": [{"name": name, "bytes": size} for name, size in (estimate.peaks or {}).items()],
        "peak": estimate.peak,
        "stages": [_stage(stage) for stage in estimate.stages[:_STAGES_MAX]]
        if len(estimate.stages) > 1
        else [],
        "assumptions": [*job.notes, *estimate.assumptions],
        "sources": list(estimate.sources),
    }


def _parts(estimate: Estimate) -> list[dict[str, Any]]:
    return [
        {"name": name, "bytes": size, "outside": name in OUTSIDE_ALLOCATOR}
        for name, size in estimate.parts.items()
        if size
    ]


def _card(name: str, estimate: Estimate) -> dict[str, Any]:
    gpu = catalog.gpu(name)
    free = gpu.memory_bytes - estimate.on_card_bytes
    return {
        "id": gpu.id,
        "name": gpu.name,
        "bytes": gpu.memory_bytes,
        "fits": free >= 0,
        "free": free,
        "unverified": "memory_bytes" in gpu.unverified,
        "says": _verdict(free, estimate.high_bytes - gpu.memory_bytes),
    }


def _verdict(free: int, over_at_most: int) -> str:
    if free < 0:
        return f"does not fit, {format_bytes(-free)} over the limit"
    if over_at_most > 0:
        over = format_bytes(over_at_most)
        return f"tight, {format_bytes(free)} free; the range ends {over} over the limit"
    return f"fits, {format_bytes(free)} free"


def _range(estimate: Estimate) -> str:
    ends = f"{format_bytes(estimate.low_bytes)} to {format_bytes(estimate.high_bytes)}"
    return f"Four of five runs take {ends}."


def _headline(card: dict[str, Any], estimate: Estimate) -> str:
    needed = format_bytes(estimate.on_card_bytes)
    has = f"{needed} of {format_bytes(card['bytes'])} on one {card['name']}"
    if card["fits"]:
        return f"Fits: {has}, {format_bytes(card['free'])} free."
    return f"Does not fit: {has}, {format_bytes(-card['free'])} too much."


def _sentence(words: str) -> str:
    """A remark with a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:].removesuffix('.')}."


def _setting(workload: wb.Workload, layout: wb.Strategy) -> str:
    """The line under the headline: what is on how many GPUs."""
    tokens = workload.tokens_per_step(layout.data_ranks)
    unit = "tokens" if workload.counts_tokens else "samples"
    many = "1 GPU" if layout.world_size == 1 else f"{layout.world_size} GPUs, {layout.name}"
    return (
        f"{workload.model.name}, {format_count(workload.model.parameters)} parameters, on {many}; "
        f"{format_count(tokens)} {unit} per optimizer step. Each figure is for the fullest GPU."
    )


def _stage(stage: StageMemory) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "in_flight": stage.in_flight,
        "peak": stage.peak.name,
        "bytes": stage.peak.total_bytes,
        "parts": [{"name": name, "bytes": size} for name, size in stage.peak.parts.items() if size],
    }


def as_text(figure: dict[str, Any], advice: dict[str, Any]) -> str:
    """Figure and advice for terminals, screen readers and pages without JavaScript."""
    lines = [figure["headline"], figure["setting"], "", *_bars(figure), ""]
    lines += [f"  {card['name']}: {card['says']}" for card in figure["cards"]]
    lines += ["", f"Highest: {figure['peak']}."]
    lines += [f"  {sentence}" for sentence in advice.get("why", [])]
    rows = advice.get("switches", [])[:_SWITCHES_MAX]
    if rows:
        lines += ["", "Ways to save memory:"]
    for row in rows:
        saved = format_bytes(-row["saves"])
        lines += [f"  {saved:>10}  {row['name']}", f"  {'':>10}  {row['cost']}"]
    return "\n".join(lines)


def _bars(figure: dict[str, Any]) -> list[str]:
    parts = figure["parts"]
    largest = max((part["bytes"] for part in parts), default=1)
    lines = []
    for part in parts:
        bar = "#" * round(_BAR * part["bytes"] / largest)
        lines.append(f"  {part['name']:<24}{format_bytes(part['bytes']):>10}  {bar}".rstrip())
    numbers = [f"  = {name:<22}{format_bytes(figure[key]):>10}" for key, name in _NUMBERS.items()]
    return [*lines, *numbers]

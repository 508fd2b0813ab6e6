"""How ``workbench memory`` looks: at 80 columns and in logs, so colour never speaks alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workbench.describe.hardware import device_of
from workbench.describe.strategy_text import strategy_words
from workbench.estimate import sizing
from workbench.estimate.inference import cache_bytes_per_token
from workbench.estimate.parts import SAFETY, Estimate
from workbench.units import format_bytes, format_count, format_ratio, format_seconds

if TYPE_CHECKING:
    from workbench.cli.memory_values import MemoryAnswer, MemoryOptions
    from workbench.describe.job import Job

_COLOURS = ("blue", "cyan", "green", "magenta", "yellow", "bright_blue", "bright_magenta")
_SWITCHES, _OTHER_SWITCHES, _CARDS, _STAGES = 7, 4, 6, 12


def training_view(report: MemoryAnswer, width: int) -> RenderableType:
    """Everything about a training process, most important first."""
    pieces: list[RenderableType | None] = [
        _inputs(report.job, _training_words(report)),
        _numbers(report),
        _sentences("Note", report.cautions),
        _parts(report.estimate, width, "rank" if _on_cpu(report.job) else "on card"),
        _peaks(report.estimate),
        _stages(report.estimate),
        _sentences("Why", report.explanation),
        _switches(report),
        _limits_table(report),
        _cards(report),
        _options(report),
        _sentences("Assumed", report.assumed, dim=True),
    ]
    return _spaced(pieces)


def inference_view(
    options: MemoryOptions, job: Job, estimate: Estimate, width: int
) -> RenderableType:
    """Everything about a serving process."""
    model, tp = job.workload.model, job.strategy.tp
    length = job.workload.seq_len
    per_token = cache_bytes_per_token(model, length, tp=tp, kv_bytes=options.kv_bytes)
    subject = f"serving {job.workload.micro_batch} x {job.workload.sequence} tokens"
    table = _table()
    size, per = format_bytes(estimate.on_card_bytes), "rank" if _on_cpu(job) else "GPU"
    table.add_row("in memory" if _on_cpu(job) else "on card", size, f"per {per}")
    if not _on_cpu(job):
        table.add_row("card", format_bytes(estimate.card_bytes), _verdict(estimate, None))
    table.add_row("cache", format_bytes(per_token), f"per token and {per}")
    pieces: list[RenderableType | None] = [
        _inputs(job, subject),
        table,
        _parts(estimate, width, "rank" if _on_cpu(job) else "on card"),
        _sentences("Assumed", (*job.notes, *estimate.assumptions), dim=True),
    ]
    return _spaced(pieces)


def _spaced(pieces: Iterable[RenderableType | None]) -> Group:
    spaced: list[RenderableType] = []
    for piece in pieces:
        if piece is not None:
            spaced += [piece, ""]
    return Group(*spaced[:-1])


def _table(*headers: str, right: tuple[int, ...] = (1,)) -> Table:
    table = Table(box=None, pad_edge=False, show_header=bool(headers), header_style="bold")
    names = headers or ("", "", "")
    for index, name in enumerate(names):
        last = index == len(names) - 1
        justify = "right" if index in right else "left"
        table.add_column(
            name, justify=justify, no_wrap=not last, overflow="fold", style="bold" * (index == 0)
        )
    return table


def _inputs(job: Job, subject: str) -> Table:
    workload, strategy, cluster = job.workload, job.strategy, job.cluster
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    model = workload.model
    table.add_row("What", f"{model.name}, {format_count(model.parameters)} parameters; {subject}")
    ranks = f"{strategy.world_size} GPU{'s' * (strategy.world_size > 1)}"
    if _on_cpu(job):
        ranks = f"{strategy.world_size} CPU rank{'s' * (strategy.world_size > 1)}"
    table.add_row("How", f"{strategy.name} on {ranks}{_choices(job)}")
    where = "CPU ranks in host memory" if cluster == "cpu" else f"no card named ({cluster})"
    if not isinstance(cluster, str):
        card = cluster.gpus[0].name if cluster.gpus else "CPU"
        nodes = f"{cluster.nodes} nodes x " if cluster.nodes > 1 else ""
        where = f"{nodes}{len(cluster.gpus)} x {card}"
        gpu = cluster.accelerator
        if gpu is not None and "memory_bytes" in gpu.unverified:
            where += " (its memory is unverified in the catalog)"
    table.add_row("Where", where)
    return table


def _training_words(report: MemoryAnswer) -> str:
    workload = report.job.workload
    times = f" x {workload.accumulate} accumulated" if workload.accumulate > 1 else ""
    of = f" x {workload.sequence} tokens" if workload.counts_tokens else " samples"
    return f"{workload.micro_batch}{of}{times}, {workload.method}"


def _choices(job: Job) -> str:
    loss = [f"{job.workload.loss} loss"] * (job.workload.loss != "full")
    return "".join(f", {word}" for word in [*strategy_words(job.strategy), *loss])


def _numbers(report: MemoryAnswer) -> Table:
    """The three numbers against the card; with a simulation beside them."""
    estimate, simulation = report.estimate, report.simulation
    if _on_cpu(report.job):
        return _cpu_numbers(report)
    rows = [
        ("allocated", estimate.allocated_bytes, "tensors: max_memory_allocated()"),
        ("reserved", estimate.reserved_bytes, "with the allocator's slack: max_memory_reserved()"),
        ("on card", estimate.on_card_bytes, "with context and NCCL: what nvidia-smi shows"),
    ]
    verdict = _verdict(estimate, report.headroom)
    if simulation is None:
        table = _table()
        for name, size, explanation in rows:
            table.add_row(name, format_bytes(size), explanation)
        table.add_row("", "", _range(estimate))
        table.add_row("card", format_bytes(estimate.card_bytes), verdict)
        return table
    table = _table("", "closed form", "simulated", "ratio", "", right=(1, 2, 3))
    exact = (
        simulation.allocated_bytes,
        simulation.reserved_expandable_bytes
        if report.job.workload.kernels.expandable_segments
        else simulation.reserved_bytes,
        None,
    )
    for (name, size, _), other in zip(rows, exact, strict=True):
        simulated = "" if other is None else format_bytes(other)
        ratio = "" if other is None else format_ratio(other, size)
        table.add_row(name, format_bytes(size), simulated, ratio, "")
    table.add_row("card", format_bytes(estimate.card_bytes), "", "", verdict)
    fits = {True: "fits; ", False: "does not fit; ", None: ""}[simulation.fits]
    result = f"{fits}peak: {simulation.peak}; simulated in {format_seconds(simulation.seconds)}"
    table.add_row("smallest card", "", format_bytes(simulation.smallest_card_bytes), "", result)
    return table


def _on_cpu(job: Job) -> bool:
    return device_of(job.cluster) == "cpu"


def _cpu_numbers(report: MemoryAnswer) -> Table:
    """Tensors and resident memory of a rank, and of all ranks, which share the host's memory."""
    estimate, simulation, ranks = report.estimate, report.simulation, report.job.strategy.world_size
    table = _table()
    table.add_row("tensors", format_bytes(estimate.allocated_bytes), "at the peak of the step")
    if simulation is not None:
        text = f"simulated in {format_seconds(simulation.seconds)}; peak: {simulation.peak}"
        table.add_row("", format_bytes(simulation.allocated_bytes), text)
    table.add_row("rank", format_bytes(estimate.total_bytes), "resident memory, as top shows it")
    table.add_row("", "", _range(estimate))
    if ranks > 1:
        all_bytes = format_bytes(ranks * estimate.total_bytes)
        table.add_row("all ranks", all_bytes, f"{ranks} of them share the host's memory")
    return table


def _range(estimate: Estimate) -> str:
    ends = f"{format_bytes(estimate.low_bytes)} to {format_bytes(estimate.high_bytes)}"
    return f"{ends} in four of five measured runs"


def _verdict(estimate: Estimate, headroom: float | None) -> Text:
    free, card = estimate.headroom_bytes, estimate.card_bytes
    if free is None or card is None:
        return Text("unknown: name one with --gpu")
    if free < 0:
        least = "; the lower end of the range fits" * (estimate.low_bytes <= card)
        return Text(f"does not fit: {format_bytes(-free)} over the limit{least}", style="bold red")
    if not estimate.fits:
        text = f"too close: {format_bytes(free)} free, {free / card:.1%} of the card"
        return Text(f"{text}; an estimate needs {SAFETY:.0%}", style="bold red")
    text = f"fits: {format_bytes(free)} free, {free / card:.0%} of the card"
    if estimate.verdict == "tight":
        text = f"tight: {format_bytes(free)} free; the upper end of the range does not fit"
        return Text(text, style="bold yellow")
    if headroom is not None and not sizing.leaves_headroom(estimate, headroom):
        return Text(f"{text}, less than the {headroom:.0%} to keep free", style="bold yellow")
    return Text(text, style="bold green")


def _parts(estimate: Estimate, width: int, total_label: str = "on card") -> Table:
    """The parts, each where the one before ends, against the card (its end is a bar)."""
    table = _table("part", "size", "")
    full = max(estimate.on_card_bytes, estimate.card_bytes or 0, 1)
    room = max(10, min(60, width - 40))
    end = room if estimate.card_bytes is None else round(room * estimate.card_bytes / full)
    start = 0
    for index, (name, size) in enumerate(estimate.parts.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        bar = _bar(start, size, full, room, end, colour)
        table.add_row(name, format_bytes(size), bar)
        start += size
    bar = _bar(0, estimate.on_card_bytes, full, room, end, "bold")
    table.add_row(total_label, format_bytes(estimate.on_card_bytes), bar)
    return table


def _bar(start: int, size: int, full: int, room: int, end: int, colour: str) -> Text:
    first = round(room * start / full)
    last = max(first + 1, round(room * (start + size) / full))
    cells = [" "] * first + ["█"] * (last - first) + [" "] * max(0, room - last)
    text = Text("".join(cells[:end]), style=colour)
    text.append("│", style="dim")
    text.append("".join(cells[end:]).rstrip(), style="red")
    return text


def _peaks(estimate: Estimate) -> Table:
    table = _table("competing peaks", "allocated", "")
    for name, size in (estimate.peaks or {}).items():
        mark = Text("◄ peak", style="bold") if name == estimate.peak else ""
        table.add_row(Text(name, style="not bold"), format_bytes(size), mark)
    return table


def _stages(estimate: Estimate) -> Table | None:
    if len(estimate.stages) < 2:
        return None
    table = _table("stage", "blocks", "in flight", "allocated", "peak", right=(1, 2, 3))
    for stage in estimate.stages[:_STAGES]:
        size = format_bytes(stage.peak.total_bytes)
        flying = f"{stage.in_flight:.3g}"
        table.add_row(str(stage.stage), str(stage.layers), flying, size, stage.peak.name)
    more = len(estimate.stages) - _STAGES
    if more > 0:
        table.add_row("…", "", "", "", f"{more} more stages: --json")
    return table


def _sentences(title: str, sentences: tuple[str, ...], *, dim: bool = False) -> Table | None:
    if not sentences:
        return None
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold", style="dim" if dim else "")
    for index, sentence in enumerate(sentences):
        table.add_row(title if index == 0 else "", sentence)
    return table


def _switches(report: MemoryAnswer) -> Table | None:
    """By bytes: what is saved, what is then on the card, what it costs; other results last."""
    if not report.switches:
        return None
    same = [switch for switch in report.switches if not switch.changes_result]
    other = [switch for switch in report.switches if switch.changes_result]
    table = _table("saves", "then", "switches that do not change the result", right=(0, 1))
    _switch_rows(table, same[:_SWITCHES], fits=report.estimate.fits)
    if other:
        table.add_row("", "", Text("switches that change the result", style="bold"))
        _switch_rows(table, other[:_OTHER_SWITCHES], fits=report.estimate.fits)
    more = max(0, len(same) - _SWITCHES) + max(0, len(other) - _OTHER_SWITCHES)
    if more:
        table.add_row("", "", Text(f"… and {more} that save less, see --json", style="dim"))
    return table


def _switch_rows(table: Table, switches: list[sizing.Switch], *, fits: bool | None) -> None:
    for switch in switches:
        text = Text(switch.name, style="bold")
        text.append(f"  {switch.option}", style="cyan not bold")
        text.append(f"\n{switch.cost}", style="dim not bold")
        style = {True: "green", False: "red", None: ""}[switch.fits]
        after = Text(format_bytes(switch.on_card_bytes), style=style)
        if fits is False:
            after.append(" fits" if switch.fits else "   no")
        table.add_row(Text(format_bytes(switch.saves_bytes), style="not bold"), after, text)


def _limits_table(report: MemoryAnswer) -> Table | None:
    if report.estimate.card_bytes is None:
        return None
    table = _table()
    limits = {"largest micro-batch": report.micro_batch, "longest sequence": report.sequence}
    for name, answer in limits.items():
        table.add_row(name, "n/a" if answer.value is None else f"{answer.value:,}", answer.reason)
    return table


def _cards(report: MemoryAnswer) -> Table | None:
    """Without a card: the smallest GPUs that hold it, one of each size."""
    if not report.fits_on:
        return None
    fitting = f"smallest GPUs that fit with {report.headroom:.0%} free"
    table = _table(fitting, "memory", "free")
    seen: set[int] = set()
    for fit in report.fits_on:
        size = round(fit.gpu.memory_bytes / 2**30)
        if size not in seen and len(seen) < _CARDS:
            seen.add(size)
            memory, free = format_bytes(fit.gpu.memory_bytes), format_bytes(fit.free_bytes)
            mark = " (memory unverified)" * ("memory_bytes" in fit.gpu.unverified)
            table.add_row(Text(fit.gpu.id, style="not bold"), memory, free + mark)
    return table


def _options(report: MemoryAnswer) -> Table | None:
    """Where it does not fit: one GPU with switches first, then more GPUs."""
    if not report.options:
        return None
    table = _table("GPUs", "free", "what would fit", right=(0, 1))
    for option in report.options:
        name = f"{option.strategy.name} + {' + '.join(option.switches)}"
        text = Text(name if option.switches else option.strategy.name)
        if option.nodes > 1:
            text.append(f" on {option.nodes} nodes")
        if option.changes_result:
            text.append("  changes the result", style="dim")
        table.add_row(str(option.gpus), format_bytes(option.free_bytes), text)
    return table

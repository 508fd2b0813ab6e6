"""The live terminal view of a run, drawn from view.json alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from workbench.cli.tables import STYLES, number
from workbench.launching.run import Run
from workbench.observe.emissions import energy_text
from workbench.observe.summary import nonfinite_text, throughput, throughput_text
from workbench.store.commands import command_for
from workbench.units import format_bytes, format_seconds, format_usd

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN_EVERY_SECONDS = 10.0


def follow(run: Run, console: Console) -> None:
    """Show the run until it ended: on a terminal a live panel, elsewhere a line now and then."""
    if not console.is_terminal:
        _follow_plain(run, console)
        return
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        while True:
            status = run.status
            view = run.view()
            live.update(render(run.directory, view, status.state, status.outcome, status.message))
            if not status.live:
                return
            time.sleep(0.25)


def _follow_plain(run: Run, console: Console) -> None:
    due, printed = 0.0, None
    while True:
        status = run.status
        if status.live and status.message not in {None, printed}:
            printed = status.message
            console.print(printed, markup=False, soft_wrap=True)
        if time.monotonic() >= due or not status.live:
            due = time.monotonic() + _PLAIN_EVERY_SECONDS
            line = one_line(run.view(), status.outcome or status.state)
            console.print(line, markup=False, soft_wrap=True)
        if not status.live:
            console.print(status.message or "", markup=False, soft_wrap=True)
            for warning in _nonfinite(run.directory, run.view()):
                console.print(warning, markup=False, soft_wrap=True)
            return
        time.sleep(0.2)


def _nonfinite(directory: Path, view: dict[str, Any]) -> list[str]:
    """What an outcome alone hides: the losses shown leave out those that are no numbers."""
    step = view.get("nonfinite_step")
    if step is None:
        return []
    why = command_for(directory, "diagnose")
    return [f"First NaN or infinite loss at step {step}. To find the cause: {why}"]


def _loss(view: dict[str, Any]) -> str:
    broken = nonfinite_text(view)
    return number(view.get("loss_last")) + (f" ({broken})" if broken else "")


def one_line(view: dict[str, Any], state: str) -> str:
    """The run in one line, for logs and CI: what is known, and of an ended run no last sample."""
    label = "  rehearsal" if view.get("rehearsal") else ""
    parts = [
        f"{state}{label}  step {view.get('steps', 0)}",
        f"loss {_loss(view)}",
        throughput_text(view),
        f"elapsed {format_seconds(view.get('elapsed_seconds'))}",
    ]
    if view.get("phase") != "ended":
        host = host_series(view)
        parts += [
            f"left {format_seconds(view.get('eta_seconds') or None)}",
            f"cpu {_percent(last(host.get('cpu_percent')))}",
            f"memory {format_bytes(last(host.get('run_rss_bytes')))}",
        ]
    return "  ".join(part for part in parts if "n/a" not in part)


def render(
    directory: Path, view: dict[str, Any], state: str, outcome: str | None, message: str | None
) -> RenderableType:
    """The panel: badge, progress, loss curve, speed, devices, last log line of each rank."""
    label = outcome or state
    style = STYLES.get(label, "white")
    parts: list[RenderableType] = []
    if view["seq"]:
        for section in (_progress, _facts, _devices, _tails):
            parts += [section(view), Text()]
    else:
        parts.append(Text("starting: the launcher imports torch, then the ranks do …", style="dim"))
    if message:
        parts.append(Text(message, style=style))
    parts += [Text(line, style="red") for line in _nonfinite(directory, view)]
    note = ", rehearsal: nothing is trained" if view.get("rehearsal") else ""
    title = f"[bold]{escape(directory.name)}[/] [{style}]{label}[/]{note}"
    return Panel(Group(*parts), title=title, title_align="left", border_style=style)


def _progress(view: dict[str, Any]) -> RenderableType:
    done = _share_done(view)
    total = f"/{view['steps_total']}" if view.get("steps_total") else ""
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right")
    left = f"left {format_seconds(view['eta_seconds'])}"
    if view["eta_seconds"] == 0 and not view["ended_at"]:
        left = "all steps done, the script is finishing"
    grid.add_row(
        ProgressBar(total=1.0, completed=done or 0.0, pulse=done is None and not view["ended_at"]),
        f"step {view['steps']}{total}   elapsed {format_seconds(view['elapsed_seconds'])}   {left}",
    )
    return grid


def _share_done(view: dict[str, Any]) -> float | None:
    if view["ended_at"]:  # as the dashboard has it: a run that failed early has not done all
        total = view["steps_total"] or 0
        known = min(1.0, view["steps"] / total) if total > 0 else None
        return 1.0 if known is None and view["outcome"] == "succeeded" else known
    eta, elapsed = view["eta_seconds"], view["elapsed_seconds"]
    return None if eta is None or elapsed is None else elapsed / max(1e-9, elapsed + eta)


def _facts(view: dict[str, Any]) -> RenderableType:
    series = view["series"]
    grid = Table.grid(padding=(0, 3))
    curve = sparkline(series.get("loss", []), 48)
    grid.add_row("loss", f"[bold]{_loss(view)}[/]", f"[cyan]{curve}[/]")
    rate = throughput(view)
    if rate is not None:
        unit, _ = rate
        speed = sparkline(series.get(f"{unit.removesuffix('/s')}_per_second", []), 48)
        grid.add_row(unit, throughput_text(view).removesuffix(f" {unit}"), f"[green]{speed}[/]")
    norm = number(last(series.get("grad_norm")))
    extra = f"lr {number(last(series.get('lr')))}   grad norm {norm}"
    grid.add_row("step", format_seconds(view["step_seconds_median"]), extra)
    if view.get("usd_so_far") is not None:
        grid.add_row("cost", format_usd(view["usd_so_far"]), "")
    if energy := energy_text(view.get("energy")):
        grid.add_row("energy", energy, "")
    return grid


def _devices(view: dict[str, Any]) -> RenderableType:
    columns = ("device", "use", "memory", "temp", "power")
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    for device in view["devices"]:
        series = device["series"]
        used, total = last(series["memory_bytes"]), device["memory_total_bytes"]
        memory = f"{format_bytes(used)} / {format_bytes(total)}"
        temperature, power = last(series["temperature_c"]), last(series["power_w"])
        table.add_row(
            escape(f"{device['id']} {device['name']}"),
            _percent(last(series["util"])),
            memory,
            "n/a" if temperature is None else f"{temperature:.0f} °C",
            "n/a" if power is None else f"{power:.0f} W",
        )
    for row in _of_many(view):
        table.add_row(*row)
    host = host_series(view)
    table.add_row(
        f"host ({view['host'].get('cores')} cores)",
        _percent(last(host.get("cpu_percent"))),
        f"run {format_bytes(last(host.get('run_rss_bytes')))} of "
        f"{format_bytes(view['host'].get('memory_total_bytes'))}",
        "",
        "",
    )
    grid: dict[str, Any] = view.get("grid") or {}
    odd = [f"[yellow]{escape(outlier['text'])}[/]" for outlier in grid.get("outliers") or ()]
    missing = [f"[yellow]{escape(text)}[/]" for text in grid.get("missing") or ()]
    return Group(table, *odd, *(missing if grid.get("kind") == "gpu" else ()))


def _of_many(view: dict[str, Any]) -> list[tuple[str, ...]]:
    """Median and extremes, where there are too many devices for a row each."""
    spread: dict[str, Any] = view.get("device_spread") or {}
    grid: dict[str, Any] = view.get("grid") or {}
    nodes: list[dict[str, Any]] = grid.get("nodes") or []
    if last(spread.get("util")) is None:
        return []

    def text(name: str, say: Callable[[float], str]) -> str:
        values = (last(spread.get(f"{name}{end}")) for end in ("_low", "", "_high"))
        return " · ".join("n/a" if value is None else say(value) for value in values)

    return [
        (
            f"{sum(node['count'] for node in nodes)} GPUs, low · median · high",
            text("util", lambda value: f"{value:.0f} %"),
            text("memory_bytes", format_bytes),
            text("temperature_c", lambda value: f"{value:.0f} °C"),
            text("power_w", lambda value: f"{value:.0f} W"),
        )
    ]


def _tails(view: dict[str, Any]) -> RenderableType:
    lines = [
        f"rank {rank['rank']}  {rank['log_tail'][-1]}" for rank in view["ranks"] if rank["log_tail"]
    ]
    text = "\n".join(lines[:8]) or "no output yet"
    return Text(text, style="dim", overflow="ellipsis", no_wrap=True)


def host_series(view: dict[str, Any]) -> dict[str, list[Any]]:
    """The host's columns; empty before the first sample."""
    return view.get("host", {}).get("series", {})


def last(values: list[Any] | None) -> Any:
    """The latest known value."""
    return next((value for value in reversed(values or []) if value is not None), None)


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f} %"


def sparkline(values: list[float | None], width: int) -> str:
    """A curve in one line of block characters.

    >>> sparkline([3.0, 2.0, 1.0], 3)
    '█▅▁'
    """
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    if len(numbers) > width:
        numbers = [numbers[index * len(numbers) // width] for index in range(width)]
    low, high = min(numbers), max(numbers)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in numbers)

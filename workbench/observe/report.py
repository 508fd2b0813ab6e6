"""report.html: the finished run on one self-contained page, without scripts."""

from __future__ import annotations

import html
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.observe.emissions import energy_text
from workbench.observe.log_tails import log_lines
from workbench.observe.prediction_error.comparison import read_prediction_error
from workbench.observe.prediction_error.terms import PredictionError, PredictionTerm
from workbench.observe.rank_count import rank_count
from workbench.observe.report_recovery import STYLE as TROUBLE_STYLE
from workbench.observe.report_recovery import troubles
from workbench.observe.report_samples import STYLE as SAMPLES_STYLE
from workbench.observe.report_samples import samples
from workbench.observe.series import Series, figures, shown_series
from workbench.observe.summary import nonfinite_text, predicted_memory
from workbench.observe.svg import Line, Mark, Number, chart
from workbench.store.actions import step_marks
from workbench.store.commands import command_for
from workbench.store.files import read_json, read_tail, write_text_atomic
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import REHEARSED, RunRecord
from workbench.store.schema import ExitDoc
from workbench.units import GIB, format_bytes, format_joules, format_ratio, format_usd

_STYLE = """
:root{color-scheme:light dark;--fg:#1f2328;--mute:#656d76;--bg:#fff;--card:#f6f8fa;--rule:#d0d7de;
--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;--c4:#cf222e;--c5:#9a6700;--c6:#0a7ea4;--c7:#bf3989}
@media(prefers-color-scheme:dark){:root{--fg:#e6edf3;--mute:#8d96a0;--bg:#0d1117;--card:#161b22;
--rule:#30363d;--c0:#58a6ff;--c1:#f0883e;--c2:#3fb950;--c3:#bc8cff;--c4:#ff7b72;--c5:#d29922;
--c6:#39c5cf;--c7:#ff7eb6}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:1360px;
margin:0 auto;padding:24px}h1{font-size:24px;margin:0;overflow-wrap:anywhere}h2{font-size:17px;
margin:28px 0 8px}.badge{font-size:14px;padding:2px 10px;border-radius:12px;border:1px solid;
margin-left:8px;vertical-align:3px}.succeeded{color:var(--c2)}.failed,.interrupted,.no-steps{
color:var(--c4)}.stopped,.preempted{color:var(--c5)}.charts{display:grid;gap:16px;
grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr))}figure{margin:0;padding:12px;
background:var(--card);border:1px solid var(--rule);border-radius:8px}figcaption{font-weight:600}
small{font-weight:400;color:var(--mute)}svg{width:100%;height:auto;display:block}.grid{stroke:
var(--rule)}.tick{fill:var(--mute);font-size:11px}.mark{fill:var(--fg);font-size:11px}
.line{fill:none;stroke-width:1.8;stroke:var(--c0)}
.key{float:right;margin-left:12px;font-weight:400;font-size:13px;color:var(--c0)}
table{border-collapse:collapse}td,th{padding:4px 16px 4px 0;text-align:left;vertical-align:top;
border-bottom:1px solid var(--rule)}td.n{text-align:right;font-variant-numeric:tabular-nums}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px;
overflow:auto;max-height:340px;font-size:13px;white-space:pre-wrap;
overflow-wrap:anywhere}.mute{color:var(--mute)}
.gap td.bar{width:34%;min-width:120px;padding-top:9px}.gap td.bar i{display:block;height:5px;
border-radius:2px;margin-bottom:3px;background:var(--c0)}.gap td.bar i.p{background:var(--mute);
opacity:.6}.gap tr.cause td:first-child{padding-left:16px;color:var(--mute)}
.gap tr.off td.ratio{color:var(--c1);font-weight:600}.gap td.n{white-space:nowrap}
@media(max-width:640px){.gap td.bar{display:none}}
""" + "".join(f".c{n}{{stroke:var(--c{n})}}.key.c{n}{{color:var(--c{n})}}" for n in range(8))


_LINES = 8  # of one figure: as many colours as there are


def write_report(paths: RunPaths, end: ExitDoc) -> None:
    """Write the page from run.json, view.json and the logs; raises OSError when it cannot."""
    run, view = read_run(paths) or RunRecord(), read_json(paths.view) or {}
    version = html.escape(run.workbench_version)
    written = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    marks = _marks(paths)
    name, outcome = html.escape(run.name), html.escape(str(end["outcome"]))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name="viewport" content="width=device-width">',
        f"<title>{name}: {outcome}{', rehearsal' * (run.rehearsal is not None)}</title>",
        f"<style>{_STYLE}{TROUBLE_STYLE}{SAMPLES_STYLE}</style>",
        f'<h1>{name} <span class="badge {outcome}">{outcome}</span>{_rehearsed(run)}</h1>',
        f"<p>{html.escape(str(end['message']))}</p>",
        f"<p><code>{html.escape(shlex.join([run.script, *run.arguments]))}</code></p>",
        troubles(paths, view),
        _rehearsal(run, view)
        or _prediction(read_prediction_error(paths), run, view, end.get("exit_code")),
        _energy(view.get("energy")),
        f'<h2>Curves</h2><div class="charts">{_charts(view, marks)}</div>',
        _marked(marks),
        _not_drawn(paths, view),
        samples(paths, view),
        _memory_table(run),
        "<h2>Started as</h2>",
        f"<pre>{html.escape(_command(run))}</pre>",
        *(_log(paths, rank) for rank in range(min(8, rank_count(paths, run.processes)))),
        f'<p class="mute">workbench {version}, {written}. This page needs no other file.',
    ]
    write_text_atomic(paths.report, "\n".join(parts))


def _rehearsed(run: RunRecord) -> str:
    return f' <span class="badge stopped">{REHEARSED}</span>' if run.rehearsal else ""


def _command(run: RunRecord) -> str:
    variables = [f"{name}={shlex.quote(value)}" for name, value in run.environment.items()]
    return " \\\n  ".join([*variables, shlex.join(run.command)])


def _prediction(
    gap: PredictionError, run: RunRecord, view: Mapping[str, Any], exit_code: Any
) -> str:
    """Each term beside what was measured, why they differ, and what the times rest on."""
    largest = max((_larger(row) for row in gap.rows if row.group == "time"), default=0.0)
    rows = [_row(term, largest if term.group == "cause" else _larger(term)) for term in gap.rows]
    loss = " → ".join(_number(view.get(name)) for name in ("loss_first", "loss_last"))
    broken = nonfinite_text(view)
    loss += f" ({broken})" if broken else ""
    rows += [
        _facts("loss, first → last", "n/a", loss),
        _facts("optimizer steps", _count(run.steps_total), _count(view.get("steps"))),
        _facts("processes", _count(run.processes), _count(view.get("world_size"))),
        _facts("exit code", "0", _count(exit_code)),
    ]
    head = (
        "<tr><th></th><th>predicted or requested</th><th>measured</th><th>ratio</th><th></th></tr>"
    )
    why = f"<p>{html.escape(gap.explanation)}</p>" if gap.explanation else ""
    return (
        f'<h2>Predicted and measured</h2>{why}<table class="gap">{head}{"".join(rows)}</table>'
        f'<p class="mute">{html.escape(_basis(gap))}</p>'
    )


def _rehearsal(run: RunRecord, view: Mapping[str, Any]) -> str:
    """What was planned beside what a rehearsal came to; "" for a run that trains."""
    if run.rehearsal is None:
        return ""
    planned = run.rehearsal.get("planned") or {}
    elapsed = view.get("elapsed_seconds")
    came: dict[str, tuple[Callable[[float | None], str], float | None]] = {
        "hours": (_hours, None if elapsed is None else elapsed / 3600),
        "usd": (format_usd, view.get("usd_so_far")),
    }
    rows = "".join(
        f'<tr><td>{"dollars" if name == "usd" else name}</td><td class="n">'
        f"{text(planned.get(name))}<br><small>{text(planned.get(f'{name}_low'))} to "
        f'{text(planned.get(f"{name}_high"))}</small></td><td class="n">{text(value)}</td></tr>'
        for name, (text, value) in came.items()
    )
    return (
        f"<h2>Planned and rehearsed</h2><table><tr><th></th><th>planned</th><th>rehearsed</th></tr>"
        f'{rows}</table><p class="mute">Nothing was trained, so nothing was measured.</p>'
    )


def _hours(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.1f} h"


def _basis(gap: PredictionError) -> str:
    """What both columns of times are."""
    steps = f"Measured times are medians over {gap.steady_steps:,} steady steps."
    if gap.source is None:
        return steps
    return f"{steps} Predicted times: {gap.source}. Grey bars predicted, blue ones measured."


def _row(row: PredictionTerm, largest: float) -> str:
    off = "off" if row.within is False else ""
    predicted = html.escape(row.text(row.predicted))
    if row.low is not None and row.high is not None:
        ends = f"{row.text(row.low)} to {row.text(row.high)}"
        predicted += f"<br><small>{html.escape(ends)}</small>"
    return (
        f'<tr class="{row.group if row.group == "cause" else ""} {off}">'
        f'<td>{html.escape(row.what)}</td><td class="n">{predicted}</td>'
        f'<td class="n">{html.escape(row.text(row.measured))}</td>'
        f'<td class="n ratio">{format_ratio(row.measured, row.predicted)}</td>'
        f'<td class="bar">{_bar("p", row.predicted, largest)}'
        f"{_bar('m', row.measured, largest)}</td></tr>"
    )


def _bar(css: str, value: float | None, largest: float) -> str:
    if value is None or largest <= 0:
        return ""
    return f'<i class="{css}" style="width:{max(0.5, min(100.0, 100 * value / largest)):.1f}%"></i>'


def _larger(row: PredictionTerm) -> float:
    return max(row.predicted or 0.0, row.measured or 0.0)


def _facts(label: str, requested: str, measured: str) -> str:
    cells = "".join(f'<td class="n">{html.escape(text)}</td>' for text in (requested, measured))
    return f"<tr><td>{label}</td>{cells}<td></td><td></td></tr>"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _count(value: int | None) -> str:
    return "n/a" if value is None else str(value)


def _energy(energy: Mapping[str, Any] | None) -> str:
    """What the run took, and what is not in it; nothing where no device told."""
    text = energy_text(energy)
    if not text or energy is None:
        return ""
    parts = [
        f"{device} {format_joules(energy.get(name))}"
        for name, device in (("gpu_joules", "GPU boards"), ("processor_joules", "processors"))
        if energy.get(name) is not None
    ]
    notes = html.escape(" ".join([f"Counted: {', '.join(parts)}.", *(energy.get("notes") or ())]))
    return f'<h2>Energy</h2><p>{html.escape(text)}</p><p class="mute">{notes}</p>'


def _memory_table(run: RunRecord) -> str:
    memory = predicted_memory(run.predicted)
    if not memory:
        return ""
    rows = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="n">{format_bytes(size)}</td></tr>'
        for name, size in memory.get("parts", {}).items()
    )
    notes = html.escape("; ".join(memory.get("assumptions", [])))
    return f'<h2>Memory, predicted</h2><table>{rows}</table><p class="mute">Assumes: {notes}.</p>'


def _marks(paths: RunPaths) -> list[Mark]:
    """What someone changed or asked for while it trained, as the dashboard marks it."""
    return [
        Mark(x=mark["step"], text=f"after step {mark['step']:,}: {mark['text']}")
        for mark in step_marks(paths)
    ]


def _marked(marks: list[Mark]) -> str:
    """The marks in words: paper has no pointer."""
    marks_text = html.escape(" · ".join(mark.text for mark in marks))
    return f'<p class="mute">◆ {marks_text}</p>' if marks else ""


def _not_drawn(paths: RunPaths, view: Mapping[str, Any]) -> str:
    """How many logged names have no curve on the page: a figure has so many colours."""
    logged: Mapping[str, Any] = view.get("logged") or {}
    series, count = shown_series(logged), logged.get("more_count")
    left = count if type(count) is int else 0
    left += sum(max(0, len(group) - _LINES) for group in figures(series).values())
    left += max(0, sum(each.is_validation_loss for each in series) - (_LINES - 1))
    line = command_for(paths.directory, "metrics", "--list")
    return f'<p class="mute">{left:,} more logged names: {html.escape(line)}</p>' if left else ""


def _charts(view: dict[str, Any], marks: list[Mark]) -> str:
    series, start = view.get("series", {}), view.get("started_at") or 0
    steps = series.get("step", [])

    def lines(*names: str) -> list[Line]:
        return [
            Line(name=name.replace("_", " "), x=steps, y=series[name], css=f"c{index}")
            for index, name in enumerate(names)
            if name in series
        ]

    def over_steps(title: str, unit: str, *names: str) -> str:
        return chart(title, lines(*names), x_label="optimizer step", y_label=unit)

    return "".join(
        [
            chart(
                "Loss",
                [*lines("loss"), *_validation(view)],
                x_label="optimizer step",
                y_label="mean over ranks",
                marks=marks,
            ),
            over_steps("Throughput", "tokens/s", "tokens_per_second"),
            over_steps("Throughput", "samples/s", "samples_per_second"),
            over_steps("Learning rate", "", "lr"),
            over_steps("Gradient norm", "", "grad_norm"),
            over_steps("Step time", "seconds", *_step_columns(view)),
            *_logged_charts(view),
            *_hardware_charts(view, start),
        ]
    )


def _validation(view: Mapping[str, Any]) -> list[Line]:
    validation_series = [
        series for series in shown_series(view.get("logged") or {}) if series.is_validation_loss
    ]
    return [
        _line(series, css) for css, series in enumerate(validation_series[: _LINES - 1], start=1)
    ]


def _logged_charts(view: Mapping[str, Any]) -> list[str]:
    """A figure per group and scale of what was logged by name."""
    charts: list[str] = []
    for title, series in figures(shown_series(view.get("logged") or {})).items():
        lines = [_line(line, css) for css, line in enumerate(series[:_LINES])]
        charts.append(chart(title, lines, x_label="optimizer step", y_label=""))
    return charts


def _line(series: Series, css: int) -> Line:
    return Line(name=series.name, x=series.step, y=series.mean, css=f"c{css % _LINES}")


def _step_columns(view: dict[str, Any]) -> tuple[str, ...]:
    """The maximum says something new only where a point stands for several steps."""
    return ("step_seconds", "step_seconds_max") if view.get("stride", 1) > 1 else ("step_seconds",)


def _hardware_charts(view: dict[str, Any], start: float) -> list[str]:
    spread: dict[str, list[float | None]] = view.get("device_spread") or {}
    devices: list[dict[str, Any]] = view.get("devices", [])
    host = view.get("host", {}).get("series", {"time": []})
    clocks = [device["series"] for device in devices] if not spread else [spread]
    label, since = _running_time([*clocks, host], start)

    def lines(column: str, scale: float = 1.0) -> list[Line]:
        named = [(device["id"], device["series"], column) for device in devices]
        if spread:
            ends = (("highest", "_high"), ("median", ""), ("lowest", "_low"))
            named = [(name, spread, column + end) for name, end in ends]
        return [
            Line(
                name=name,
                x=since(series["time"]),
                y=[None if value is None else value / scale for value in series[key]],
                css=f"c{number % _LINES}",
            )
            for number, (name, series, key) in enumerate(named)
        ]

    node = " on node 0" if (view.get("nodes") or 1) > 1 else ""
    memory = [None if value is None else value / GIB for value in host.get("run_rss_bytes", [])]
    at = since(host["time"])
    cpu = [Line(name=f"host CPU{node}", x=at, y=host.get("cpu_percent", []))]
    rss = [Line(name=f"all processes of the run{node}", x=at, y=memory)]
    return [
        chart("GPU utilisation", lines("util"), x_label=label, y_label="% of time busy"),
        chart("GPU memory", lines("memory_bytes", GIB), x_label=label, y_label="GiB"),
        chart("GPU temperature", lines("temperature_c"), x_label=label, y_label="°C"),
        chart("GPU power", lines("power_w"), x_label=label, y_label="W"),
        chart("Processor", cpu, x_label=label, y_label="%"),
        chart("Host memory", rss, x_label=label, y_label="GiB"),
    ]


def _running_time(
    tables: Sequence[Mapping[str, Any]], start: float
) -> tuple[str, Callable[[Sequence[Number]], list[Number]]]:
    """Name of the time axis, and what puts Unix times on it: in the unit that the dashboard has."""
    length = max((at - start for table in tables for at in table["time"] if at), default=0.0)
    units = (("hours", 3600, 7200), ("minutes", 60, 180), ("seconds", 1, -math.inf))
    unit, size = next((unit, size) for unit, size, above in units if length > above)

    def since(times: Sequence[Number]) -> list[Number]:
        return [None if at is None else (at - start) / size for at in times]

    return f"{unit} since the start", since


def _log(paths: RunPaths, rank: int) -> str:
    lines = log_lines(read_tail(paths.rank_log(rank), 6000))[-30:]
    text = html.escape("\n".join(lines)) or "nothing written"
    return f"<h2>Rank {rank}, end of log</h2><pre>{text}</pre>"

"""A sweep on one HTML page: its figures and the table of its trials; it needs no network."""

from __future__ import annotations

import html
from pathlib import Path

from workbench.errors import StoreError
from workbench.store.files import write_bytes_atomic
from workbench.store.secrets import hide_bytes
from workbench.sweeping.figures import figures, plotly_script
from workbench.sweeping.plan import labels
from workbench.sweeping.progress import TrialRow
from workbench.sweeping.sweep import Sweep

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:3px 14px 3px 0;text-align:left;border-bottom:1px solid #8884;white-space:nowrap}
td:last-child{white-space:normal}
.table{overflow-x:auto}
"""


def write_page(sweep: Sweep, path: Path) -> None:
    """Write figures and trials as one HTML file that needs no network. Raises StoreError."""
    drawn = figures(sweep)
    plan, best = sweep.plan, sweep.best()
    about = f"{labels(plan.parameters)}; {sweep.metric_text}, {plan.direction} is better; "
    parts = [
        f"<h1>{html.escape(sweep.name)}</h1>",
        f"<p>{html.escape(about + sweep.state)}</p>",
    ]
    if best is not None:
        values = ", ".join(f"{name}={value}" for name, value in best.values.items())
        parts.append(
            f"<p>Best: trial {best.number} ({html.escape(values)}), {best.value:.6g}, "
            f"run <code>{html.escape(str(best.run))}</code></p>"
        )
    for heading, figure in drawn.items():
        parts.append(f"<h2>{heading}</h2>")
        size = {"default_height": 380, "config": {"displayModeBar": False, "responsive": True}}
        parts.append(figure.to_html(full_html=False, include_plotlyjs=False, **size))
    if not drawn:
        parts.append("<p>No trial has finished yet.</p>")
    parts.append(_table(sweep))
    title = html.escape(f"Sweep {sweep.name}")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    code = f"<script>{plotly_script()}</script>".encode() if drawn else b""
    start, body = f"<!doctype html><html lang=en>{head}", f"{''.join(parts)}</html>\n"
    page = hide_bytes(start.encode()) + code + hide_bytes(body.encode())
    try:
        write_bytes_atomic(path, page, hide=False)  # plotly.js has what looks like a key
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}") from error


def _table(sweep: Sweep) -> str:
    names = [parameter.name for parameter in sweep.plan.parameters]
    heads = ["Trial", "State", *names, sweep.metric_text, "Run", ""]
    cells = "".join(f"<th>{html.escape(head)}</th>" for head in heads)
    lines = "".join(_line(row, names) for row in sweep.trials())
    return f"<h2>Trials</h2><div class=table><table><tr>{cells}</tr>{lines}</table></div>"


def _line(trial: TrialRow, names: list[str]) -> str:
    value = "n/a" if trial.value is None else f"{trial.value:.6g}"
    values = [trial.values.get(name, "") for name in names]
    texts = [str(trial.number), trial.state, *values, value, trial.run or "n/a", trial.why]
    return f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in texts)}</tr>"

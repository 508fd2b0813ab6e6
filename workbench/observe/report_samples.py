"""The part of report.html with what the model answered while it trained."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

STYLE = (
    ".samples td:first-child{white-space:nowrap;color:var(--mute)}"
    ".samples td{overflow-wrap:anywhere;white-space:pre-wrap}h3{font-size:14px;margin:12px 0 4px}"
)


def samples(view: Mapping[str, Any]) -> str:
    """A table of steps and answers for each prompt; "" where there are none."""
    prompts: Mapping[str, Any] = view.get("text_samples") or {}
    parts = [
        f"<h3>{html.escape(prompt)}</h3><table class=samples>{_rows(prompts, at)}</table>"
        for at, prompt in enumerate(prompts.get("prompts") or ())
    ]
    return f"<h2>Samples</h2>{''.join(parts)}" if parts else ""


def _rows(prompt_samples: Mapping[str, Any], at: int) -> str:
    pairs = zip(prompt_samples["steps"], prompt_samples["answers"], strict=True)
    return "".join(
        f"<tr><td>step {step:,}</td><td>{html.escape(answers[at])}</td></tr>"
        for step, answers in pairs
        if answers[at] is not None
    )

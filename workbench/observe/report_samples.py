"""The part of report.html with what the model answered while it trained."""

from __future__ import annotations

import base64
import contextlib
import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.observe.text_samples import PICTURE
from workbench.store.files import read_file
from workbench.store.layout import RunPaths

STYLE = (
    ".samples td:first-child{white-space:nowrap;color:var(--mute)}"
    ".samples td{overflow-wrap:anywhere;white-space:pre-wrap}h3{font-size:14px;margin:12px 0 4px}"
    ".samples img{max-width:256px;display:block}"
)


_PICTURE_BYTES = 1 << 20
_PICTURES_BYTES = 8 << 20  # of all pictures of a page; the latest steps go first


def samples(paths: RunPaths, view: Mapping[str, Any]) -> str:
    """A table of steps and answers for each prompt; "" where there are none."""
    prompts: Mapping[str, Any] = view.get("text_samples") or {}
    if not prompts.get("prompts"):
        return ""
    pictures = _pictures(paths, prompts["answers"])
    parts = [
        f"<h3>{html.escape(prompt)}</h3><table class=samples>{_rows(prompts, at, pictures)}</table>"
        for at, prompt in enumerate(prompts["prompts"])
    ]
    return f"<h2>Samples</h2>{''.join(parts)}"


def _rows(prompt_samples: Mapping[str, Any], at: int, pictures: Mapping[str, str]) -> str:
    pairs = zip(prompt_samples["steps"], prompt_samples["answers"], strict=True)
    return "".join(
        f"<tr><td>step {step:,}</td><td>{_answer(answers[at], pictures)}</td></tr>"
        for step, answers in pairs
        if answers[at] is not None
    )


def _answer(answer: str, pictures: Mapping[str, str]) -> str:
    text = html.escape(answer)
    data = pictures.get(answer)
    return text if data is None else f'<img alt="{text}" src="data:image/png;base64,{data}">'


def _pictures(paths: RunPaths, answers: Sequence[Sequence[str | None]]) -> dict[str, str]:
    """Base 64 of the pictures by their names: the page needs no other file."""
    pictures, left = dict[str, str](), _PICTURES_BYTES
    for name in (answer for step in reversed(answers) for answer in step if answer is not None):
        if name in pictures or not re.fullmatch(PICTURE, name):
            continue
        with contextlib.suppress(OSError):  # gone, or too large: its name stands there
            data = read_file(paths.directory / name, min(_PICTURE_BYTES, left))
            pictures[name] = base64.b64encode(data).decode()
            left -= len(data)
    return pictures

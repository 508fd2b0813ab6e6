"""What a model in training answered to fixed prompts, step by step.

A line of `metrics/rank-N.said.jsonl` with the texts `prompt` and `answer` is one sample: the
recipes write them (`--sample-every`), and so does any script with
``workbench.log(step=…, prompt=…, answer=…)``. Those of the lowest rank that logs any count. A
sample of a step that was done again replaces the first. The answer ``samples/NAME.png`` is a
picture in the run's directory, which pages show in its place.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from workbench.store.files import LineReader
from workbench.store.layout import RunPaths
from workbench.store.shapes import line_fits

PICTURE = r"samples/[\w-]+\.png"
"""The answer that is a picture of the run's directory."""
_OUTER = frozenset({"time", "step", "rank"})
_MAX_NAME = 200  # characters, as of what frameworks log
_MAX_PROMPTS = 16
_MAX_STEPS = 200
_VIEW_BYTES = 8_000
_VIEW_CHARACTERS = 400  # of an answer there, before steps have to go
_SHORTEST = 40


def named_values(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a line of what was said gives by name; older lines have it beside step and time.

    Names have at most 200 characters. An integer of more than 64 bits is the nearest float; one
    that is larger than any is left out.
    """
    inner = line.get("values")
    if not isinstance(inner, dict):
        inner = {name: value for name, value in line.items() if name not in _OUTER}
    values = cast("dict[str, Any]", inner)
    if not line_fits(values):
        fitting = {name: _fitting(value) for name, value in values.items()}
        values = {name: value for name, value in fitting.items() if value is not None}
    if max(map(len, values), default=0) > _MAX_NAME:
        values = {name[:_MAX_NAME]: value for name, value in values.items()}
    return values


def _fitting(value: Any) -> Any:
    if line_fits({"": value}):
        return value
    with contextlib.suppress(OverflowError):
        return float(value)
    return None


class TextSamples:
    """Prompts and answers; of very many steps the first, the last and evenly some between."""

    def __init__(self) -> None:
        self._answers: dict[int, dict[str, str]] = {}
        self._prompts: dict[str, None] = {}
        self._owner: int | None = None
        self._document: dict[str, Any] | None = None

    def add(self, rank: int, line: Mapping[str, Any], step: int) -> None:
        """Take a line, if it is a sample; `step`: of the line before, where it has none."""
        values, own = named_values(line), line.get("step")
        prompt, answer = values.get("prompt"), values.get("answer")
        if not isinstance(prompt, str) or not isinstance(answer, str):
            return
        if self._owner is None or rank < self._owner:
            self._owner = rank
            self._answers.clear()
            self._prompts.clear()
        if rank != self._owner:
            return
        if prompt not in self._prompts and len(self._prompts) >= _MAX_PROMPTS:
            return
        self._prompts[prompt] = None
        self._answers.setdefault(own if type(own) is int else step, {})[prompt] = answer
        if len(self._answers) > _MAX_STEPS:
            steps = sorted(self._answers)
            self._answers = {step: self._answers[step] for step in _half(steps)}
        self._document = None

    def rows(self) -> list[dict[str, Any]]:
        """Every sample: step, prompt, answer; by step, then in the order of the prompts."""
        return [
            {"step": step, "prompt": prompt, "answer": self._answers[step][prompt]}
            for step in sorted(self._answers)
            for prompt in self._prompts
            if prompt in self._answers[step]
        ]

    def document(self) -> dict[str, Any]:
        """For the view, within 8 kB: prompts, steps, and answers[step][prompt]; {} = none.

        Steps are left out first, then answers are cut.
        """
        if self._document is None:
            self._document = self._bounded() if self._answers else {}
        return self._document

    def _bounded(self) -> dict[str, Any]:
        steps, longest = sorted(self._answers), _VIEW_CHARACTERS
        while True:
            document = {
                "prompts": [_cut(prompt, longest) for prompt in self._prompts],
                "steps": steps,
                "answers": [
                    [_cut(self._answers[step].get(prompt), longest) for prompt in self._prompts]
                    for step in steps
                ],
                "steps_left_out": len(self._answers) - len(steps),
            }
            if len(json.dumps(document)) <= _VIEW_BYTES or longest < _SHORTEST:
                return document
            if len(steps) > 2:
                steps = _half(steps)
            else:
                longest //= 2


def _cut(text: str | None, longest: int) -> str | None:
    return text if text is None or len(text) <= longest else text[: longest - 1] + "…"


def _half(steps: list[int]) -> list[int]:
    """Every second one, the first and the last always.

    >>> _half([0, 1, 2, 3, 4, 5]), _half([0, 1, 2])
    ([0, 2, 4, 5], [0, 2])
    """
    return [*steps[:-1:2], steps[-1]]


def read_samples(paths: RunPaths, ranks: Iterable[int]) -> list[dict[str, Any]]:
    """Every sample that a run's ranks logged: step, prompt, answer."""
    samples = TextSamples()
    for rank in ranks:
        reader, step = LineReader(paths.rank_said(rank)), 0
        while True:
            for line in reader.read():
                own = line.get("step")
                step = own if type(own) is int else step
                samples.add(rank, line, step)
            if reader.at_end:
                break
    return samples.rows()

"""The first NaN of a rank: what a gradient scaler skips is none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the train extra is not installed")

import torch

from workbench.launching.capture import norms
from workbench.launching.capture.nonfinite import FirstNonFinite
from workbench.launching.capture.recorder import Recorder

INFINITE, NAN = float("inf"), float("nan")


def test_a_fused_optimizer_is_called_on_overflow_and_tells_it() -> None:
    """What the hook relies on: torch leaves ``found_inf`` on it for the call."""
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight], fused=True)
    told: list[float] = []
    optimizer.register_step_post_hook(lambda one, *_: told.append(float(one.found_inf)))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale((weight * INFINITE).sum()).backward()
    scaler.step(optimizer)
    assert told == [1.0]
    assert weight.tolist() == [1.0] * 4  # skipped


@pytest.mark.parametrize(("scaled", "step"), [(True, 4), (False, 3)])
def test_an_overflow_that_is_skipped_is_no_nan(tmp_path: Path, *, scaled: bool, step: int) -> None:
    file = tmp_path / "first.json"
    nobody = SimpleNamespace(steps=4, models=[], accelerator=None, lead=lambda: None)
    first = FirstNonFinite(str(file), nobody)
    first.scaled = scaled
    first.line({"step": 3, "loss": 2.0, "grad_norm": INFINITE})
    first.line({"step": 4, "loss": NAN, "grad_norm": INFINITE})
    assert json.loads(file.read_text())["step"] == step


def test_a_given_norm_is_taken_with_every_keyword() -> None:
    seen: list[object] = []
    noted: list[float] = []
    utils = SimpleNamespace(
        clip_grad_norm_=lambda *_, **__: 1.0,
        clip_grad=SimpleNamespace(),
        clip_grads_with_norm_=lambda p, m, n, foreach=None: seen.append(foreach),
    )
    recorder: Any = SimpleNamespace(grad_norm=noted.append)
    norms.patch(recorder, SimpleNamespace(nn=SimpleNamespace(utils=utils)))
    utils.clip_grads_with_norm_([], 1.0, total_norm=2.0, foreach=False)
    utils.clip_grads_with_norm_([], 1.0, 3.0, None)
    assert (seen, noted) == ([False, None], [2.0, 3.0])


def test_an_optimizer_after_the_step_does_not_begin_the_next(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    recorder, one, other = Recorder(str(tmp_path), 0), type("A", (), {})(), type("B", (), {})()
    for _ in range(3):
        recorder.backward()
        for each in (one, other):
            recorder.optimizing()
            recorder.step(None, each)
    assert recorder.flush(5)
    lines = map(json.loads, (tmp_path / "metrics" / "rank-0.jsonl").read_text().splitlines())
    assert all(line["optimizer_at"] >= line["backward_at"] for line in lines)

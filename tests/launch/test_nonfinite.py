"""The first NaN of a rank: what a gradient scaler skips is none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the train extra is not installed")

import torch

from workbench.launching.capture.nonfinite import FirstNonFinite

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

"""Of the files in a checkpoint's folder, the one whose step the folder has is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from workbench.trained_model.worker.tensors import open_tensors


def saved(path: Path, value: float, step: int) -> None:
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, value)
    state: dict[str, Any] = {"model": model.state_dict(), "step": step}
    torch.save(state, path)


def test_the_last_file_is_read_and_not_the_best(tmp_path: Path) -> None:
    saved(tmp_path / "best.pt", 1.0, 10)
    saved(tmp_path / "last.pt", 2.0, 30)
    torch.save({"state": {}, "param_groups": []}, tmp_path / "opt.pt")
    torch.save({"step": 99}, tmp_path / "progress.pt")
    weights = open_tensors(tmp_path).read(["weight"])["weight"]
    assert weights.tolist() == [[2.0, 2.0]]

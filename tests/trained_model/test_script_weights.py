"""What a script saved its own way is exported as it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from workbench.trained_model.worker.exporting import export
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


def test_tied_weights_and_views_of_one_buffer_are_written(tmp_path: Path) -> None:
    buffer = torch.arange(12.0)
    state = {"wte": buffer[:8], "head": buffer[:8], "tail": buffer[4:], "norm": torch.ones(2)}
    torch.save({"model": state, "step": 3}, tmp_path / "ckpt.pt")
    (tmp_path / "out").mkdir()
    export(
        {
            "partial": str(tmp_path / "out"),
            "checkpoint": str(tmp_path / "ckpt.pt"),
            "dtype": None,
            "family": "tensors",
            "adapter": False,
            "adapter_only": False,
            "shard_bytes": 1 << 30,
        },
        lambda _: None,
    )
    written = load_file(tmp_path / "out/model.safetensors")
    assert set(written) == set(state)
    assert all(torch.equal(written[name], weight) for name, weight in state.items())

"""An adapter is one file, as what loads it reads no shards; also where shards are small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from workbench.trained_model.card import _LOAD
from workbench.trained_model.source import TENSORS
from workbench.trained_model.worker.exporting import export

NAMES = ("base.q.lora_A.weight", "base.q.lora_B.weight")


def test_small_shards_leave_an_adapter_whole(tmp_path: Path) -> None:
    source, partial = tmp_path / "checkpoint", tmp_path / "partial"
    source.mkdir()
    partial.mkdir()
    weights = {name: torch.full((4, 4), float(number)) for number, name in enumerate(NAMES)}
    save_file(weights, source / "adapter_model.safetensors")
    (source / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    told: list[dict[str, Any]] = []
    request = {
        "partial": str(partial),
        "checkpoint": str(source),
        "config": str(source),
        "dtype": "",
        "family": "huggingface",
        "adapter": True,
        "adapter_only": True,
        "shard_bytes": 1,
        "base": None,
        "tokenizers": [],
    }
    export(request, told.append)
    assert [file.name for file in partial.glob("*.safetensors*")] == ["adapter_model.safetensors"]
    written = load_file(partial / "adapter_model.safetensors")
    assert all(torch.equal(written[name], weight) for name, weight in weights.items())
    assert told[-1]["facts"]["tensors"] == len(NAMES)


def test_the_card_loads_weights_of_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        shard = tmp_path / f"model-0000{number}-of-00002.safetensors"
        save_file({f"w{number}": torch.ones(1)}, shard)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(_LOAD[TENSORS], names)
    assert set(names["weights"]) == {"w1", "w2"}

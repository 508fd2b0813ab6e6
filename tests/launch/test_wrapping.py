"""The blocks that FSDP gathers one by one are found in a script's own model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from workbench.describe import Strategy
from workbench.launching.capture import wrapping
from workbench.launching.prepare.accelerate_config import config_text

FSDP = Strategy.parse("fsdp", 2)


class Expert(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


class Layer(nn.Module):
    def __init__(self, shared: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.shared = nn.LayerNorm(4), shared
        self.experts = nn.ModuleList(Expert() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts[0](self.norm(x))


class Decoder(Layer):
    pass


class Model(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        for number, part in enumerate(parts):
            self.add_module(f"part{number}", part)
        self.head = nn.Linear(4, 4)


class NamedByLibrary(nn.Module):
    _no_split_modules = ("Expert", "AbsentHere")

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))


def layers(kind: type[nn.Module] = Layer, **more: Any) -> nn.ModuleList:
    return nn.ModuleList(kind(**more) for _ in range(3))


@pytest.mark.parametrize(
    ("model", "classes"),
    [
        (Model(layers()), ["Layer"]),  # the outer one of blocks in blocks
        (Model(nn.Sequential(Layer(), Layer())), ["Layer"]),
        (Model(layers(), layers(Decoder)), ["Layer", "Decoder"]),
        (Model(nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 1), 2)), ["TransformerDecoderLayer"]),
        (Model(Decoder(), Decoder(), nn.Identity()), ["Decoder"]),
        (Model(Expert(), Expert()), ["Expert"]),
        (Model(NamedByLibrary()), ["Expert"]),
        (Model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))), []),
        (Model(layers(shared=nn.Linear(4, 4))), []),  # a weight of several blocks
    ],
)  # fmt: skip
def test_the_repeated_block_is_found(model: nn.Module, classes: list[str]) -> None:
    assert wrapping.block_classes(model) == classes


def plugin(names: list[str] | None) -> Any:
    def transformer_auto_wrap_policy() -> None: ...

    class FullyShardedDataParallelPlugin:
        auto_wrap_policy = staticmethod(transformer_auto_wrap_policy)
        transformer_cls_names_to_wrap = names

        def set_auto_wrap_policy(self, _model: nn.Module) -> None: ...

    wrapping.patch(SimpleNamespace(FullyShardedDataParallelPlugin=FullyShardedDataParallelPlugin))
    return FullyShardedDataParallelPlugin()


def test_accelerate_gets_them_unless_a_class_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    chosen, given, library = plugin(None), plugin(["Expert"]), plugin(None)
    chosen.set_auto_wrap_policy(Model(layers()))
    given.set_auto_wrap_policy(Model(layers()))
    library.set_auto_wrap_policy(NamedByLibrary())
    assert chosen.transformer_cls_names_to_wrap == ["Layer"]
    assert given.transformer_cls_names_to_wrap == ["Expert"]
    assert library.transformer_cls_names_to_wrap is None
    assert capsys.readouterr().err.count("--wrap") == 1


def test_the_config_file_says_what_is_missing_without_the_hook(tmp_path: Path) -> None:
    assert "--wrap CLASS" in config_text(FSDP, None, folder=tmp_path)
    assert "--wrap CLASS" not in config_text(FSDP, "Layer", folder=tmp_path)
    assert "--wrap CLASS" not in config_text(FSDP, None, folder=tmp_path, splits=frozenset())
    assert "--wrap CLASS" not in config_text(Strategy.parse("ddp", 2), None, folder=tmp_path)

"""The simulation's packed weights and states hold the bytes that bitsandbytes itself makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SHAPES = [(256, 512), (300, 70), (1024, 1024), (64, 8)]


def storages(tensors: Iterable[Any]) -> int:
    """Bytes of the storages behind `tensors`, each once."""
    return sum({each.untyped_storage().data_ptr(): each.nbytes for each in tensors}.values())


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_weights(shape: tuple[int, int], double: bool) -> None:  # noqa: FBT001
    import torch

    functional = pytest.importorskip("bitsandbytes.functional")
    from workbench.estimate.simulation.quantized import Linear4Bit

    packed, state = functional.quantize_4bit(
        torch.randn(shape), compress_statistics=double, quant_type="nf4"
    )
    real = [packed, state.absmax, state.code]
    if double:
        real += [state.state2.absmax, state.state2.code, state.offset]
    linear = torch.nn.Linear(shape[1], shape[0], bias=False, device="meta")
    Linear4Bit.pack(linear, double=double, keeps_input=False)
    ours = [*linear.parameters(), *linear.buffers()]
    assert sum(each.nbytes for each in ours) == storages(real)


@pytest.mark.parametrize("name", ["adamw-8bit", "lion-8bit"])
def test_states_of_eight_bits(name: str) -> None:
    import torch

    optim = pytest.importorskip("bitsandbytes.optim")
    from workbench.estimate.simulation.optimizers import build_optimizer

    def trained() -> list[Any]:
        parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
        for each in parameters:
            each.grad = torch.randn_like(each)
        return parameters

    def held(optimizer: Any) -> int:
        optimizer.step()
        values = [value for state in optimizer.state.values() for value in state.values()]
        return storages(value for value in values if isinstance(value, torch.Tensor))

    real = {"adamw-8bit": optim.AdamW8bit, "lion-8bit": optim.Lion8bit}[name](trained())
    ours = build_optimizer(name, [("", each, each) for each in trained()])
    assert held(ours) + storages(ours.maps) == held(real)

"""What a recipe builds is what was predicted of it: bytes of the weights, for every precision."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import lora
import pipeline
import pytest
import tensor_parallel
import torch
import torch.distributed as dist
from gpt_model import GPT
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import workbench as wb
from workbench import recipes
from workbench.launching.prepare.described import workload_of
from workbench.launching.prepare.prediction import memory_of

# peft 0.21 asks transformers 5.23 under a name that is about to go.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
PRECISIONS = ("fp32", "bf16", "fp16")
PARAMETERS = "parameters"  # the estimate's part


def held(*modules: nn.Module) -> int:
    """Bytes of a rank's part of the weights."""
    found = 0
    for weight in (weight for module in modules for weight in module.parameters()):
        part = weight.to_local() if isinstance(weight, DTensor) else weight
        found += part.numel() * part.element_size()
    return found


def predicted(recipe: str, arguments: list[str], strategy: str, ranks: int) -> float:
    shape = recipes.shape(arguments, recipe=recipe)
    chosen = wb.Strategy.parse(strategy, ranks)
    memory = memory_of(recipe, workload_of(recipe, shape), chosen, "cpu", is_named=False)
    return memory.parts[PARAMETERS]


def options_of(recipe: str, arguments: list[str]) -> argparse.Namespace:
    return argparse.Namespace(**recipes.shape(arguments, recipe=recipe))


LORA = [
    *(["--lora-rank", "4"], ["--lora-rank", "0"], ["--lora-rank", "16", "--lora-targets", "q,v"]),
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("more", LORA, ids=" ".join)
def test_lora(more: list[str], precision: str) -> None:
    arguments = ["--size", "2", "--precision", precision, *more]
    model = lora.make_model(lora.parse_options(arguments))
    assert held(model) == pytest.approx(predicted("lora", arguments, "single", 1), rel=1e-6)
    trained = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    assert trained == {torch.float32}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_qlora(precision: str) -> None:
    pytest.importorskip("bitsandbytes", reason="pip install 'training-workbench[lowbit]'")
    arguments = ["--size", "4", "--precision", precision, "--qlora"]
    model = lora.make_model(lora.parse_options(arguments))
    scales = 0  # the absolute maxima of the quantized blocks are no parameters
    for weight in model.parameters():
        state = getattr(weight, "quant_state", None)
        scales += 0 if state is None else state.absmax.numel() * state.absmax.element_size()
    expected = predicted("lora", arguments, "single", 1)
    assert held(model) + scales == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_gpt(precision: str) -> None:
    arguments = ["--size", "2", "--precision", precision]
    shape = options_of("gpt", arguments)
    model = GPT(shape.layers, shape.hidden, shape.heads)
    assert held(model) == predicted("gpt", arguments, "single", 1)
    assert held(model) == predicted("context_parallel", ["--size", "2", "--cp", "2"], "cp", 2)


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_experts(ep: int) -> None:
    arguments = ["--size", "2", "--experts", "4", "--ep", str(ep)]
    shape = options_of("expert_parallel", arguments)
    experts = shape.layers * 4 * 8 * shape.hidden**2
    own = shape.parameters - experts + experts // ep
    strategy = f"dp4-ep{ep}" if ep > 1 else "ddp"
    assert predicted("expert_parallel", arguments, strategy, 4) == 4 * own


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("recipe", ["pipeline", "deepspeed_pipeline"])
def test_pipelines(recipe: str, ranks: int) -> None:
    arguments = ["--size", "2", "--layers", "4", "--pp", str(ranks)]
    shape = options_of(recipe, arguments)
    stages = [
        held(*(GPT(shape.layers, shape.hidden, shape.heads, blocks) for blocks in of_rank))
        for of_rank in pipeline.blocks_of(shape.layers, ranks, 1, "1f1b")
    ]
    assert predicted(recipe, arguments, "pp", ranks) in stages
    assert predicted(recipe, arguments, "pp", ranks) == max(stages)


@pytest.fixture
def two_ranks() -> Iterator[Callable[[], None]]:
    """This process as rank 0 of two, the other of which no one has started."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield dist.barrier
    dist.destroy_process_group()


def test_tensor_parallel(two_ranks: Callable[[], None]) -> None:
    del two_ranks
    arguments = ["--size", "2", "--tp", "2"]
    shape = options_of("tensor_parallel", arguments)
    model = GPT(shape.layers, shape.hidden, shape.heads)
    tensor_parallel.split(model, init_device_mesh("cpu", (2,)), sequence_parallel=False)
    assert held(model) == predicted("tensor_parallel", arguments, "tp", 2)

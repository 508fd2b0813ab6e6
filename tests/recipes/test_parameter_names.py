"""Names of weights come from the tree of modules, whatever wraps it or its parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import parameter_names
import pytest
import torch
import torch.distributed as dist
from gpt_model import GPT
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp._common_utils import FSDP_WRAPPED_MODULE
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

# torch 2.13's own DataParallel and AveragedModel copy what cannot be copied under some wrappers, and
# whichever test compiles first imports parts of torch that call others of its parts deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")
Wrap = Callable[[nn.Module], nn.Module]
INNER: list[Wrap] = [checkpoint_wrapper, offload_wrapper, torch.compile, fully_shard]  # of a block
OUTER: list[Wrap] = [
    *(torch.compile, nn.DataParallel, AveragedModel, checkpoint_wrapper),
    lambda model: DistributedDataParallel(model, init_sync=False),
]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A process group of this process: DDP and FSDP ask for one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(seed: int) -> tuple[GPT, nn.Module]:
    """A model, and itself with random wrappers around random parts, in random order."""
    dice, model = random.Random(seed), GPT(3, 16, 2)
    for name, block in list(model.blocks.named_children()):
        part = block
        for wrap in dice.sample(INNER, dice.randint(0, 2)):
            part = wrap(part)
        model.blocks[name] = part
    whole: nn.Module = model
    for wrap in dice.sample(OUTER, dice.randint(0, 3)):
        whole = wrap(whole)
    return model, whole


@pytest.mark.parametrize("seed", range(40))
def test_names_are_those_of_the_bare_model_in_any_nesting(seed: int) -> None:
    try:
        _, whole = wrapped(seed)
    except (RuntimeError, AssertionError, TypeError):
        pytest.skip("torch refuses this nesting")
    expected = dict(GPT(3, 16, 2).named_parameters())
    found = parameter_names.named_parameters(whole)
    assert list(found) == list(expected)
    assert [tuple(one.shape) for one in found.values()] == [
        tuple(one.shape) for one in expected.values()
    ]
    assert {id(one) for one in found.values()} == {id(one) for one in whole.parameters()}


def test_names_are_torchs_own_under_fsdp_with_recompute() -> None:
    model = GPT(2, 16, 2)
    for name, block in list(model.blocks.named_children()):
        model.blocks[name] = checkpoint_wrapper(block)
        fully_shard(model.blocks[name])
    fully_shard(model)
    assert any("_checkpoint_wrapped_module" in name for name, _ in model.named_parameters())
    assert set(parameter_names.named_parameters(model)) == set(get_model_state_dict(model))


def test_fsdp1_is_known_though_it_wants_an_accelerator() -> None:
    model = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(model)
    inner = nn.Sequential(checkpoint_wrapper(nn.Linear(4, 4)), nn.Linear(4, 2))
    nn.Module.__setattr__(model, FSDP_WRAPPED_MODULE, inner)
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert list(parameter_names.named_parameters(model)) == names


# peft 0.21 asks transformers 5.23 under a name that is about to go.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_adapters_belong_to_the_model_and_wrappers_in_it_do_not() -> None:
    def adapted(inner: Wrap) -> nn.Module:
        model = GPT(1, 16, 2)
        model.blocks["0"] = inner(model.blocks["0"])
        return get_peft_model(model, LoraConfig(r=2, target_modules=["up", "down"]))

    bare = adapted(lambda block: block)
    whole = DistributedDataParallel(torch.compile(adapted(checkpoint_wrapper)))
    trained = parameter_names.trained_parameters(whole)
    assert {name: one.shape for name, one in trained.items()} == (
        parameter_names.trained_shapes(bare)
    )
    assert all("lora_" in name for name in trained)


def test_a_shared_weight_has_its_first_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), checkpoint_wrapper(nn.Linear(4, 4)))
    model[1]._checkpoint_wrapped_module.weight = model[0].weight
    names = parameter_names.named_parameters(model)
    assert list(names) == ["0.weight", "0.bias", "1.bias"]


def test_a_module_called_module_is_not_a_wrapper() -> None:
    model = nn.ModuleDict({"module": nn.Linear(2, 2), "_orig_mod": nn.Linear(2, 2)})
    assert list(parameter_names.named_parameters(model)) == list(dict(model.named_parameters()))

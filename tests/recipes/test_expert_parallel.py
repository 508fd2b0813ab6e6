"""expert_parallel.py: each token meets its experts; then ranks that share them, against one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import expert_parallel
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.launch.ranks import output, torchrun

SCRIPT = Path(expert_parallel.__file__)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "ep"))
    dist.destroy_process_group()


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (4, 1), (4, 2), (5, 5)])
def test_each_token_gets_the_weighted_sum_of_its_experts(
    mesh: DeviceMesh, experts: int, top_k: int
) -> None:
    torch.manual_seed(0)
    block = expert_parallel.ExpertBlock(16, 2, experts=experts, top_k=top_k, mesh=mesh)
    x = torch.randn(2, 7, 16, requires_grad=True)
    found = block.think(x)
    likely = block.router(x).softmax(-1)
    weights, chosen = likely.topk(top_k)
    every = torch.stack([block.experts[str(e)](x) for e in range(experts)], -2)
    picked = every.gather(-2, chosen[..., None].expand(*chosen.shape, 16))
    wanted = (picked * (weights / weights.sum(-1, keepdim=True))[..., None]).sum(-2)
    torch.testing.assert_close(found, wanted)
    grad = torch.randn_like(x)
    of = [x, block.router.weight]
    for one, other in zip(
        torch.autograd.grad(found, of, grad, retain_graph=True, allow_unused=True),
        torch.autograd.grad(wanted, of, grad, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_even_visits_have_the_least_imbalance(mesh: DeviceMesh) -> None:
    block = expert_parallel.ExpertBlock(16, 2, experts=4, top_k=1, mesh=mesh)
    even = torch.eye(4).repeat(5, 1)
    block._note_balance(even, torch.tensor([5, 5, 5, 5]))
    assert block.imbalance == pytest.approx(1)
    one = torch.eye(4)[[0]].repeat(20, 1)
    block._note_balance(one, torch.tensor([20, 0, 0, 0]))
    assert block.imbalance == pytest.approx(4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--experts 4 --ep 3", "4 experts cannot be spread over --ep 3 ranks"),
        ("--experts 2 --top-k 3", "--top-k 3: there are 2 experts"),
        ("--experts 0", "--experts 0: give a number above 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        expert_parallel.parse_options(arguments.split())


def test_the_script_stays_readable_in_one_sitting() -> None:
    assert len(SCRIPT.read_text().splitlines()) <= 300


@pytest.mark.full
@pytest.mark.slow
def test_experts_that_no_token_visits_do_no_harm(tmp_path: Path) -> None:
    few = (
        "--experts",
        "8",
        "--top-k",
        "1",
        "--micro-batch",
        "1",
        "--seq-len",
        "3",
        "--steps",
        "10",
    )
    printed = torchrun(4, SCRIPT, *few, folder=tmp_path)
    assert float(re.findall(r"loss (\S+)", printed)[-1]) < 6


@pytest.mark.full
@pytest.mark.slow
def test_the_recipe_alone_gives_one_curve_on_one_and_on_several_ranks(tmp_path: Path) -> None:
    def losses(micro_batch: int, start: Callable[..., str], *more: str) -> list[float]:
        shape = ("--seq-len", "64", "--steps", "20", "--warmup", "2", *more)
        printed = start(SCRIPT, *shape, "--micro-batch", str(micro_batch), folder=tmp_path)
        return [float(loss) for loss in re.findall(r"loss (\S+)", printed)]

    uneven = losses(8, output, "--balance", "0")
    assert losses(4, output, "--balance", "0", "--accumulate", "2") == pytest.approx(
        uneven, abs=2e-4
    )
    alone = losses(8, output)
    assert len(alone) == 2
    assert alone[-1] < 4
    assert losses(4, partial(torchrun, 2)) == pytest.approx(alone, abs=2e-4)  # as printed
    assert losses(2, partial(torchrun, 4), "--ep", "2") == pytest.approx(alone, abs=2e-4)

"""Gradient hooks on real ranks: what they send, what they add up, what error feedback is for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="the train extra is not installed")

import workbench as wb
from tests.launch.ranks import torchrun
from workbench.compare.studies.bench import Bench
from workbench.compare.studies.compression import Compared, compression
from workbench.launching.prepare.options import LaunchOptions
from workbench.recipes import __file__ as recipes_file

pytestmark = [pytest.mark.slow, pytest.mark.full]

RECIPES = Path(recipes_file).parent
# A linear model in which 7 of 8 inputs matter ten times less: without feedback, sending one weight
# of each step, the small ones are never learnt from.
PROBE = """
import argparse, json, os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
sys.path.insert(0, {recipes!r})
import gradient_hooks
dist.init_process_group("gloo")
rank = dist.get_rank()
def train(hook, forget=False, steps=150):
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    model = DDP(net)
    options = argparse.Namespace(comm_hook=hook, topk_density=1 / 64, no_error_feedback=forget)
    traffic = gradient_hooks.register(model, options)
    scale = torch.full((64,), 0.3); scale[0] = 3.0
    dice = torch.Generator().manual_seed(rank)
    first = None
    for step in range(steps):
        x = torch.randn(32, 64, generator=dice) * scale
        loss = (model(x).squeeze(1) - x.sum(1) / scale.mean()).pow(2).mean()
        net.zero_grad(); loss.backward()
        if step == 2: first = net.weight.grad.flatten().tolist()
        with torch.no_grad(): net.weight -= 0.02 * net.weight.grad
    return dict(sent=traffic.per_step, steps=traffic.steps, loss=float(loss),
        weight=net.weight.flatten().tolist(), gradient=first)
found = dict(none=train(None), bf16=train("bf16"), topk=train("topk"), forget=train("topk", True))
everybody = [None] * dist.get_world_size()
dist.all_gather_object(everybody, found)
if rank == 0: json.dump(everybody, open(sys.argv[1], "w"))
dist.barrier(); dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict]]:
    folder = tmp_path_factory.mktemp("hooks")
    script, out = folder / "probe.py", folder / "out.json"
    script.write_text(PROBE.replace("{recipes!r}", repr(str(RECIPES))))
    torchrun(3, script, out)
    return json.loads(out.read_text())


def test_every_rank_ends_with_the_same_weights(ranks) -> None:
    for name in ("none", "bf16", "topk", "forget"):
        assert all(one[name]["weight"] == ranks[0][name]["weight"] for one in ranks)


def test_bytes_are_those_of_the_ring(ranks) -> None:
    found = ranks[0]
    assert found["none"]["steps"] == 150
    assert found["none"]["sent"] == round(2 * 2 / 3 * 64 * 4)  # 2 (n-1)/n of 64 numbers
    assert found["bf16"]["sent"] == round(2 * 2 / 3 * 64 * 2)
    assert found["topk"]["sent"] == 2 * (4 + 4)  # one number and its place to two others


def test_a_step_adds_up_only_the_largest_of_each_rank(ranks) -> None:
    third = ranks[0]["forget"]["gradient"]  # the first two are sent whole
    assert 1 <= sum(value != 0 for value in third) <= 3
    assert all(value != 0 for value in ranks[0]["none"]["gradient"])


def test_error_feedback_learns_what_would_never_be_sent(ranks) -> None:
    losses = {name: ranks[0][name]["loss"] for name in ("none", "topk", "forget")}
    assert losses["topk"] < 0.5 * losses["forget"], losses
    small = [sum(abs(one) for one in ranks[0][name]["weight"][1:]) for name in ("topk", "forget")]
    assert small[0] > 2 * small[1]


def test_the_study_sets_loss_beside_bytes_and_time(store: Path) -> None:
    small = ("--layers", "2", "--hidden", "64", "--seq-len", "32", "--micro-batch", "2")
    launch = LaunchOptions(store=store, cpu=True)
    variants = ("none", "topk", "powersgd", "precision-fp8")
    found = compression(Bench.of("gpt", small, launch), Compared(steps=12, variants=variants))
    plain, topk, low_rank, fp8 = found.document()["trials"]
    weights = 12 * 2 * 64 * 64 + 2 * 256 * 64
    assert plain["sent_bytes"] == 4 * weights  # 2 ranks: 2 (n-1)/n = 1
    assert topk["sent_bytes"] == pytest.approx(8 * weights / 100, rel=0.001)
    assert topk["sent_share"] == pytest.approx(0.02, rel=0.01)
    assert 0 < low_rank["sent_share"] < 0.1
    assert plain["loss_added"] == 0
    assert all(one["step_seconds"] > 0 and one["loss"] < 6 for one in (plain, topk, low_rank))
    if importlib.util.find_spec("torchao"):
        assert fp8["loss_added"] == pytest.approx(0, abs=0.02)
        assert fp8["sent_bytes"] == plain["sent_bytes"]  # fp32 gradients: fp8 is for the matmuls
    else:
        assert (fp8["outcome"], fp8["run"]) == ("refused", None)
        assert "pip install torchao" in fp8["problem"]
    kept = compression(
        Bench.of("gpt", small, launch, resume="last"),
        Compared(steps=12, variants=("none", "topk")),
    )
    assert [one.run for one in kept.results] == [plain["run"], topk["run"]]


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("vision", {}, "does not have an option for its gradient exchange.*gpt"),
        ("gpt", {"processes": 1}, "does not exchange gradients"),
        ("gpt", {"variants": ("zip",)}, "Variants: none, fp16"),
    ],
)
def test_what_cannot_be_compared_is_refused(store: Path, target, options, said) -> None:
    bench = Bench.of(target, (), LaunchOptions(store=store, cpu=True))
    with pytest.raises(wb.UsageError, match=said):
        compression(bench, Compared(**options))

"""model_parallel.py: every split, alone and joined, trains to the single process's curve."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import full_tests
from tests.launch.ranks import output, torchrun
from workbench.errors import UsageError
from workbench.recipes import shape

STEPS = 20
SHAPE = (
    *("--layers", "2", "--hidden", "64", "--heads", "4", "--seq-len", "64", "--warmup", "2"),
    *("--steps", str(STEPS)),
)
PARAMETERS = 131_072
# On four ranks, one after the other; each with 8 sequences per optimizer step.
LAYOUTS = {
    "tp4": "--micro-batch 8 --tp 4",
    "fsdp2-tp2": "--micro-batch 2 --accumulate 2 --tp 2 --dp-shard 2 --sequence-parallel"
    " --checkpoint-every 10 --checkpoint-dir {folder}",
    "dp2-tp2 resumed": "--micro-batch 4 --tp 2 --resume {folder}/step-00000010",
    "pp2-tp2 resumed": "--micro-batch 2 --accumulate 4 --pp 2 --tp 2 --schedule gpipe"
    " --resume {folder}/step-00000010",
    "cp4": "--micro-batch 8 --cp 4 --recompute full",
    "fsdp2-cp2": "--micro-batch 4 --cp 2 --dp-shard 2 --cp-method ulysses",
    "cp2-tp2": "--micro-batch 4 --accumulate 2 --cp 2 --tp 2 --sequence-parallel",
    "pp2-dp2": "--micro-batch 1 --accumulate 4 --pp 2",
    "pp2-fsdp2": "--micro-batch 1 --accumulate 4 --pp 2 --dp-shard 2 --recompute full",
    "bf16": "--micro-batch 4 --tp 2 --dp-shard 2 --precision bf16",
}
QUICK = ("fsdp2-tp2", "pp2-tp2 resumed", "cp4")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in LAYOUTS]
HELD = {"tp4": 4, "fsdp2-tp2": 4, "dp2-tp2 resumed": 2, "pp2-tp2 resumed": 4, "cp4": 4}
HELD |= {"fsdp2-cp2": 4, "cp2-tp2": 4, "pp2-dp2": 2, "pp2-fsdp2": 4, "bf16": 4}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--tp 3", "not a multiple of --tp 3"),
        ("--tp 2 --sequence-parallel --seq-len 65", "which --sequence-parallel needs"),
        ("--cp 32 --seq-len 32", "not a multiple of 64, the number of parts of --cp 32"),
        ("--cp 8 --cp-method ulysses", "or ring"),
        ("--cp 4 --tp 2 --cp-method ulysses", "splits 2 heads over --cp 4 ranks"),
        ("--pp 4 --accumulate 4", "cannot make 4 stages"),
        ("--pp 2 --schedule interleaved --accumulate 5", "needs a multiple"),
        ("--tp 2 --precision fp16", "use --precision bf16"),
        ("--dp-shard 2", "choose FSDP in Accelerate"),
    ],
)
def test_what_cannot_be_split_is_refused_before_torch_is_loaded(arguments, said):
    with pytest.raises(UsageError, match=said) as refused:
        shape([*SHAPE, *arguments.split()])
    assert "\n" not in str(refused.value)


def test_what_can_be_split_is_not_refused():
    for arguments in LAYOUTS.values():
        assert shape([*SHAPE, *arguments.split()])["parameters"] == PARAMETERS


# --- Real processes ------------------------------------------------------------------------------


def trained(folder: Path, processes: int, layouts: dict[str, str]) -> dict[str, Any]:
    """What layouts.py writes about training under each of the layouts."""
    told, result = folder / "layouts.json", folder / "result.json"
    filled = {name: arguments.format(folder=folder).split() for name, arguments in layouts.items()}
    told.write_text(json.dumps({name: [*SHAPE, *more] for name, more in filled.items()}))
    program = (Path(__file__).with_name("layouts.py"), result, told)
    start = partial(torchrun, processes) if processes > 1 else output
    printed = start(*program, folder=folder)
    found = json.loads(result.read_text())
    assert set(found) == set(layouts), printed
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("alone"), 1, {"single": "--micro-batch 8"})["single"]


@pytest.fixture(scope="module")
def split(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Any]:
    """Of the layouts that this session tests."""
    chosen = LAYOUTS if full_tests(request) else {name: LAYOUTS[name] for name in QUICK}
    return trained(tmp_path_factory.mktemp("split"), 4, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_curve_and_norms_are_the_single_process_ones(alone, split, name):
    """fp32: only the order of sums differs. A resumed run continues another layout's checkpoint."""
    found, tolerance = split[name], 5e-3 if name == "bf16" else 2e-5
    first = 10 if name.endswith("resumed") else 0
    assert found["losses"] == pytest.approx(alone["losses"][first:], rel=tolerance)
    assert found["norms"] == pytest.approx(alone["norms"][first:], rel=20 * tolerance)
    assert alone["losses"][-1] < 0.6 * alone["losses"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_rank_holds_its_part_of_the_weights(split, name):
    """Tensor ranks and stages share the weights out; fsdp does, over dp_shard x cp."""
    assert split[name]["held"] == [PARAMETERS // HELD[name]] * 4


@pytest.mark.slow
def test_every_rank_tells_one_loss_per_micro_batch(split):
    counts = {name: found["counts"] for name, found in split.items()}
    assert counts.get("tp4", [1]) == [1]  # part of `make test-all`
    assert counts["fsdp2-tp2"] == [2]
    assert counts["pp2-tp2 resumed"] == [4]


@pytest.mark.slow
def test_validation_loss_is_the_same_where_the_batches_are(alone, split):
    """Evaluation takes eight batches of --micro-batch per data rank: 8 in all for these."""
    for name in split.keys() & {"tp4", "dp2-tp2 resumed", "cp4", "fsdp2-cp2"}:
        assert split[name]["validation"] == pytest.approx(alone["validation"], rel=2e-5)

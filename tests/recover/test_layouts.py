"""A resumed run is the uninterrupted one, bit by bit; in another layout it is the same curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .launching import run

pytestmark = pytest.mark.slow

SHAPE = (
    *("--layers", "2", "--hidden", "32", "--heads", "2", "--seq-len", "16", "--warmup", "2"),
    *("--steps", "8", "--accumulate", "2", "--eval-every", "0", "--micro-batch"),
)
SAVING = "--checkpoint-every 4 --checkpoint-dir {folder}"
# Per start of ranks: strategy, ranks, and the trainings in those processes, one after the other.
# "a" saves after its fourth step in the middle of its way; "a again" and "b from a" continue there.
STARTS: list[tuple[str, int, dict[str, str]]] = [
    (
        "ddp2",
        2,
        {
            "ddp2": f"2 {SAVING}/ddp2",
            "ddp2 again": "2 --resume {folder}/ddp2/step-00000004",
            "async": f"2 {SAVING}/async --checkpoint-async",
            "async again": "2 --resume {folder}/async/step-00000004",
            "tp2": f"4 --tp 2 {SAVING}/tp2",
            "tp2 again": "4 --tp 2 --resume {folder}/tp2/step-00000004",
            "pp2": f"4 --pp 2 {SAVING}/pp2",
            "pp2 again": "4 --pp 2 --resume {folder}/pp2/step-00000004",
            "ddp2 from pp2": "2 --resume {folder}/pp2/step-00000004",
            "tp2 from ddp2": "4 --tp 2 --resume {folder}/ddp2/step-00000004",
        },
    ),
    (
        "fsdp2",
        2,
        {
            "fsdp2": f"2 {SAVING}/fsdp2",
            "fsdp2 again": "2 --resume {folder}/fsdp2/step-00000004",
            "fsdp2 from tp2": "2 --resume {folder}/tp2/step-00000004",
        },
    ),
    (
        "ddp4",
        4,
        {
            "ddp4 from fsdp2": "1 --resume {folder}/fsdp2/step-00000004",
            "fsdp2-tp2": f"2 --tp 2 --dp-shard 2 {SAVING}/mixed",
            "fsdp2-tp2 again": "2 --tp 2 --dp-shard 2 --resume {folder}/mixed/step-00000004",
        },
    ),
    (
        "single",
        1,
        {
            "single": f"4 {SAVING}/single",
            "single again": "4 --resume {folder}/single/step-00000004",
            "single from ddp2": "4 --resume {folder}/ddp2/step-00000004",
            "single from fsdp2": "4 --resume {folder}/fsdp2/step-00000004",
            "single from fsdp2-tp2": "4 --resume {folder}/mixed/step-00000004",
        },
    ),
]
NAMES = [name for _, _, jobs in STARTS for name in jobs]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, found = tmp_path_factory.mktemp("layouts"), dict[str, Any]()
    for strategy, ranks, jobs in STARTS:
        told, result = folder / "jobs.json", folder / f"{strategy}.json"
        filled = {
            name: [*SHAPE, *text.format(folder=folder).split()] for name, text in jobs.items()
        }
        told.write_text(json.dumps(filled))
        script = Path(__file__).with_name("layout_ranks.py")
        done = run(script, [str(result), str(told)], strategy, ranks, folder / strategy)
        assert result.exists(), done.stdout + done.stderr
        found |= json.loads(result.read_text())
        assert set(jobs) <= set(found), done.stdout + done.stderr
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("again")])
def test_a_resumed_run_ends_with_the_same_bits(found, name):
    """Weights, and on the way every loss to the last digit: data, schedule, accumulation fit."""
    straight = found[name.removesuffix(" again")]
    assert found[name]["losses"] == straight["losses"][4:]
    assert found[name]["fingerprint"] == straight["fingerprint"]
    assert straight["losses"][-1] < straight["losses"][0]


@pytest.mark.parametrize("name", [name for name in NAMES if "from" in name])
def test_another_layout_goes_on_with_the_same_curve(found, name):
    assert found[name]["losses"] == pytest.approx(found["single"]["losses"][4:], rel=2e-5)
    assert found[name]["format"] == "portable"


def test_saving_beside_the_training_changes_nothing(found):
    assert found["async"]["fingerprint"] == found["ddp2"]["fingerprint"]

"""transformers' Trainer under the hook: its true loss, its own checkpoints, stop and resume."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.conftest import until
from tests.launch.ranks import Ranks

pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.full]
Begin = Callable[..., Ranks]


def test_trainer_stops_with_its_own_checkpoint_and_resumes(begin: Begin) -> None:
    slow = ("--step-seconds", "0.02", "--save-every", "5")
    ranks = begin("hf_trainer.py", "--steps", "2000", *slow, ranks=2)
    until(lambda: len(ranks.lines()) >= 6, 120, "six steps")
    stop_at = ranks.lines()[-1]["step"] + 40
    (ranks.folder / "control" / "stop-at").write_text(str(stop_at))
    assert ranks.wait() == [0, 0], ranks.log()
    for rank in (0, 1):
        assert ranks.lines(rank)[-1]["step"] == stop_at
    folder = ranks.folder / "out" / f"checkpoint-{stop_at}"
    assert ranks.document("end")["checkpoint"] == str(folder)
    state = json.loads((folder / "trainer_state.json").read_text())
    assert state["global_step"] == stop_at
    lines = (ranks.folder / "checkpoints.jsonl").read_text().splitlines()
    saved = [json.loads(line) for line in lines]
    expected = sorted({*range(5, stop_at + 1, 5), stop_at})
    assert [line["step"] for line in saved] == expected  # each once, by rank 0 alone
    assert saved[-1]["path"] == str(folder)
    assert {line["kind"] for line in saved} == {"trainer"}

    (ranks.folder / "control" / "stop-at").unlink()
    done = begin(
        "hf_trainer.py", "--steps", str(stop_at),
        WORKBENCH_FIRST_STEP=str(stop_at), WORKBENCH_RESUME=str(folder),
    )  # fmt: skip
    assert done.wait() == [0], done.log()  # Trainer itself would make one step more
    assert [line["step"] for line in done.lines()][-1] == stop_at
    assert done.document("end")["nothing_left"] is True

    end = str(stop_at + 3)
    resumed = begin(
        "hf_trainer.py", "--steps", end,
        WORKBENCH_FIRST_STEP=str(stop_at), WORKBENCH_RESUME=str(folder),
    )  # fmt: skip
    assert resumed.wait() == [0], resumed.log()
    steps = [line["step"] for line in resumed.lines()]
    assert steps == [*range(1, stop_at + 1), stop_at + 1, stop_at + 2, stop_at + 3]


@pytest.mark.parametrize("divides", [False, True])
def test_trainers_loss_is_its_own_before_the_filter(begin: Begin, *, divides: bool) -> None:
    """Whoever divides, by tokens or by micro-batches: the mean loss, and NaN where it is NaN."""
    more = ("--divides",) if divides else ("--nan-at", "4")
    ranks = begin("hf_trainer.py", "--steps", "4", *more)
    assert ranks.wait() == [0], ranks.log()
    logged = [float(x) for x in re.search(r"^logged (.*)$", ranks.log(), re.MULTILINE)[1].split()]
    losses = [line["loss"] for line in ranks.lines()]
    assert losses[:3] == pytest.approx(logged[:3], rel=1e-4)
    assert [line["tokens"] for line in ranks.lines()] == [48] * 4
    assert all(line["lr"] > 0 and "grad_norm" in line for line in ranks.lines())
    if divides:
        assert losses[3] == pytest.approx(logged[3], rel=1e-4)
        return
    assert losses[3] != losses[3]  # NaN; Trainer's log says otherwise
    assert logged[3] == logged[3]
    first = ranks.document("first-nan")
    assert (first["step"], first["kind"], first["before_backward"]) == (4, "loss", True)
    assert first["where"] is None  # the weights were good: it came with the loss

"""What the loss tells, on curves with and without trouble."""

from __future__ import annotations

import json
import math
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.diagnose.sample import Replay, kinds, row
from workbench.diagnose.numbers import UnsynchronizedRanks
from workbench.observe.events import MetricStream
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths


def falling(steps: int, noise: float = 0.05, seed: int = 0) -> list[float]:
    """A healthy curve: it falls fast, then slowly, with the noise of batches."""
    chance = random.Random(seed)
    return [5.0 * step**-0.25 * math.exp(chance.gauss(0.0, noise)) for step in range(1, steps + 1)]


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1, 0.25])
@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_curve_says_nothing(tmp_path: Path, noise: float, seed: int) -> None:
    losses = falling(900, noise, seed)
    chance = random.Random(seed)
    rows = [
        row(
            n,
            [loss, loss * math.exp(chance.gauss(0, noise))],
            grad_norm=chance.lognormvariate(0, 1),
        )
        for n, loss in enumerate(losses, 1)
    ]
    assert kinds(Replay(tmp_path).rows(rows)) == []


def test_nan_on_one_rank_names_it_and_its_step(tmp_path: Path) -> None:
    rows = [row(n, [2.0, 2.1]) for n in range(1, 20)]
    rows += [row(20, [2.0, math.nan])] + [row(n, math.nan) for n in range(21, 40)]
    (found,) = Replay(tmp_path).rows(rows)
    assert (found.kind, found.rank, found.step, found.severity) == ("nan-loss", 1, 20, "error")
    assert "2.05" in found.evidence
    assert "other ranks had finite losses" in found.cause
    assert "No checkpoint before step 20 is known. Stop, and start again" in found.next
    assert "fp16" not in found.next


def test_what_to_do_about_a_nan_fits_the_run(tmp_path: Path) -> None:
    replay = Replay(tmp_path, workload={"precision": "fp16"})
    replay.facts["checkpoints"] = [SimpleNamespace(step=10, saved_at=1001.0, by_script=False)]
    rows = [row(n, 2.0 + n % 3) for n in range(1, 20)] + [row(n, math.nan) for n in range(20, 40)]
    (found,) = replay.rows(rows)
    assert found.next.startswith("Stop, go back to the last checkpoint before step 20. ")
    assert found.next.endswith("leave fp16 for bf16.")
    (found,) = replay.diagnoser.end("succeeded", None)
    assert found.next.startswith("Go back to the last checkpoint before step 20. ")


@pytest.mark.parametrize(
    ("seen", "cause", "action"),
    [
        (None, "No update had been applied yet: the first batch", "Look at the first batch"),
        (("loss", True), "all weights are finite", "Look at the first batch"),
        (
            ("parameter", True),
            ("The weights were not finite before the first update: head.weight"),
            "Check",
        ),
        # looked at after the update, as on a GPU: the NaN of the loss may have spoiled it
        (
            ("parameter", False),
            ("No update had been applied yet: the first batch"),
            "Look at the first",
        ),
    ],
)
@pytest.mark.parametrize("resumed_at", [0, 300])
def test_nan_before_any_update_is_not_the_learning_rate(
    tmp_path: Path, seen: tuple[str, bool] | None, cause: str, action: str, resumed_at: int
) -> None:
    replay = Replay(tmp_path)
    for rank in (0, 1):
        start = json.dumps({"attempt_first_step": resumed_at})
        replay.paths.rank_start(rank).write_text(start)
    if seen is not None:
        where = "head.weight" if seen[0] == "parameter" else None
        found = {"kind": seen[0], "where": where, "before_backward": seen[1]}
        (replay.paths.metrics / "rank-0.first-nan.json").write_text(json.dumps(found))
    (told,) = replay.rows([row(n, math.nan) for n in range(resumed_at + 1, resumed_at + 20)])
    assert (told.kind, told.step) == ("nan-loss", resumed_at + 1)
    assert cause in told.cause
    assert told.next.startswith(action)
    assert "learning rate" not in told.next
    if cause.startswith("The weights"):
        assert ("older checkpoint" in told.next) is (resumed_at > 0)
    later = tmp_path / "later"
    later.mkdir()
    replay = Replay(later)
    losses = [2.0] * 5 + [math.nan] * 10
    (told,) = replay.rows([row(n, loss) for n, loss in enumerate(losses, 1)])
    assert "learning rate" in told.next  # after updates it may be


def test_infinity_on_all_ranks_blames_none_and_is_forgiven(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    rows = [row(n, 2.0 + n % 3 / 10) for n in range(1, 30)] + [row(30, math.inf)]
    (found,) = replay.rows(rows)
    assert (found.kind, found.rank, found.step) == ("inf-loss", None, 30)
    replay.rows([row(n, 2.0 + n % 3 / 10) for n in range(31, 600)])
    (found,) = replay.look(replay.now)
    assert found.cleared_at is not None
    assert found.seen_at is not None
    assert found.seen_at < found.cleared_at


def test_a_later_nan_is_told_with_its_own_step_and_rank(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    for rank in (0, 1):
        found = {"step": 30, "kind": "gradient", "where": "grad of head", "before_backward": False}
        (replay.paths.metrics / f"rank-{rank}.first-nan.json").write_text(json.dumps(found))
    good = [row(n, 2.0 + n % 3 / 10) for n in range(1, 600)]
    (told,) = replay.rows([*good[:29], row(30, [math.nan, 2.0])])
    assert "head of rank 0" in told.evidence
    replay.rows(good[30:])
    standing = [one for one in replay.rows([row(600, [2.0, math.nan])]) if not one.cleared_at]
    assert [(one.kind, one.rank, one.step) for one in standing] == [("nan-loss", 1, 600)]
    assert "step 600" in standing[0].evidence
    assert "head" not in standing[0].evidence  # which a rank looks for once


def test_a_finding_that_comes_back_began_at_its_new_step(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    losses = falling(1000)
    for at in (*range(190, 196), *range(900, 906)):
        losses[at] *= 4
    rows = [row(n, x) for n, x in enumerate(losses, 1)]
    (first,) = replay.rows(rows[:196])
    assert first.step is not None
    assert 180 < first.step < 200
    (again,) = replay.rows(rows[196:906])
    assert again.step is not None
    assert again.cleared_at is None
    assert 890 < again.step < 910


def test_steps_that_are_done_again_drop_their_own_losses_alone(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.rows([row(n, 2.0) for n in range(1, 101)] + [row(n, math.nan) for n in range(101, 151)])
    replay.rows([row(81, 2.0)])
    assert list(replay.diagnoser.evidence.loss_steps) == list(range(1, 82))
    assert len(replay.diagnoser.evidence.losses) == 81


def test_gradients_that_are_no_number_under_good_losses(tmp_path: Path) -> None:
    rows = [row(n, 2.0 + n % 5 / 10, grad_norm=1.0) for n in range(1, 30)]
    scaler = [row(30, 2.2, grad_norm=math.inf), row(31, 2.3, grad_norm=1.0)]
    replay = Replay(tmp_path)
    assert kinds(replay.rows(rows + scaler)) == []
    bad = [row(n, 2.0 + n % 5 / 10, grad_norm=math.nan) for n in range(32, 40)]
    (found,) = replay.rows(bad)
    assert (found.kind, found.step) == ("nan-gradient", 32)


def test_a_spike_of_several_steps_and_not_of_one(tmp_path: Path) -> None:
    losses = falling(200)
    losses[150] *= 4
    assert kinds(Replay(tmp_path / "one").rows([row(n, x) for n, x in enumerate(losses, 1)])) == []
    for at in range(190, 196):
        losses[at] *= 4
    found = Replay(tmp_path / "many").rows([row(n, x) for n, x in enumerate(losses, 1)])
    assert kinds(found) == ["loss-spike"]
    assert 185 <= (found[0].step or 0) <= 195


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in ("one", "many"):
        (tmp_path / name).mkdir()


def test_divergence(tmp_path: Path) -> None:
    losses = falling(200) + [1.3 * 1.03**n for n in range(150)]
    found = Replay(tmp_path).rows([row(n, loss) for n, loss in enumerate(losses, 1)])
    assert "divergence" in kinds(found)
    assert found[0].severity == "error"


def test_a_loss_that_may_rise_is_not_told_to_stop_at_once(tmp_path: Path) -> None:
    """The error of values grows with the returns, as in a DQN that learns."""
    losses = [0.95 - 0.002 * n for n in range(100)] + [0.8 + 0.006 * n for n in range(500)]
    found = Replay(tmp_path).rows([row(n, loss) for n, loss in enumerate(losses, 1)])
    (told,) = [one for one in found if one.kind == "divergence"]
    assert told.severity == "warning"
    assert "this loss may rise" in told.cause


def from_zero(kind: str, seed: int) -> list[float]:
    """Losses of a policy that is trained with a penalty for leaving its reference, as in GRPO."""
    chance = random.Random(seed)
    penalty = [1e-5 * max(0, step - 20) ** 1.2 for step in range(600)]
    if kind == "exact":
        return penalty
    if kind == "signed":
        return [chance.gauss(0, 1e-6) + one * math.exp(chance.gauss(0, 0.2)) for one in penalty]
    slow = [1e-9 * step**2 for step in range(600)]  # from the first step on
    return [one * math.exp(chance.gauss(0, 0.3)) for one in slow]


@pytest.mark.parametrize("kind", ["exact", "signed", "slow"])
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_begins_at_zero_has_no_level_to_leave(
    tmp_path: Path, kind: str, seed: int
) -> None:
    replay, seen = Replay(tmp_path), set[str]()
    for number, loss in enumerate(from_zero(kind, seed), 1):
        seen |= {found.kind for found in replay.rows([row(number, loss)])}
    assert not seen - {"plateau"}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_small_loss_may_diverge_and_spike_too(tmp_path: Path, scale: float) -> None:
    curve = [*falling(200), *(1.3 * 1.03**n for n in range(150))]
    found = Replay(tmp_path / "one").rows([row(n, scale * x) for n, x in enumerate(curve, 1)])
    assert "divergence" in kinds(found)
    losses = [scale * (4 * x if n > 190 else x) for n, x in enumerate(falling(196))]
    found = Replay(tmp_path / "many").rows([row(n, x) for n, x in enumerate(losses, 1)])
    assert kinds(found) == ["loss-spike"]


def test_a_constant_loss_blames_the_learning_rate_that_is_zero(tmp_path: Path) -> None:
    (found,) = Replay(tmp_path).rows([row(n, 2.5, lr=0.0) for n in range(1, 80)])
    assert found.kind == "plateau"
    assert "learning rate is 0" in found.cause


@pytest.mark.parametrize("lr", [0.0, 0.1])
def test_a_loss_that_stays_zero_is_not_called_frozen(tmp_path: Path, lr: float) -> None:
    (found,) = Replay(tmp_path).rows([row(n, 0.0, lr=lr) for n in range(1, 80)])
    assert found.kind == "plateau"
    assert found.cause.startswith("A loss of exactly 0")
    assert "loss function" in found.next


def test_a_plateau_is_a_note(tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = [row(n, 3.0 + chance.gauss(0, 0.1)) for n in range(1, 1400)]
    (found,) = Replay(tmp_path).rows(rows)
    assert (found.kind, found.severity) == ("plateau", "note")


def test_ranks_whose_losses_part_for_good(tmp_path: Path) -> None:
    chance = random.Random(2)
    rows = [row(n, [chance.gauss(1.0, 0.05), chance.gauss(2.0, 0.05)]) for n in range(1, 200)]
    (found,) = Replay(tmp_path).rows(rows)
    assert found.kind == "ranks-diverge"


@pytest.mark.parametrize(
    ("dump", "told"),
    [
        ('{"version": "2.10"}', True),  # torch keeps collectives, and there was none
        ('{"entries": null}', False),  # it keeps none
        ('{"entries": [{"record_id": %d}]}', False),
    ],
)
def test_ranks_without_collectives_train_apart_only_where_torch_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dump: str, *, told: bool
) -> None:
    paths = RunPaths(tmp_path)
    paths.make_folders()
    rule = UnsynchronizedRanks()
    monkeypatch.setattr(
        UnsynchronizedRanks, "_in_question", lambda rule, _evidence: rule.before_step < 400
    )
    evidence: Any = SimpleNamespace(paths=paths, processes=2, rows=[], steps=0)
    found = list[Finding]()
    for second in range(60):
        evidence.steps += 5
        evidence.facts = SimpleNamespace(time=time.time() + second, ranks={0: None, 1: None})
        asked = (paths.control / "dump").exists()
        for rank in range(2) if asked else ():
            text = dump % second if "%" in dump else dump
            paths.rank_trace(rank).write_text(text)
            os.utime(paths.rank_trace(rank), (time.time() + second,) * 2)
        (paths.control / "dump").unlink(missing_ok=True)
        found += rule.rule(evidence)
    assert bool(found) == told
    assert not (paths.control / "dump").exists()


def test_a_finding_does_not_flicker(tmp_path: Path) -> None:
    """Spikes that come and go: one finding, raised once, cleared at most once."""
    replay, seen = Replay(tmp_path), set[float | None]()
    losses = falling(1500)
    for start in range(300, 600, 60):
        for at in range(start, start + 5):
            losses[at] *= 4
    for number, loss in enumerate(losses, 1):
        for found in replay.rows([row(number, loss)]):
            seen.add(found.seen_at)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("rates", "strategy", "expected"),
    [
        ([0.1, 0.1], {}, []),
        ([0.1, 0.1000001], {}, []),
        ([0.1, 1.0], {}, ["rates-differ"]),
        ([0.1, 1.0], {"pp": 2}, []),  # each stage has an optimizer of its own
    ],
)
def test_a_learning_rate_of_a_rank_s_own_is_named(
    tmp_path: Path, rates: list[float], strategy: dict[str, int], expected: list[str]
) -> None:
    by_rank = dict(enumerate(rates))
    rows = [row(n, [2.0 - n / 1000, 2.1 - n / 1000], rates=by_rank) for n in range(1, 40)]
    replay = Replay(tmp_path, strategy={"name": "ddp", **strategy})
    found = replay.rows(rows)
    assert kinds(found) == expected
    assert all("rank 0 0.1, rank 1 1" in one.evidence for one in found)


def test_the_learning_rates_are_read_by_rank(tmp_path: Path) -> None:
    stream = MetricStream(RunPaths(tmp_path), 2)
    for rank, rate in enumerate((0.1, 0.2)):
        stream.take(rank, {"step": 1, "time": 1.0, "loss": 1.0, "lr": rate})
    assert [one.rates for one in stream.remaining()] == [{0: 0.1, 1: 0.2}]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_gradient_norm_that_is_no_number_on_one_rank_is_the_step_s(
    tmp_path: Path, rank: int, bad: float
) -> None:
    stream = MetricStream(RunPaths(tmp_path), 3)
    for step in range(1, 20):
        for number in range(3):
            norm = bad if number == rank and step > 10 else 1.0 + (number - 1) / 4
            line = {"step": step, "time": 1000.0 + step, "loss": 2.0 + step % 5 / 10}
            stream.take(number, line | {"grad_norm": norm})
    rows = list(stream.remaining())
    assert [one.grad_norm for one in rows[:10]] == [1.25] * 10
    assert not any(math.isfinite(one.grad_norm or 0.0) for one in rows[10:])
    (found,) = Replay(tmp_path).rows(rows)
    assert (found.kind, found.step) == ("nan-gradient", 11)

"""The notebook on number formats: every claim in it holds when it is run."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("torch", reason="the train extra is not installed")

import torch

from tests.widgets.notebook_run import (
    assert_short_and_clean,
    beside,
    prose,
    read,
    run_beside_helpers,
)

NAME = "16_number_formats"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory):
    return run_beside_helpers(tmp_path_factory, NAME)


@pytest.fixture
def helpers():
    with beside("number_formats") as module:
        yield module


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(NAME)
    assert len(read(NAME).cells) <= 35
    folded = [cell for cell in read(NAME).cells if cell.metadata.get("jupyter")]
    assert [cell.source.splitlines()[0] for cell in folded] == ["# solution"]


def test_the_formats_are_those_of_torch(helpers) -> None:
    known = {
        "fp32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "fp8 e5m2": torch.float8_e5m2,
        "fp8 e4m3": torch.float8_e4m3fn,
    }
    for name, dtype in known.items():
        ours, theirs = helpers.FORMATS[name], torch.finfo(dtype)
        assert ours.largest == theirs.max
        assert ours.smallest_normal == theirs.smallest_normal
        assert ours.spacing(1.0) == theirs.eps
        smallest = torch.tensor([ours.smallest, 0.49 * ours.smallest]).to(dtype).float()
        assert smallest.tolist() == [ours.smallest, 0.0]


def test_a_cast_clips_beyond_its_scale(helpers) -> None:
    values = torch.tensor([[1.0, -2.0], [100.0, 400.0]])
    assert helpers.scaled_cast(values, amax=1.0).tolist() == [[1.0, -1.0], [1.0, 1.0]]
    rows = helpers.scaled_cast(values, amax=values.abs().amax(1, keepdim=True))
    assert rows[:, 1].tolist() == [-2.0, 400.0]


def test_the_puzzle_is_graded(helpers, capsys: pytest.CaptureFixture[str]) -> None:
    def with_master(kept, update):
        master = kept[1] + update
        return master.bfloat16(), master

    assert not helpers.check_updates(lambda one: (one, one.float()), with_master)
    assert "bytes     6, target 4: too much\nspacings  0.5, target 1: reached" in (
        capsys.readouterr().out
    )
    assert not helpers.check_updates(lambda one: (one.float(),), lambda kept, add: (kept[0] + add,))
    assert "must be the weights in bf16, not torch.float32" in capsys.readouterr().out
    lost = torch.tensor(float("nan")).bfloat16()
    assert not helpers.check_updates(lambda one: (one,), lambda kept, add: (kept[0] * lost,))


def test_defaults_that_it_quotes() -> None:
    defaults = inspect.signature(torch.amp.GradScaler).parameters
    assert defaults["init_scale"].default == 65_536
    assert defaults["growth_interval"].default == 2000
    assert "65,536 to start with and an interval of 2,000" in prose(NAME)


@pytest.mark.full
@pytest.mark.slow
def test_every_claim_holds(said) -> None:
    said.has(r"^bf16 .*largest 3\.39e\+38,", r"^fp16 .*largest 6\.55e\+04, smallest +6e-08")
    zeros = r"(\d+)% of the gradients are zero"
    said.within(75, rf"^fp16 +{zeros}", 85)  # "four of five"
    last = {
        name: said.number(rf"^{name} +\d+% of the gradients are zero, last loss ([\d.]+)")
        for name in ("fp32", "bf16", "fp16", r"fp16, loss x 2\^14")
    }
    assert last["fp16"] > 2 * last["fp32"]  # "more than twice as far from its goal"
    for name in ("bf16", r"fp16, loss x 2\^14"):
        assert last[name] == pytest.approx(last["fp32"], rel=0.05)
        assert said.number(rf"^{name} +{zeros}") == 0
    said.has(r"^step  1: scale 2\^36, by hand True: overflow", r"by hand True: step made$")
    assert "by hand False" not in said.text
    said.has(
        r"V100 .* Use precision fp16", r"T4 .* Use precision fp16", r"A100 .* without a scaler"
    )
    said.has(r"^torch\.bfloat16: 1\.000$", r"^torch\.float32: 2\.000$")
    said.within(1.98, r"^mean ([\d.]+), from", 2.02)


@pytest.mark.full
@pytest.mark.slow
def test_masters_and_stochastic_rounding(said) -> None:
    reached = {
        (lr, name): 2.101 - said.number(rf"^lr {lr} +{name} +loss 2\.10 to ([\d.]+)")
        for lr in (r"0\.0003", r"0\.003")
        for name in ("fp32 master", "bf16", "bf16, stochastic")
    }
    low, high = ({name: way for (at, name), way in reached.items() if at == lr}
                 for lr in (r"0\.0003", r"0\.003"))  # fmt: skip
    assert low["bf16"] / low["fp32 master"] == pytest.approx(0.5, abs=0.08)  # "half as far down"
    assert low["bf16, stochastic"] / low["fp32 master"] == pytest.approx(1, abs=0.03)
    assert high["bf16"] / high["fp32 master"] == pytest.approx(0.99, abs=0.01)
    said.within(45, r"^lr 0\.0003 bf16 .* (\d+)% of updates lost", 58)


@pytest.mark.full
@pytest.mark.slow
def test_eight_bits(said) -> None:
    int8, e4m3, rows = (
        [float(one) for one in said_row.split("%")[:-1]]
        for said_row in (
            next(line for line in said.text.splitlines() if line.startswith(name))[17:]
            for name in ("int8, per tensor", "e4m3, per tensor", "e4m3, per row")
        )
    )
    assert int8[0] < e4m3[0]  # "int8 is better than both on such numbers"
    assert int8[2] == pytest.approx(66, abs=4)  # "two thirds"
    assert max(e4m3[:4]) < 1.1 * e4m3[0] < e4m3[4] < e4m3[6]  # "1,000 times", "beyond 10,000"
    assert max(rows) < 1.1 * rows[0]
    said.within(50, r"^step 5: error with current scale +2\.6%, delayed +([\d.]+)%", 70)
    said.has(*(rf"^step {step}: .* delayed +2\.[67]%$" for step in (1, 4, 6, 7, 8)))


@pytest.mark.full
@pytest.mark.slow
def test_what_it_saves(said) -> None:
    gib = {name: said.number(rf"^{name} +([\d.]+) GiB") for name in ("fp32", "bf16", "fp16", "fp8")}
    assert gib["fp32"] == pytest.approx(67, abs=0.5)  # the question gives it
    assert gib["bf16"] > 0.6 * gib["fp32"]  # "not half the memory"
    assert gib["fp8"] == gib["bf16"] == gib["fp16"]  # "saves nothing"
    said.within(1.1, r"^times faster with fp8 than with bf16: ([\d.]+)\.", 1.6)  # not twice
    said.has(r"^0 of 0 predictions right within 25 %$", r"target 1: too much\nNot yet\.")
    said.has(r"^bytes     4, target 4: reached\nspacings  [\d.]+, target 1: reached\nSolved\.$")
    from workbench.describe.accelerators import find

    rates = {name: find("h100").peak_flops(name) for name in ("fp8", "tf32", "fp32")}
    assert [round((rates[name] or 0) / 1e12) for name in ("tf32", "fp32")] == [494, 67]
    assert (rates["fp8"] or 0) / (rates["fp32"] or 1) == pytest.approx(30, abs=1)

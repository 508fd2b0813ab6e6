"""The notebook on sweeps: what it says of samplers, metrics and early stops holds when it runs."""

from __future__ import annotations

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("optuna", reason="the extra sweep is not installed")
pytest.importorskip("torch", reason="the train extra is not installed")

from tests import user_environment
from tests.widgets.notebook_run import ROOT, assert_short_and_clean, runner

NAME = "15_sweeps"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory):
    if "optuna" not in user_environment.distributions(("sweep",)):
        pytest.skip("this environment was installed before the extra sweep: make test renews it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "notebooks"))  # where Jupyter's kernel starts
        return runner(tmp_path_factory, "sweep")(NAME)  # its first cell says so


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(NAME)


@pytest.mark.full
@pytest.mark.slow
def test_random_beats_the_grid_and_tpe_needs_its_ten(said) -> None:
    assert said.number(r"grid ([\d.]+), random") > 2 * said.number(r"grid [\d.]+, random ([\d.]+)$")
    first = [said.number(rf"^10 trials: {one} ([\d.]+)") for one in ("random", "random .* TPE")]
    assert first[0] == first[1]  # "equal to the last digit"
    forty = [said.number(rf"^40 trials: {one} ([\d.]+)") for one in ("random", "random .* TPE")]
    assert forty[1] < forty[0] / 2  # "at least twice as close"
    ways = ("grid", "random", "TPE")
    real = [said.number(rf"^{way}: best eval loss of 12 is ([\d.]+)") for way in ways]
    assert max(real) < 1.5 * min(real)  # "three numbers that are close"


@pytest.mark.full
@pytest.mark.slow
def test_the_training_loss_picks_another_trial(said) -> None:
    said.has(r"^finished$", r"^6 trials, 2 at a time; hours: None$")
    by_train = said.number(r"^by training loss: lr \S+, eval loss ([\d.]+)$")
    by_eval = said.number(r"^by eval loss: lr \S+, eval loss ([\d.]+)$")
    assert by_train > 1.2 * by_eval
    assert said.number(r"^by eval loss: lr (\S+),") == said.number(r"^the sweep's best: (\S+)$")


@pytest.mark.full
@pytest.mark.slow
def test_asha_saves_most_steps_and_kills_the_late_bloomer(said) -> None:
    said.within(15, r"^steps trained: (\d+)%", 50)  # "most of the steps are saved"
    every = said.number(r"^best eval loss: all trained ([\d.]+)")
    assert said.number(r"^best eval loss: .* ASHA ([\d.]+)") >= every
    said.has(r"^the late bloomer is the best: True$")
    said.has(
        r"^first look 20, place 8: trained to 20,", r"^first look 90, place 8: trained to 180,"
    )
    said.has(r"^first look 20, place 0: trained to 180,")
    early, later = (said.number(rf"^first look {at}, place 8: .* (\d+)%") for at in (20, 90))
    assert early < later < 100  # "less is saved"


@pytest.mark.full
@pytest.mark.slow
def test_the_cost_is_said_before(said) -> None:
    bills = [
        said.number(rf"{name}: [\d.]+ h, ([\d.]+) dollars") for name in ("end", "order", "at least")
    ]
    assert bills == sorted(bills, reverse=True)
    assert bills[2] > 0

"""The notebook on measuring before renting: what it says holds when it is run."""

from __future__ import annotations

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("accelerate", reason="the train extra is not installed")

from tests.widgets.notebook_run import assert_exercise, assert_short_and_clean, prose, runner

pytestmark = pytest.mark.timeout(900)  # six runs one after the other
NAME = "11_measure_before_you_rent"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory):
    return runner(tmp_path_factory)(NAME)


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(NAME)


@pytest.mark.full
@pytest.mark.slow
def test_one_and_two_are_measured_and_four_is_said_first(said) -> None:
    said.has(r"^\d+ cores, best matrix product \d+ GFLOP/s$", r"^weak scaling of gpt$")
    said.has(r"^ +1 ranks .*measured\) +efficiency 100%$", r"^ +2 ranks .*measured\)")
    said.has(r"^ +4 ranks .*predicted\)", r"^kept -?\d+% \+ lost -?\d+% = 100%$")
    kept = said.number(r"^kept (-?\d+)%")
    assert kept + said.number(r"lost (-?\d+)% = 100%$") == pytest.approx(100, abs=1.1)


@pytest.mark.full
@pytest.mark.slow
def test_the_prediction_is_set_beside_the_measurement(said) -> None:
    predicted = said.number(r"^4 ranks: predicted ([\d.]+) s")
    measured = said.number(r"measured ([\d.]+) s$")
    assert predicted > 0 < measured
    said.has(r"^inside the range: (True|False)$", r"^ScalingStudy of gpt, 1,2 ranks")


@pytest.mark.full
@pytest.mark.slow
def test_the_laws_it_quotes(said) -> None:
    said.has(r"^ +2 ranks: +2 messages, 1\.00 x", r"^ 512 ranks: +1022 messages, 2\.00 x")
    two = said.number(r"^ +2 ranks wait ([\d.]+) standard")
    most = said.number(r"^ 512 ranks wait ([\d.]+) standard")
    assert 4.5 < most / two < 5.5  # "five times"
    said.has(r"^weak +2 ranks: step", r"^strong 2 ranks: step", r"^the first timed step took")


@pytest.mark.full
@pytest.mark.slow
def test_the_cluster_and_the_bytes(said) -> None:
    for name in ("small", "large"):
        said.within(50, rf"^{name}: +8 x H100, efficiency (\d+)%", 100)
        said.within(50, rf"^{name}: +64 x H100, efficiency (\d+)%", 100)
    whole = said.number(r"^none +([\d,]+) bytes")
    assert said.number(r"^topk +([\d,]+) bytes") / whole == pytest.approx(0.02, rel=0.02)
    loss = [said.number(rf"^{name} .*loss ([\d.]+)$") for name in ("none", "topk")]
    assert loss[0] < loss[1] < 6  # "behind after so few steps"


def test_what_it_quotes() -> None:
    assert "within 15 per cent" in prose(NAME)


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        ({"weak": "0.75", "strong_8": "0.625"}, None),
        ({"strong_8": "0.63"}, None),  # as a percentage is written
        ({"weak": "1.33"}, "the first size's step"),
        ({"strong_8": "5"}, "an eighth"),
    ],
)
def test_exercises_are_checked(answers: dict[str, str], wrong: str | None) -> None:
    assert_exercise(NAME, "weak = None", answers, wrong)

"""What can be varied: read, held against the script's own options, written as its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeping.plans import plan
from workbench.describe.option import declared
from workbench.errors import UnknownNameError, UsageError
from workbench.launching.prepare.targets import resolve
from workbench.sweeping.parameters import combinations, grid_parameter, random_parameter
from workbench.sweeping.plan import SweepOptions, direction_of, first_look
from workbench.sweeping.script_values import checked, read_script, with_values
from workbench.sweeping.stopping import trained_share

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--opt", choices=["adamw", "sgd"])
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--prompt", default="Answer:")
parser.parse_args()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.parametrize(
    ("kind", "name", "given", "said"),
    [
        ("random", "lr", "1:1", "low end is not below"),
        ("random", "lr", "0:1:log", "begins above 0"),
        ("random", "lr", "0.5:3:int", "whole numbers lie between"),
        ("random", "lr", "a:b", "ends of a range are numbers"),
        ("random", "lr", "1:2:cubic", "neither log nor int"),
        ("random", "lr", "1e-4", "give LOW:HIGH"),
        ("grid", "lr", "1,1", "a value comes twice"),
        ("grid", "lr", "", "give values separated by commas"),
    ],
)
def test_what_is_no_range_or_list_is_refused(kind: str, name: str, given: str, said: str) -> None:
    make = random_parameter if kind == "random" else grid_parameter
    with pytest.raises(UsageError, match=said):
        make(name, given)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("learning-rat", "1e-4,1e-3", "Did you mean learning-rate"),
        ("layers", "2,2.5", "give a whole number"),
        ("opt", "adamw,lion", "choose adamw, sgd"),
        ("bf16", "true,maybe", "is a switch"),
        ("bf16", "true,1", "--bf16 takes two of these for the same"),
        ("learning-rate", "1e-3,1e-4,0.001", "takes two of these for the same"),
        ("layers", ["", "2"], "--layers needs a value"),
    ],
)
def test_values_are_held_against_the_script(
    script: str, name: str, values: str | list[str], said: str
) -> None:
    what = resolve(script)
    with pytest.raises((UsageError, UnknownNameError), match=said):
        checked(grid_parameter(name, values), read_script(what), "train.py")


def test_values_become_the_script_s_options_in_place_of_given_ones(script: str) -> None:
    reading = read_script(resolve(script))
    named = [
        checked(one, reading, "train.py")
        for one in (
            grid_parameter("learning_rate", "1e-4,1e-3"),
            grid_parameter("bf16", "true,false"),
            random_parameter("layers", "2:8"),
        )
    ]
    assert named[2].integer  # as the option's own type
    assert [one.option for one in named] == ["--learning-rate", "--bf16", "--layers"]
    old = ["--learning-rate", "5", "--layers=3"]
    values = {"learning_rate": "1e-4", "bf16": "true", "layers": "4"}
    new = with_values(old, values, named, reading)
    assert new == ["--learning-rate", "1e-4", "--layers=4", "--bf16"]
    off = with_values(new, {"bf16": "false"}, named, reading)
    assert off == ["--learning-rate", "1e-4", "--layers=4"]


def test_an_empty_value_is_another_than_the_default(script: str) -> None:
    reading = read_script(resolve(script))
    prompt = checked(grid_parameter("prompt", ["", "a, b"]), reading, "train.py")
    for value, words in (("", ["--bf16", "--prompt="]), ("a, b", ["--prompt", "a, b", "--bf16"])):
        assert (
            with_values(["--prompt", "x", "--bf16"], {"prompt": value}, [prompt], reading) == words
        )


def test_every_combination_comes_once() -> None:
    grid = combinations([grid_parameter("a", "1,2"), grid_parameter("b", "x,y,z")])
    assert len({tuple(one.items()) for one in grid}) == 6
    assert grid[0] == {"a": 1, "b": "x"}


def test_values_that_are_equal_as_numbers_stay_two() -> None:
    one = grid_parameter("v", "3.1,3.10")
    assert [one.text_of(one.value_of(text)) for text in one.values] == ["3.1", "3.10"]
    assert str(random_parameter("seed", "0:1234567:int")) == "seed=0:1234567:int"


def test_the_direction_is_the_name_s_or_asked_for() -> None:
    assert direction_of("eval_loss", None) == "lower"
    assert direction_of("accuracy", None) == "higher"
    with pytest.raises(UsageError, match="--direction"):
        direction_of("tokens_seen", None)


def test_looks_need_a_length() -> None:
    assert first_look(SweepOptions(stop="asha"), 90) == 10
    with pytest.raises(UsageError, match="--first-look 100"):
        first_look(SweepOptions(stop="asha"), None)
    with pytest.raises(UsageError, match="smaller --first-look"):
        first_look(SweepOptions(stop="asha", first_look=90), 90)


def test_what_early_stops_save_is_what_optuna_s_pruner_saves() -> None:
    """Trials in random order, one after another, through the library's own pruner."""
    optuna = pytest.importorskip("optuna")
    import random

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    chosen, trained = plan(stop="asha", first_look=10, trials=27), 0
    draw, sweeps = random.Random(0), 12
    for _ in range(sweeps):
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=10, reduction_factor=3)
        study = optuna.create_study(pruner=pruner)
        for _ in range(27):
            trial, value, steps = study.ask(), draw.random(), 90
            for look in chosen.looks(90):
                trial.report(value, look)
                if trial.should_prune():
                    steps = look
                    break
            trained += steps
            study.tell(trial, value)
    share = trained_share(chosen)
    assert share.low < share.expected < share.high
    assert trained / (sweeps * 27 * 90) == pytest.approx(share.expected, rel=0.1)


def test_what_is_no_pair_is_told_how_its_own_option_is_written() -> None:
    """A grid was told to look like DATA=/data, which is a variable of the ranks."""
    with pytest.raises(UsageError, match=r"^--grid 'lr': give NAME=V,V\. .*lr=1e-4,3e-4"):
        declared(SweepOptions)["grid"].read(["lr"])
    with pytest.raises(
        UsageError, match=r"^--random 'lr': give NAME=LOW:HIGH\. .*lr=1e-5:1e-3:log"
    ):
        declared(SweepOptions)["random"].read(["lr"])

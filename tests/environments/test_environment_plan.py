from dataclasses import replace

import pytest
from venv_setup import optional
from venv_setup.choice import DEFAULT_EXTRAS
from venv_setup.plan import SetupRequest, make_plan
from venv_setup.state import State, load, save, stage

WANTED = SetupRequest(
    extras=("train",), mode="auto", machine={"driver": None}, inputs={"pyproject.toml": "a"}
)
DONE = State(
    venv="/p/.venv",
    machine={"driver": None},
    torch={"kind": "own", "installed": "2.13.0"},
    extras=["train", "lab"],
    inputs={"pyproject.toml": "a"},
    stages={"torch": {"started": 1.0, "seconds": 2.0}},
    complete=True,
)


def test_nothing_to_do():
    assert make_plan(DONE, None, WANTED).nothing


@pytest.mark.parametrize(
    ("state", "fault", "wanted", "word", "rebuild", "repair", "choose"),
    [
        (None, "there is none yet", WANTED, "there is none yet", True, False, True),
        (None, None, WANTED, "made by hand", False, True, True),
        (DONE, "it has no pip", WANTED, "it has no pip", True, False, True),
        (DONE, None, replace(WANTED, rebuild=True), "--rebuild", True, False, True),
        (DONE, None, replace(WANTED, inputs={"pyproject.toml": "b"}), "pyproject.toml changed", False, False, False),
        (DONE, None, replace(WANTED, machine={"driver": "x"}), "machine", False, False, True),
        (DONE, None, replace(WANTED, mode="own"), "machine", False, False, True),
        (DONE, None, replace(WANTED, extras=("dev",)), "extras dev", False, False, True),
        (replace(DONE, complete=False), None, WANTED, "did not finish", False, False, False),
        (
            replace(DONE, complete=False, stages={"project": {"started": 1.0, "seconds": None}}),
            None, WANTED, "interrupted in: project", False, True, False,
        ),
    ],
)  # fmt: skip
def test_what_is_left_to_do(state, fault, wanted, word, rebuild, repair, choose):
    plan = make_plan(state, fault, wanted)
    assert word in (plan.rebuild or plan.install)
    assert (plan.rebuild is not None, plan.repair, plan.choose_torch) == (rebuild, repair, choose)


def test_extras_are_never_taken_away():
    plan = make_plan(DONE, None, replace(WANTED, extras=("train", "dev")))
    assert plan.extras == ("train", "lab", "dev")


def test_a_stage_that_raises_stays_unfinished(tmp_path):
    state = State()
    with pytest.raises(KeyboardInterrupt), stage(tmp_path, state, "torch"):
        raise KeyboardInterrupt
    assert load(tmp_path).unfinished() == ["torch"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', '{"new_field": 1}'])
def test_a_state_that_cannot_be_read_is_no_state(tmp_path, text):
    (tmp_path / ".setup-state.json").write_text(text)
    assert load(tmp_path) is None


def test_the_state_survives_a_round_trip_and_leaves_no_other_file(tmp_path):
    save(tmp_path, DONE)
    assert load(tmp_path) == DONE
    assert [path.name for path in tmp_path.iterdir()] == [".setup-state.json"]


def test_damaged_packages_are_installed_again_and_named():
    damaged = {"rich==14.0": "rich/table.py is missing", "typer==0.12": "it has no RECORD"}
    plan = make_plan(DONE, None, WANTED, damaged=damaged)
    assert plan.repair
    assert not plan.choose_torch
    assert plan.install == ("damaged packages: rich==14.0 (rich/table.py is missing), and 1 more")


def test_an_optional_extra_that_failed_is_not_tried_at_every_make():
    wanted = replace(WANTED, extras=("train", "deepspeed"))
    assert not make_plan(DONE, None, wanted).nothing
    assert make_plan(DONE, None, wanted, waits=["deepspeed"]).nothing
    assert not make_plan(DONE, None, replace(wanted, retry=True), waits=["deepspeed"]).nothing


def test_how_long_a_failed_extra_waits():
    state = replace(DONE, missing={"deepspeed": {"at": 1000.0, "why": "no compiler"}})
    assert optional.waits(state, "deepspeed", 1001.0)
    assert not optional.waits(state, "deepspeed", 1000.0 + optional.RETRY_SECONDS)
    assert not optional.waits(state, "deepspeed", 999.0), "the clock was set back"
    assert not optional.waits(DONE, "deepspeed", 1001.0)
    (line,) = optional.missing_lines(state)
    assert "zero3" in line
    assert "--retry" in line


def test_every_optional_extra_is_one_of_the_defaults():
    assert set(optional.EXTRAS) <= set(DEFAULT_EXTRAS)
    assert optional.required(DEFAULT_EXTRAS) == ("train", "lab")

from dataclasses import replace

import pytest
from venv_setup.plan import Wanted, make_plan
from venv_setup.state import State, load, save, stage

WANTED = Wanted(
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

"""What a script is told to resume from a checkpoint, read from its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.errors import UsageError
from workbench.recipes import recipes
from workbench.recover.checkpoints import Checkpoint
from workbench.recover.resuming import RESUME_VARIABLE, checkpoint_in_arguments, how_to_resume

PLACE = "/runs/a/checkpoints/step-00000020"


def checkpoint(kind="accelerate"):
    return Checkpoint(
        path=Path(PLACE), step=20, kind=kind, bytes=1, saved_at=None, sealed=True, problem=""
    )


def told(tmp_path, source, *arguments, kind="accelerate"):
    script = tmp_path / "train.py"
    script.write_text(source)
    return how_to_resume(script, None, arguments, checkpoint(kind))


@pytest.mark.parametrize("name", ["gpt", "lora", "vision"])
def test_recipes_get_resume_in_place_of_an_earlier_one(name):
    given = ["--steps", "9", "--resume", "latest", "--lr", "1e-3", "--resume=/old"]
    found = how_to_resume(recipes()[name].path, name, given, checkpoint())
    assert found.arguments == ("--steps", "9", "--lr", "1e-3", "--resume", PLACE)
    assert found.environment == {}


def test_a_recipe_that_saves_nothing_says_so():
    with pytest.raises(UsageError, match="saves nothing"):
        how_to_resume(recipes()["pipeline"].path, "pipeline", [], checkpoint())


def test_a_copy_of_a_recipe_resumes_as_the_recipe_does(tmp_path):
    found = told(tmp_path, recipes()["gpt"].path.read_text(), "--steps", "9")
    assert found.arguments == ("--steps", "9", "--resume", PLACE)


@pytest.mark.parametrize(
    "source",
    [
        "from transformers import Trainer, TrainingArguments\n",
        "from trl import SFTConfig, SFTTrainer\n",
        "import transformers\ntrainer = transformers.Trainer(model)\n",
        "from transformers import HfArgumentParser\n",
    ],
)
def test_trainers_are_told_by_the_environment(tmp_path, source):
    found = told(tmp_path, source, "--x", "1", kind="accelerate")
    assert found.arguments == ("--x", "1")
    assert found.environment == {RESUME_VARIABLE: PLACE}


@pytest.mark.parametrize(
    ("declared", "flag"),
    [
        ("p.add_argument('--resume_from_checkpoint', type=str, default=None)", True),
        ("p.add_argument('--resume-from-checkpoint')", True),
        ("p.add_argument('-r', '--resume', default='', type=str, metavar='PATH')", True),
        ("p.add_argument('--load', type=Path)", True),
        ("@click.option('--ckpt', type=str)\ndef main(ckpt): pass", True),
        ("p.add_argument('--resume', action='store_true')", False),
        ("p.add_argument('--resume', type=int)", False),
        ("p.add_argument('--resume', type=bool)", False),
        ("p.add_argument('--ckpt', choices=['best', 'last'])", False),
        ("p.add_argument('--ckpt', help='file that the checkpoint is saved to')", False),
        ("p.add_argument('--ckpt', help='saved checkpoint to continue from')", True),
        ("@click.option('--resume', is_flag=True)\ndef main(resume): pass", False),
        ("init_from = 'scratch'  # or 'resume'", False),
        ("print('--resume')", False),
    ],
)
def test_only_a_flag_that_takes_a_folder_is_used(tmp_path, declared, flag):
    if flag:
        name = next(word for word in declared.split("'") if word.startswith("--"))
        found = told(tmp_path, declared, name, "old", f"{name}=older", "--a", "b", "--", "rest")
        assert found.arguments == ("--a", "b", name, PLACE, "--", "rest")
    else:
        with pytest.raises(
            UsageError, match=r"workbench resume RUN -- --your-flag .*checkpoint none"
        ):
            told(tmp_path, declared)


def test_the_users_own_flag_is_filled_in(tmp_path):
    found = told(tmp_path, "pass", "--from", "{checkpoint}/model.pt")
    assert found.arguments == ("--from", f"{PLACE}/model.pt")


def test_a_script_that_cannot_be_read_is_refused_in_one_sentence(tmp_path):
    for source in ("def (", "\0"):
        with pytest.raises(UsageError, match="cannot be read") as refused:
            told(tmp_path, source)
        assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="cannot be read"):
        how_to_resume(tmp_path / "absent.py", None, [], checkpoint())


OWN = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--resume_from', '-r')\n"


@pytest.mark.parametrize(
    "words", [["--resume_from", "mine"], ["--resume_from=mine"], ["-r", "mine"]]
)
def test_what_the_arguments_give_the_resume_option_themselves_stays(tmp_path, words):
    script = tmp_path / "train.py"
    script.write_text(OWN)
    assert checkpoint_in_arguments(script, ["--steps", "9", *words]) == "mine"
    assert checkpoint_in_arguments(script, ["--steps", "9"]) is None
    found = how_to_resume(script, None, ["--steps", "9", *words], checkpoint(), in_arguments=True)
    assert found.arguments == ("--steps", "9", *words)
    assert found.environment == {}

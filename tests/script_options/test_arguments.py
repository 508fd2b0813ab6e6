"""Arguments of a resumed script: replaced and dropped as the script's own parser would read them."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from workbench.script_options.arguments import changed_arguments
from workbench.script_options.from_source import script_options
from workbench.script_options.values import ScriptOptions

PARSER = """
import argparse
from settings import add_more
parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?")
parser.add_argument("-n", "--num-steps", type=int)
parser.add_argument("--names", nargs="+")
parser.add_argument("--betas", nargs=2, type=float)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
parser.add_argument("--tag", action="append")
add_more(parser)
"""
NO_WORDS = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n"


@pytest.fixture
def known(tmp_path: Path) -> ScriptOptions:
    (tmp_path / "settings.py").write_text("def add_more(p):\n    p.add_argument('--resume')\n")
    script = tmp_path / "train.py"
    script.write_text(PARSER)
    return script_options(script)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("--lr 1 --steps 9", "--steps 20", "--lr 1 --steps 20"),
        ("--lr=1 --bf16", "--lr 2", "--bf16 --lr 2"),
        ("x.txt --names a b --betas 0.9 0.95 y", "--names=c", "x.txt --betas 0.9 0.95 y --names=c"),
        ("--betas 0.9 0.95 x.txt", "--betas 0.8 0.9", "x.txt --betas 0.8 0.9"),
        ("--bf16 x.txt", "--bf16", "x.txt --bf16"),
        ("-n 5 x.txt", "--num-steps 9", "x.txt --num-steps 9"),
        ("-n5", "--num 9", "--num 9"),
        ("--num-steps=5", "-n 9", "-n 9"),
        ("--compile --bf16", "--no-compile", "--bf16 --no-compile"),
        ("--tag a --bf16 --tag b", "--tag c", "--bf16 --tag c"),
        ("old.txt --bf16", "new.txt", "--bf16 new.txt"),
        ("--lr -1e-4 --bf16", "--lr -2", "--bf16 --lr -2"),
        ("model=gpt lr=3 +x.y=1", "lr=4 x.y=2", "model=gpt lr=4 x.y=2"),
        ("--bf16 -- a b", "--lr 1", "--bf16 --lr 1 -- a b"),
        ("--a 1", "", "--a 1"),
        ("--a 1", "--b", "--a 1 --b"),
    ],
)
def test_what_is_given_replaces_what_has_its_name(
    old: str, new: str, found: str, known: ScriptOptions
) -> None:
    assert changed_arguments(old.split(), new.split(), declared=known) == found.split()


@pytest.mark.parametrize(
    ("old", "drop", "found"),
    [
        ("--lr 1 --bf16", ["--lr"], "--bf16"),
        ("--lr=1 --bf16", ["--lr", "--bf16"], ""),
        ("--bf16 x.txt", ["--bf16"], "x.txt"),
        ("--bf16 x.txt", ["x.txt"], "--bf16"),
        ("--num-steps 5 y", ["-n"], "y"),
        ("--names a b --bf16", ["--names"], "--bf16"),
        ("--tag a --tag b", ["--tag"], ""),
        ("model=gpt lr=3", ["lr="], "model=gpt"),
        ("--lr 1 x y", ["*"], ""),
    ],
)
def test_what_is_dropped_goes_with_its_values(
    old: str, drop: list[str], found: str, known: ScriptOptions
) -> None:
    assert changed_arguments(old.split(), [], drop, known) == found.split()


def test_what_nobody_gave_cannot_be_dropped(known: ScriptOptions) -> None:
    with pytest.raises(wb.UsageError, match=r"--drop --lr: .* It has: --bf16 x.txt"):
        changed_arguments(["--bf16", "x.txt"], [], ["--lr"], known)


@pytest.mark.parametrize("text", ["import sys\n", PARSER])
def test_a_word_behind_an_unknown_option_is_not_dropped_with_it(tmp_path: Path, text: str) -> None:
    """--fast may be a switch, and data.txt a word by itself."""
    script = tmp_path / "train.py"
    script.write_text(text)
    known = script_options(script)
    with pytest.raises(
        wb.UsageError, match=r"--fast is followed by data\.txt, and the script does"
    ):
        changed_arguments(["--fast", "data.txt"], [], ["--fast"], known)
    for old in (["--fast"], ["--fast=data.txt"], ["--fast", "3e-4"], ["--fast", "True"]):
        assert changed_arguments([*old, "--a", "b"], [], ["--fast"], known) == ["--a", "b"]


def test_the_word_behind_an_option_is_its_value_where_the_script_takes_no_words(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(NO_WORDS)
    assert changed_arguments(["--fast", "x"], [], ["--fast"], script_options(script)) == []


def test_words_that_may_be_values_are_not_thrown_away(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\n")
    old = ["--names", "a", "b", "--lr", "3"]
    with pytest.raises(wb.UsageError, match="does not say which of these are its values"):
        changed_arguments(old, ["--names", "c"], declared=script_options(script))
    assert changed_arguments(old, ["--lr", "4"], declared=script_options(script))[-1] == "4"
    with pytest.raises(
        wb.UsageError, match=r"--bf16 is followed by data\.txt, and the script does"
    ):
        changed_arguments(["--bf16", "data.txt"], ["--bf16"], declared=script_options(script))
    assert changed_arguments(["--a=1"], ["--a"], declared=script_options(script)) == ["--a"]
    script.write_text(NO_WORDS)  # a parser that takes options alone
    found = changed_arguments(old, ["--names", "c"], declared=script_options(script))
    assert found == ["--lr", "3", "--names", "c"]


def test_a_recipe_declares_its_options_in_two_files() -> None:
    known = script_options(wb.recipes.find("gpt").path)
    assert {"--steps", "--resume", "--seed"} <= set(known.by_name)

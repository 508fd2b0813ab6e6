"""What texts say of the product is so: commands and options that they name, and how many there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import workbench_widgets

import workbench as wb
from tests.test_architecture import ORDER
from workbench.cli.agents_pages import pages
from workbench.cli.commands import COMMANDS, load
from workbench.cli.waiting import PREEMPTED_EXIT_CODE
from workbench.describe.trainers import trainers
from workbench.trainer_configs.all_formats import FORMATS

ROOT = Path(__file__).parents[1]
CODE = ("workbench", "widgets", "notebooks", "environments")
NUMBERS = {"eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12}
NUMBERS |= {"eighteen": 18, "nineteen": 19, "twenty": 20, "twenty-one": 21}
TYPED = re.compile(r"(?<![\w./-])workbench ([a-z][a-z-]*)\b((?:(?!workbench )[^`\"\n])*)")
END = re.compile(r" -- | \| |[;)] |[.,:] |[.,;:)]$|\s#")
"""What comes after a command's own options: the script's, another command, the rest of a sentence."""


@cache
def options(name: str) -> frozenset[str]:
    """Every option of a command and of its parts."""
    command: Any = load(name)
    parts = [command, *getattr(command, "commands", {}).values()]
    own = {flag for part in parts for one in part.params for flag in one.opts + one.secondary_opts}
    return frozenset(own | {"--help"})


def wrong_options(text: str) -> list[str]:
    """Options in the text's `workbench …` lines that their commands do not have."""
    wrong = []
    for name, rest in TYPED.findall(text):
        if name in COMMANDS:
            flags = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", END.split(f"{rest} ")[0])
            wrong += [f"{name} {flag}" for flag in flags if flag not in options(name)]
    return wrong


def texts() -> Iterator[tuple[Path, str]]:
    """What is read or printed: pages, notebooks, and every line of code; spans and texts in one line."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("tests/**/*.md"), *ROOT.glob("environments/*.*")]:
        yield path, re.sub(r"(?<!`)`([^`]+)`(?!`)", _in_one_line, path.read_text("utf-8"))
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
        yield path, re.sub(r"(?<!`)`([^`]+)`(?!`)", _in_one_line, text)
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in {".py", ".js"}:
                text = path.read_text("utf-8")
                if "workbench " in text:
                    yield path, re.sub(r'"\s*\n\s*f?"', "", text)


def _in_one_line(span: re.Match[str]) -> str:
    return " ".join(span[0].split())


def test_a_wrong_option_is_seen() -> None:
    for text in (
        "workbench launch gpt --ranks 2 -- --steps 3",
        "`workbench sweep start x.py --dry-runs`, or",
        "first workbench runs; then workbench show --last.",
    ):
        assert len(wrong_options(text)) == 1, text
    for text in (
        "workbench launch gpt --nproc 2 -- --ranks 3",
        "`workbench measure train.py`: see `--ranks`",
        "workbench resume --strategy fsdp, or --anything else",
        "what the workbench launches --ranks of",
    ):
        assert not wrong_options(text), text


def test_every_option_that_a_text_names_is_one_of_its_command() -> None:
    seen, wrong = 0, []
    for path, text in texts():
        seen += bool(TYPED.search(text))
        wrong += [f"{path.relative_to(ROOT)}: {line}" for line in wrong_options(text)]
    assert seen > 100
    assert not wrong


def test_every_page_that_code_names_is_here() -> None:
    folders = (*CODE, "tests")
    pages = {path.name for folder in folders for path in (ROOT / folder).rglob("*.md")}
    pages |= {path.name for path in ROOT.glob("*.md")}
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in CODE
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\b[\w-]+\.md\b", path.read_text("utf-8"))
        if name not in pages
    ]
    assert not missing


def test_no_text_names_a_command_that_is_gone() -> None:
    gone = re.compile("huggingface-cli|transformers-cli")
    assert not [str(path) for path, text in texts() if gone.search(text)]


def test_the_changelog_counts_what_there_is() -> None:
    text = " ".join((ROOT / "CHANGELOG.md").read_text("utf-8").split())
    (assumed, read) = re.findall(r"what (\d+) trainers do .* files of (\S+) of them", text)[0]
    assert int(assumed) == len(list(trainers()))
    assert NUMBERS[read] == len(FORMATS)
    (lessons,) = re.findall(r"(\S+) notebooks", text)
    assert NUMBERS[lessons] == len(list(ROOT.glob("notebooks/*.ipynb")))


def test_contributing_has_a_line_for_each_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (table,) = re.findall(r"\| package \| in one line \|\n\|---\|---\|\n((?:\|.*\n)+)", text)
    first = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()]
    named = [name for names in first for name in names if name != "widgets"]
    assert named == [name for name in ORDER if (ROOT / "workbench" / name).is_dir()]


def test_the_readme_names_the_commands_without_json_the_widgets_and_the_lessons() -> None:
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    (without,) = re.findall(r"and all but ([^(]*) have `--json`", text)
    groups = {name for name in COMMANDS if getattr(load(name), "commands", None)}
    lacks = {name for name in {*COMMANDS} - groups if "--json" not in options(name)}
    assert set(re.findall(r"`(\w+)`", without)) == {*lacks, "version"}
    (faces,) = re.findall(r"the same are widgets: ([^.]*)\.", text)
    assert set(re.findall(r"`(\w+)`", faces)) <= set(workbench_widgets.__all__)
    (lessons,) = re.findall(r"00_start_here.ipynb first; (.*) workbench/ the engine", text)
    numbers = [path.name[:2] for path in sorted(ROOT.glob("notebooks/*.ipynb"))]
    assert ["00", *re.findall(r"\b\d\d\b", lessons)] == numbers


def test_measure_says_how_many_steps_it_takes() -> None:
    probe = (ROOT / "workbench/launching/capture/probe/probe.py").read_text("utf-8")
    (timed,) = re.findall(r"(?m)^_MOST = (\d+)", probe)  # after one to warm up and a traced one
    assert f" 3 to {2 + int(timed)} optimizer steps" in str(wb.measure.__doc__)


def test_agents_are_told_every_exit_code() -> None:
    text = " ".join(pages()["SKILL.md"].split())
    assert f"{PREEMPTED_EXIT_CODE}: a run that was waited for was pre-empted" in text

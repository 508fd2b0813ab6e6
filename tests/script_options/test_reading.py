"""What is read of a script's command line, by its source and by its parser; nothing trains."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.script_options.parsers import AP, CASES, END, Case
from workbench import recipes
from workbench.script_options import from_run
from workbench.script_options.from_run import read_by_run
from workbench.script_options.reading import read_options
from workbench.script_options.values import Reading


def written(case: Case, folder: Path) -> Path:
    for name, text in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    script = folder / "train.py"
    script.write_text(case.source)
    return script


def check(reading: Reading, case: Case) -> None:
    found = {one.name: one for one in (*reading.known.words, *reading.known.options)}
    for name, (kind, default) in case.options.items():
        assert (found[name].kind, found[name].default) == (kind, default), found[name]
    for name, attributes in case.more.items():
        for key, value in attributes.items():
            assert getattr(found[name], key) == value, (name, key, getattr(found[name], key))


def ids(cases: list[Case]) -> dict:
    return {"argvalues": cases, "ids": [one.name for one in cases]}


@pytest.mark.parametrize("case", **ids([one for one in CASES if not one.run]))
def test_the_source_alone_shows_the_options(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reading = read_options(written(case, tmp_path))
    assert reading.way == case.way
    assert reading.complete is (case.way == "source") or "lambda" in case.source
    assert case.note in reading.note
    if case.way == "source":
        names = {one.name for one in (*reading.known.words, *reading.known.options)}
        assert names >= case.options.keys()
        assert not {"--never", "--own"} & names  # of code that this script does not use
        check(reading, case)
        assert all(name in reading.help for name in case.options)
    assert not Path("trained").exists()


@pytest.mark.parametrize(
    "annotation", ['"what it is for"', "Optional[None]", "None | None", "list[()]", '"("']
)
def test_an_annotation_that_is_no_plain_type_is_told(annotation: str, tmp_path: Path) -> None:
    """As a dataclass may have it; the fields beside it are still known."""
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import HfArgumentParser\nclass Own:\n"
        f"    odd: {annotation} = None\n    lr: float = 0.1\nHfArgumentParser(Own)\n"
    )
    reading = read_options(script)
    assert not reading.complete
    assert "the type of odd is not a plain one" in reading.note
    assert [option.name for option in reading.known.options] == ["--lr"]


def test_classes_of_two_modules_that_name_each_other_as_base_end(tmp_path: Path) -> None:
    (tmp_path / "library_arguments.py").write_text(
        "from trl import ScriptArguments\nclass TrainingArguments(ScriptArguments):\n    b: int = 2\n"
    )
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import HfArgumentParser\n"
        "from library_arguments import TrainingArguments\n"
        "class ScriptArguments(TrainingArguments):\n    a: int = 1\n"
        "HfArgumentParser(ScriptArguments)\n"
    )
    reading = read_options(script)
    assert {option.name for option in reading.known.options} == {"--a", "--b"}
    assert "has the options of ScriptArguments, which is of a library" in reading.note


def test_a_choice_with_an_end_of_line_is_listed(tmp_path: Path) -> None:
    """The script's own argparse fails at such a help text, once it needs more than one line."""
    script = tmp_path / "train.py"
    numbers = "".join(f"p.add_argument('--number-{place}', type=int)\n" for place in range(12))
    script.write_text(
        "import argparse\np = argparse.ArgumentParser()\n"
        f"p.add_argument('--mode', choices=['a\\nb', 'c'])\n{numbers}p.parse_args()\n"
    )
    reading = read_options(script)
    assert "--mode {a b,c}" in " ".join(reading.help.split())


@pytest.mark.slow
def test_python_3_10_has_no_option_for_a_safe_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3.10"
    python.write_text(
        '#!/bin/sh\nif [ "$1" = -P ]; then echo "Unknown option: -P"; exit 2; fi\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(from_run, "SAFE_PYTHON", (str(python),), raising=False)
    reading = read_by_run(written(CASES[0], tmp_path))
    assert reading.way == "run", reading.note


@pytest.mark.slow
@pytest.mark.parametrize("case", **ids([one for one in CASES if one.run or one.way == "source"]))
def test_a_run_reaches_the_parser_and_never_gets_past_it(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the source says as much: both ways agree."""
    if "transformers" in case.source:
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    script = written(case, tmp_path)
    if case.run and case.way == "run":
        assert read_options(script).can_run
        assert not read_options(script).complete
    reading = read_by_run(script, name="train")
    assert reading.way == ("run" if case.options else "none"), reading.note
    assert case.note in reading.note
    check(reading, case)
    if case.options:
        assert "usage: train" in reading.help.lower()
    assert not Path("trained").exists()


def test_what_prints_and_exits_keeps_its_page(tmp_path: Path) -> None:
    (case,) = (one for one in CASES if one.name == "prints and exits")
    assert "usage: me DATA" in read_by_run(written(case, tmp_path)).help


def test_a_script_that_trains_at_import_is_ended_at_its_first_backward(tmp_path: Path) -> None:
    case = Case(
        "trains",
        "import torch, time\ntime.sleep(0.3)\nw = torch.ones(2, requires_grad=True)\n"
        f"w.sum().backward()\nopen('trained', 'w').close()\n{AP}{END}",
    )
    reading = read_by_run(written(case, tmp_path))
    assert "trains before it reads its arguments" in reading.note
    assert not (tmp_path / "trained").exists()


def test_time_and_memory_are_limited_and_nothing_is_left(tmp_path: Path) -> None:
    sleeps = Case(
        "sleeps",
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\ntime.sleep(600)\n{AP}{END}",
    )
    reading = read_by_run(written(sleeps, tmp_path), seconds=2)
    assert "did not read its arguments within 2 s" in reading.note
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)
    eats = Case("eats", f"x = bytearray(3 << 30)\n{AP}{END}")
    reading = read_by_run(written(eats, tmp_path), memory_bytes=1 << 30)
    assert "took more than 1 GiB" in reading.note


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("name", recipes.recipes())
def test_a_recipe_has_its_own_parser(name: str) -> None:
    reading = read_options(recipes.find(name).path, recipe=name)
    assert reading.complete
    assert len(reading.known.options) >= 10
    assert f"workbench launch {name} --" in reading.help
    help_names = {word for word in reading.help.split() if word.startswith("--")}
    assert all(one.name in " ".join(help_names) for one in reading.known.options)

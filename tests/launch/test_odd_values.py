"""Odd scripts, arguments and keywords: each is taken as it was meant, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.errors import UsageError
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.targets import as_script_words, resolve

NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "source", "told"),
    [
        (
            "train.ipynb",
            NOTEBOOK,
            r"is a notebook, not a Python script\. Begin its cell that trains with %%train",
        ),
        ("run.sh", "#!/bin/bash\ntrain\n", "is a shell script"),
        ("run", "#!/usr/bin/env -S bash -e\ntrain\n", "is a shell script"),
        ("deep.py", "x = " + "-" * 20_000 + "1\n", "nested too deeply"),
    ],
)
def test_a_file_that_is_no_python_script_is_refused(
    folder: Path, name: str, source: str, told: str
) -> None:
    (folder / name).write_text(source)
    with pytest.raises(UsageError, match=told):
        resolve(name)


def test_a_script_that_another_program_starts_with_python_is_taken(folder: Path) -> None:
    (folder / "train").write_text("#!/usr/bin/env -S uv run --script\nprint(1)\n")
    assert resolve("train").path == folder / "train"


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("~nobody-of-this-name/train.py", "begins with ~ and an unknown user"),
        ("x" * 300, "cannot be opened: File name too long"),
    ],
)
def test_a_path_that_no_file_can_have_is_refused(target: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        resolve(target)


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("-dash", "dash-single1"),
        (".hidden", "hidden-single1"),
        ("two\nlines", "two-lines-single1"),
        ("a..b", "a.b-single1"),
        ("é" * 100, "é" * 72 + "-single1"),
        ("_", "_-single1"),
        ("☃", "run-single1"),
    ],
)
def test_a_name_that_no_one_chose_is_never_refused(folder: Path, stem: str, name: str) -> None:
    (folder / f"{stem}.py").write_text("print(1)\n")
    made = wb.request(f"./{stem}.py", cpu=True, processes=1, store=folder / "runs")
    assert made.name == name
    again = wb.request(f"./{stem}.py", cpu=True, processes=1, name=name, store=folder / "runs")
    assert again.name == name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((word for word in ("--lr", 1)), ["--lr", "1"]),
        (range(2), ["0", "1"]),
        (["$$x", "\udcff"], ["$$x", "\udcff"]),
    ],
)
def test_arguments_are_taken_from_whatever_gives_them(arguments: Any, words: list[str]) -> None:
    assert as_script_words(arguments) == words


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"lr": 1}, "are a list of words"),
        ({"--lr"}, "are a list of words"),
        (5, "are a list of words"),
        (["a\0b"], "holds a zero byte"),
        (["\ud800"], "is not valid UTF-8"),
    ],
)
def test_arguments_that_no_process_can_get_are_refused(arguments: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        as_script_words(arguments)


@pytest.mark.parametrize(
    ("keywords", "name", "held"),
    [
        ({"devices": [0, 1]}, "devices", ("0", "1")),
        ({"devices": "0,1"}, "devices", ("0", "1")),
        ({"trackers": "tensorboard"}, "trackers", ("tensorboard",)),
        ({"notify": "none"}, "notify", ("none",)),
        (
            {"environment": {"SEED": 1, "HOME": Path("/h")}},
            "environment",
            {"SEED": "1", "HOME": "/h"},
        ),
        ({"nodes": None}, "nodes", 1),
        ({"port": None}, "port", 0),
    ],
)
def test_a_keyword_is_held_as_it_was_meant(keywords: Any, name: str, held: object) -> None:
    assert getattr(LaunchOptions.from_keywords(keywords), name) == held


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"nodes": "2"}, "The number of nodes must be a whole number, not '2'"),
        ({"nodes": 1.5}, "The number of nodes must be a whole number, not 1.5"),
        ({"port": 1.5}, "port must be a whole number, not 1.5"),
        ({"port": True}, "port must be a whole number, not True"),
        ({"priority": 101}, "priority can be at most 100, not 101"),
        ({"cpu": "no"}, "cpu must be True or False, not 'no'"),
        ({"capture": 0}, "capture must be True or False, not 0"),
        ({"name": 1}, "name must be a text, not 1"),
        ({"devices": 0}, "devices must be several values"),
        ({"environment": {"A": None}}, "The variable 'A' is None"),
        ({"environment": {"A": "a\0b"}}, "The variable 'A' is"),
        ({"environment": {1: "2"}}, "The variable 1 is '2'"),
        ({"environment": ["A=1"]}, "are a dict of names and texts"),
    ],
)
def test_a_keyword_of_another_kind_is_refused(keywords: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        LaunchOptions.from_keywords(keywords)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("is_each", [True, False])
def test_a_script_decides_itself_when_gradients_are_reduced(
    folder: Path, strategy: str, *, is_each: bool
) -> None:
    """Nothing in a config file of Accelerate says it, so the launch must not promise it."""
    (folder / "train.py").write_text("import accelerate\n")
    options = {"sync_every_micro_batch": is_each}
    for target in ("train.py", "vision"):
        with pytest.raises(UsageError, match="sync_each_batch"):
            wb.request(target, cpu=True, strategy=strategy, processes=2, options=options)
    made = wb.request("gpt", cpu=True, strategy=strategy, processes=2, options=options)
    assert "--sync-gradients" in made.arguments

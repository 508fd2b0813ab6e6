"""A notebook or a shell script where a Python script is meant: refused with what to give instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import workbench as wb
from workbench.engines.exporting import export
from workbench.engines.jobs import job_from_request
from workbench.launching.prepare.targets import resolve

NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize("name", ["my train.ipynb", "notebook.py"])
def test_a_notebook_is_refused_with_the_command_that_makes_a_script_of_it(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text(json.dumps(NOTEBOOK))
    expected = r"is a notebook, not a Python script\. .*`jupyter nbconvert --to script '?/.*`, and"
    for refused in (
        lambda: resolve(str(path)),
        lambda: wb.measure(str(path)),
        lambda: export(job_from_request(str(path)), "torchrun"),
    ):
        with pytest.raises(wb.UsageError, match=expected):
            refused()


@pytest.mark.parametrize(
    ("name", "text", "instead"),
    [
        ("s.sh", "torchrun --nproc_per_node 4 src/sft.py --bf16\n", r"give src/sft\.py, with"),
        ("s.slurm", "srun python -m mine.train --lr 1\n", r"give -m mine\.train, with"),
        ("start", "#!/usr/bin/env bash\nmake\n", r"give the Python script that it starts"),
        ("open.sh", "python 'x.py\n", r"give the Python script that it starts"),
    ],
)
def test_a_shell_script_is_refused_with_the_script_that_it_starts(
    tmp_path: Path, name: str, text: str, instead: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(wb.UsageError, match=rf"is a shell script.* {instead}"):
        resolve(str(tmp_path / name))


def test_a_word_that_is_no_recipe_is_shown_those_of_the_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(wb.UsageError) as refused:
        resolve("nosuch")
    assert str(refused.value).endswith(f"Recipes: {', '.join(wb.recipes.recipes())}.")
    (tmp_path / "train_gpt.py").touch()
    with pytest.raises(wb.UsageError, match=r"Did you mean train_gpt\.py\? Recipes: "):
        resolve("train")
    with pytest.raises(wb.UsageError, match=r"No script 'trian_gpt\.py' in .*train_gpt\.py\?$"):
        resolve("trian_gpt.py")

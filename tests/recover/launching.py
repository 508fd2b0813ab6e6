"""Starts a script on CPU ranks under a strategy, with Accelerate's launcher and nothing of ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import workbench as wb
from tests.launch.ranks import run_warm
from workbench.launching.prepare import accelerate_config
from workbench.launching.start.warm_server import warm_part
from workbench.recipes import recipes


def argv(script: Path, arguments: list[str], strategy: str, ranks: int, folder: Path) -> list[str]:
    """The launcher's command; its config files go into `folder`."""
    plan, recipe = wb.Strategy.parse(strategy, ranks), recipes()["gpt"]
    texts = accelerate_config.files(plan, "cpu", recipe.block, folder=folder, splits=recipe.splits)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return accelerate_config.command(
        *(folder, script, arguments),
        strategy=plan,
        device="cpu",
        threads=1,
        port=0,
        splits=recipe.splits,
    )


def environment(**more: str) -> dict[str, str]:
    """For CPU ranks."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **accelerate_config.environment("cpu"), **own, **more}


def run(
    script: Path, arguments: list[str], strategy: str, ranks: int, folder: Path
) -> subprocess.CompletedProcess[str]:
    """To the end, warm; stdout and stderr are one text."""
    folder.mkdir(exist_ok=True, parents=True)
    warm = warm_part(
        script,
        1,
        strategy=wb.Strategy.parse(strategy, ranks),
        splits=recipes()["gpt"].splits,
        device="cpu",
    )
    command = argv(script, arguments, strategy, ranks, folder)
    return run_warm(command, folder, environment(), warm["modules"])

"""Threads that read Python source at the same time."""

from __future__ import annotations

import ast
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.store import python_source
from workbench.store.python_source import parse_python

SOURCE = "def function(first, second=(1, 2)):\n    return [first + second[0], {second: -1}]\n" * 40


@pytest.fixture
def collecting_often() -> Iterator[None]:
    """The garbage collector runs all the time, and lets other threads run then."""
    before = gc.get_threshold()

    def let_others_run(*_: object) -> None:
        time.sleep(0.0001)

    gc.callbacks.append(let_others_run)
    gc.set_threshold(50, 2, 2)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(let_others_run)


@pytest.mark.usefixtures("collecting_often")
def test_threads_do_not_disturb_each_others_trees() -> None:
    ready = threading.Barrier(3)

    def statements(_: int) -> int:
        ready.wait(240)
        return sum(len(parse_python(SOURCE).body) for _ in range(2))

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(statements, range(3))) == [80, 80, 80]


def test_a_launch_parses_its_script_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Syntax, trainer, options, TensorFlow, spawned ranks: each looks at the same tree."""
    pytest.importorskip("accelerate", reason="the train extra is not installed")
    parsed: list[str] = []
    parse = ast.parse

    def counted(source: Any, *arguments: Any, **more: Any) -> ast.Module:
        if source == script.read_bytes():
            parsed.append(str(script))
        return parse(source, *arguments, **more)

    monkeypatch.setattr(python_source.ast, "parse", counted)
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    for _ in range(2):
        request = wb.request(script, ["--steps", "3"], processes=2, cpu=True, store=tmp_path)
    assert request.trainer is not None
    assert parsed == [str(script)]
    script.write_text("import trl\nimport torch\n")
    request = wb.request(script, processes=2, cpu=True, store=tmp_path)
    assert "trl" in request.trainer.label.lower()
    assert parsed == [str(script)] * 2

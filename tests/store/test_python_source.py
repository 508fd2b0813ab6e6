"""Threads that read Python source at the same time."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

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
        ready.wait(60)
        return sum(len(parse_python(SOURCE).body) for _ in range(2))

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(statements, range(3))) == [80, 80, 80]

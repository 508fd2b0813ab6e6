"""A pod for a test, and the machine as it was after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pod.place import Placed, forget, place
from workbench.rehearsing.driver.pod import Pod


@pytest.fixture
def put(tmp_path: Path) -> Iterator[Callable[[Pod], Placed]]:
    """Puts a pod in place for this process and what it starts, until the test is over."""
    with pytest.MonkeyPatch.context() as patch:
        count = 0

        def one(pod: Pod) -> Placed:
            nonlocal count
            count += 1
            return place(pod, tmp_path / f"pod{count}", patch)

        yield one
    while asking := [one for one in threading.enumerate() if one.name == "asks the driver"]:
        for thread in asking:  # a call that hangs ends with the pod
            if thread.is_alive():
                thread.join()
            else:  # it has been made, and begins in a moment
                time.sleep(0.01)
    forget()

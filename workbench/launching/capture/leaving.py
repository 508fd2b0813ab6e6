"""A script leaves its process group: what it has recorded is written, and gloo's threads rest.

Torch waits for gloo's threads when a group's last owner goes. Where that is a DDP model that a
function frees after `destroy_process_group`, it holds the interpreter meanwhile; a thread that
still frees its last collective wants it, and the rank never ends (torch 2.13, one exit of twenty
where steps take milliseconds: pytorch#56297). So this thread lets them come to rest first.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import Any

from .pulse import ENDED
from .recorder import Recorder

_GLOO = b"pt_gloo_runloop"[:15]  # the kernel keeps 15 letters of a thread's name
_LOOK_SECONDS = 0.005
_MOST_SECONDS = 1.0


def patch(recorder: Recorder, module: Any) -> None:
    """torch.distributed.distributed_c10d."""
    destroy = module.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        mine = os.getpid() == recorder.owner
        if mine:
            with contextlib.suppress(Exception):
                recorder.flush()
                let_gloo_rest()
        result = destroy(*args, **kwargs)
        if mine:
            with contextlib.suppress(Exception):
                if not module.is_initialized():
                    recorder.pulse.beat(ENDED, recorder.steps)
        return result

    module.destroy_process_group = destroy_process_group


def let_gloo_rest() -> None:
    """Leave the interpreter to gloo's threads until each of them waits for work."""
    deadline, before = time.monotonic() + _MOST_SECONDS, None
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        seen = _gloo_threads()
        if seen == before and all(state == b"S" for state, _ in seen):
            return
        before = seen


def _gloo_threads() -> list[tuple[bytes, bytes]]:
    """The state of each, and how often it came to a core."""
    states: list[tuple[bytes, bytes]] = []
    with contextlib.suppress(OSError), os.scandir("/proc/self/task") as threads:
        for thread in threads:
            with open(f"{thread.path}/stat", "rb") as file:
                name, _, fields = file.read().partition(b"(")[2].rpartition(b")")
            if name == _GLOO:
                with open(f"{thread.path}/schedstat", "rb") as file:
                    states.append((fields.split()[0], file.read().split()[2]))
    return states

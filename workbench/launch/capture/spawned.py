"""Processes that the script of a single rank starts itself: the one that trains is recorded.

`mp.spawn` and its like start a new Python, which loads the hook and learns that the run has its
rank already. It becomes the recorder once it leads a process group, or, without a group, once it
makes an optimizer step; the others of its group stay unrecorded. A fork has the patches of its
parent, whose recorder is not its own: it only leaves a note that there is a training.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable
from typing import Any

ALONE = "WORKBENCH_ALONE"  # set by the only rank of a run for the processes that it starts
_UNOBSERVED = "unobserved"
_noted: set[int] = set()


def watch(claim: str, become: Callable[[int | None, str | None], None]) -> dict[str, Any]:
    """Actions for torch's modules: `become` is called, with the group's size, in one process."""
    state = _Candidate(claim, become)
    return {
        "torch.distributed.distributed_c10d": state.patch_group,
        "torch.optim.optimizer": state.patch_optimizer,
    }


def note_unobserved(folder: str) -> None:
    """A forked process makes optimizer steps that nobody counts; said once a process."""
    if os.getpid() not in _noted:
        _noted.add(os.getpid())
        with contextlib.suppress(OSError):
            open(os.path.join(folder, "metrics", _UNOBSERVED), "a").close()


class _Candidate:
    """A process that may turn out to be the one that trains."""

    def __init__(self, claim: str, become: Callable[[int | None, str | None], None]) -> None:
        self._claim = claim
        self._become = become
        self._owner = os.getpid()
        self._decided = False

    def patch_group(self, module: Any) -> None:
        create = module.init_process_group

        @functools.wraps(create)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = create(*args, **kwargs)
            with contextlib.suppress(Exception):
                size, backend = module.get_world_size(), str(module.get_backend())
                self._decide(size, backend, leads=module.get_rank() == 0)
            return result

        module.init_process_group = init_process_group

    def patch_optimizer(self, module: Any) -> None:
        def after_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not self._decided:
                with contextlib.suppress(Exception):
                    self._decide(None, None, leads=True)

        module.register_optimizer_step_post_hook(after_step)

    def _parent_trains(self) -> bool:
        """Whether the rank has written steps of its own since it started: then it is recorded."""
        rank = os.path.join(os.path.dirname(self._claim), "rank-0")
        with contextlib.suppress(OSError, ValueError, KeyError):
            with open(f"{rank}.start.json", encoding="utf-8") as file:
                begun = float(json.load(file)["time"])
            return os.stat(f"{rank}.jsonl").st_mtime > begun
        return False

    def _decide(self, size: int | None, backend: str | None, *, leads: bool) -> None:
        if self._decided or os.getpid() != self._owner:
            return
        self._decided = True
        if leads and not self._parent_trains():
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                self._become(size, backend)

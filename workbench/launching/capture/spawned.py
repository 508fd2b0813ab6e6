"""Processes that the script of a single rank starts itself: each is recorded as the rank it is.

`mp.spawn` and its like start a new Python, which loads the hook and learns that the run has its
rank already. It becomes a recorder of its own once it joins a process group, under its rank there;
without a group, once it makes an optimizer step. A fork has the patches of its parent, whose
recorder it takes over with the same group. One that trains without a group only leaves a note.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

from . import ends
from .control_requests import ControlRequests
from .recorder import Recorder
from .starts import first_step, identity, write_start
from .writers import redirect_output

_UNOBSERVED = "unobserved"
_STARTS = "starts-ranks"  # store.record.starts_ranks reads it
_noted: set[int] = set()
Become = Callable[[int, int | None, str | None], None]
"""Called with the rank, and with the size and the backend of its group."""


def watch(folder: str, parent: int, become: Become) -> dict[str, Any]:
    """Actions for torch's modules: `become` is called when this process turns out to train."""
    state = _Candidate(folder, parent, become)
    return {
        "torch.distributed.distributed_c10d": state.patch_group,
        "torch.optim.optimizer": state.patch_optimizer,
    }


def record(
    recorder: Recorder, code: Mapping[str, Any], size: int | None, backend: str | None
) -> None:
    """Record this process as the rank of `recorder`, in place of the one that started it."""
    recorder.obeys_stops = False  # it may be in the midst of what its parent waits for
    if recorder.rank == 0:  # whose start the parent has written
        start = first_step()
        recorder.note(process=identity(), spawned=True, attempt_first_step=start)
    else:
        redirect_output(os.path.join(recorder.folder, "logs", f"rank-{recorder.rank}.log"))
        write_start(recorder.folder, recorder.rank, code, spawned=True)
    if size is not None and backend is not None:
        recorder.group_ready(size, backend)
    ControlRequests(recorder.folder, recorder.rank, recorder).listen()
    ends.record_spawned_end(recorder, code)


def watch_group(folder: str, parent: int) -> dict[str, Callable[[Any], None]]:
    """Actions for torch's modules in a process that one of several ranks started itself."""

    def patch(module: Any) -> None:
        create = module.init_process_group

        @functools.wraps(create)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            with waiting(folder, parent):
                return create(*args, **kwargs)

        module.init_process_group = init_process_group

    return {"torch.distributed.distributed_c10d": patch}


@contextlib.contextmanager
def waiting(folder: str, parent: int) -> Generator[None]:
    """Leave a note while this process, which the rank `parent` started, waits for a group.

    Each launched process starts as many, and they meet on one port: usually no one trains.
    """
    note = os.path.join(folder, "metrics", f"waits-{parent}-{os.getpid()}")
    for path in (note, os.path.join(folder, "metrics", _STARTS)):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(note)


def join_fork(recorder: Recorder, module: Any, code: Mapping[str, Any]) -> None:
    """This process is a fork of the only rank and has joined a group: it has a rank of its own."""
    parent, folder, rank = recorder.owner, recorder.folder, int(module.get_rank())
    if (
        not os.environ.get(ends.SINGLE_RANK_VARIABLE)
        or recorder.steps > first_step()
        or not _claimed(folder, rank, parent)
    ):
        return
    recorder.become(rank)
    record(recorder, code, int(module.get_world_size()), str(module.get_backend()))


def note_unobserved(folder: str) -> None:
    """A forked process makes optimizer steps that no one counts; said once a process."""
    if os.getpid() not in _noted:
        _noted.add(os.getpid())
        with contextlib.suppress(OSError):
            open(os.path.join(folder, "metrics", _UNOBSERVED), "a").close()


class _Candidate:
    """A process that may turn out to train."""

    def __init__(self, folder: str, parent: int, become: Become) -> None:
        self._folder, self._parent, self._become = folder, parent, become
        self._owner = os.getpid()
        self._decided = False

    def patch_group(self, module: Any) -> None:
        create = module.init_process_group

        @functools.wraps(create)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = create(*args, **kwargs)
            with contextlib.suppress(Exception):
                size, backend = module.get_world_size(), str(module.get_backend())
                self._decide(module.get_rank(), size, backend)
            return result

        module.init_process_group = init_process_group

    def patch_optimizer(self, module: Any) -> None:
        def after_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not self._decided:
                with contextlib.suppress(Exception):
                    self._decide(0, None, None)

        module.register_optimizer_step_post_hook(after_step)

    def _decide(self, rank: int, size: int | None, backend: str | None) -> None:
        if self._decided or os.getpid() != self._owner:
            return
        self._decided = True
        if not _trains(self._folder) and _claimed(self._folder, rank, self._parent):
            self._become(rank, size, backend)


def _claimed(folder: str, rank: int, parent: int) -> bool:
    """Whether this process is the first of its parent's that has the rank."""
    claim = os.path.join(folder, "metrics", f"rank-{rank}.spawned-{parent}")
    with contextlib.suppress(OSError):
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return True
    return False


def _trains(folder: str) -> bool:
    """Whether the run's rank has written steps of its own since it started: then it is recorded."""
    rank = os.path.join(folder, "metrics", "rank-0")
    with contextlib.suppress(OSError, ValueError, KeyError):
        with open(f"{rank}.start.json", encoding="utf-8") as file:
            start = json.load(file)
        return not start.get("spawned") and os.stat(f"{rank}.jsonl").st_mtime > start["time"]
    return False

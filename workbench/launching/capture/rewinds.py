"""Notices that the script goes back to a checkpoint of its own and makes steps a second time.

A script that catches an exception, or that torchelastic starts again, loads the state of step 40
after step 50. Whenever a state is saved, a fingerprint of the optimizer's parameters is written
down with its step. At the first backward pass after a state was loaded, the parameters are looked
up: those of an earlier step mean that the steps since then are done again.

Weights alone that come back under the same optimizer are not a rewind (a best model that is
evaluated, the inner loop of meta-learning), nor is a return to the very beginning: that is another
training. So is a new optimizer that begins to count at saved weights (a fine-tuning), and all that
start where one has started before without losing a step. A process that was started again is
believed: of its optimizer nothing may have been saved.
Nothing here is called in an ordinary step.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import earlier_attempts
from .graceful_stop import timed_save
from .writers import LineWriter, json_lines

_TENSORS, _VALUES = 16, 64  # that a fingerprint looks at
_MAX_MADE = 8  # optimizers built since the last step
_END_BYTES = 1 << 16


class Rewinds:
    """The states that this rank saved, and what was loaded since the last backward pass."""

    def __init__(self, recorder: Any, torch: Any, prefix: str) -> None:
        self._recorder, self._torch = recorder, torch
        self._folder = os.path.dirname(prefix)
        self._states = LineWriter(f"{prefix}.states.jsonl")
        self._file = f"{prefix}.rewinds.jsonl"
        self._noted: tuple[int, int] | None = None
        self._loaded: list[weakref.ref[Any]] = []
        self._made: collections.deque[weakref.ref[Any]] = collections.deque(maxlen=_MAX_MADE)
        self._file_read = False
        self._branches = set[int]()  # weights that a new optimizer started from, no step lost
        self._thread = threading.get_ident()
        self._began_at: int = recorder.steps
        self._process_before = _last_step(f"{prefix}.jsonl") if recorder.restarted else None
        self._earlier = self._process_before is None and earlier_attempts.has_states(self._folder)
        if self._process_before is not None or self._earlier:
            recorder.state_changed = True

    def saving(self, optimizer: Any) -> None:
        """The state of `optimizer`, or of its parameters, is being saved."""
        if optimizer is None or not self._mine():
            return
        here = (self._recorder.steps, id(optimizer))
        if here == self._noted:
            return
        self._noted = here
        self._recorder.flush_soon()  # a state that is saved may be resumed from
        weights, updates = fingerprint(self._torch, optimizer)
        if weights is not None:
            line = {"step": here[0], "weights": weights, "updates": updates, "time": time.time()}
            self._states.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def loaded(self, optimizer: Any) -> None:
        """A state was loaded into `optimizer`."""
        if self._mine():
            self._loaded.append(weakref.ref(optimizer))
            self._recorder.state_changed = True

    def made(self, optimizer: Any) -> None:
        """An optimizer was built."""
        if self._mine():
            self._recorder.has_optimizer = True
            self._made.append(weakref.ref(optimizer))

    def file_read(self) -> None:
        """Something was read that may be a checkpoint."""
        if self._mine():
            self._file_read = self._recorder.state_changed = True

    def settle(self) -> int | None:
        """The step at which the training stands now; None when nothing reports an earlier one."""
        again, self._process_before = self._process_before, None
        first, self._earlier = self._earlier, False
        loaded, made = _alive(self._loaded), list[Any]()
        if self._file_read or first or again is not None:
            made = _alive(self._made)
        self._loaded, self._file_read = [], False
        self._made.clear()
        step = self._step_of(loaded, made, restarted=first or again is not None)
        if first and (step is None or step > self._began_at):  # another rank may have gone on
            self._go_on(loaded + made)
            return None
        if again is not None and again > self._recorder.steps:
            self._recorder.rewound_from = again
            return self._recorder.steps if step is None else step
        return None if step == self._began_at else step

    def _step_of(self, loaded: list[Any], made: list[Any], *, restarted: bool) -> int | None:
        """The step of the saved state that one of them has now: `loaded` ones, or else `made` ones.

        None also for a training of its own that starts from a saved state.
        """
        states = list(self._known_states()) if loaded or made else []
        for optimizer in (*loaded, *made):
            weights, updates = fingerprint(self._torch, optimizer)
            for step, saved_weights, saved_updates in reversed(states):
                if weights != saved_weights or weights is None:
                    continue
                if updates == saved_updates or (restarted and updates is None):
                    is_resumed = restarted or any(optimizer is candidate for candidate in loaded)
                    return step if is_resumed or not self._branches_off(step, weights) else None
        return None

    def _go_on(self, optimizers: list[Any]) -> None:
        """Count on from the state that an earlier attempt saved, if one of them has it."""
        states = list(earlier_attempts.states(self._folder)) if optimizers else []
        for optimizer in optimizers:
            weights, updates = fingerprint(self._torch, optimizer)
            for attempt, line in states if weights is not None else ():
                same = line.get("weights") == weights and updates in {None, line.get("updates")}
                step = line.get("step")
                if same and type(step) is int and step > self._began_at:
                    self._began_at = step
                    earlier_attempts.go_on(self._recorder, attempt, step)
                    return

    def _branches_off(self, step: int, weights: int) -> bool:
        """Whether a new optimizer without a state starts a training of its own at `weights`."""
        if step == self._recorder.steps and self._recorder.rewound_from is None:
            self._branches.add(weights)
        return weights in self._branches

    def _known_states(self) -> Iterator[tuple[int, int, int | None]]:
        """Saved by any rank: of replicas often rank 0 alone saves."""
        for name in sorted(os.listdir(self._folder)):
            if name.startswith("rank-") and name.endswith(".states.jsonl"):
                for line in json_lines(os.path.join(self._folder, name)):
                    with contextlib.suppress(KeyError, TypeError):
                        yield line["step"], line["weights"], line["updates"]

    def note(self, line: dict[str, Any], furthest: int) -> None:
        """Mark `line` as the first step of those done again, up to `furthest`.

        Readers of the lines before it need to know of it.
        """
        line["rewound_from"] = furthest
        note = {"step": line["step"], "rewound_from": furthest, "time": line["time"]}
        writer = LineWriter(self._file)
        writer.write(json.dumps(note, separators=(",", ":")).encode() + b"\n")
        writer.close()

    def _mine(self) -> bool:
        recorder = self._recorder
        return threading.get_ident() == self._thread and os.getpid() == recorder.owner


def _alive(optimizers: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [optimizer for ref in optimizers if (optimizer := ref()) is not None]


def fingerprint(torch: Any, optimizer: Any) -> tuple[int | None, int | None]:
    """Of the parameters' values on this rank, and how many updates the optimizer itself counts."""
    engine_steps = getattr(optimizer, "global_steps", None)  # DeepSpeed counts for all its parts
    if isinstance(engine_steps, int):
        return -1, engine_steps
    groups = optimizer.param_groups
    trained = [weight for group in groups for weight in group["params"] if weight.requires_grad]
    chosen = trained[:: max(1, len(trained) // _TENSORS)]
    spread = [_spread(weight) for weight in chosen if weight.numel() > 0]
    if not spread:
        return None, None
    values = torch.cat([part.to(spread[0].device) for part in spread]).tolist()
    return zlib.crc32(repr(values).encode()), _updates(optimizer)


def _spread(parameter: Any) -> Any:
    """Some values of this rank's part of a parameter, over all of it."""
    local = parameter.detach()
    flat = getattr(local, "_local_tensor", local).reshape(-1)
    return flat[:: max(1, flat.numel() // _VALUES)][:_VALUES].double()


def _updates(optimizer: Any) -> int | None:
    """Adam and its like count their updates for the bias correction."""
    for state in optimizer.state.values():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return int(state["step"])
    return None


def _last_step(path: str) -> int | None:
    """The last step in a metric file."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _END_BYTES))
        for text in reversed(file.read().splitlines()):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return int(json.loads(text)["step"])
    return None


def patch(recorder: Any, torch: Any) -> None:
    """torch: what saves and loads states, and what builds optimizers."""
    rewinds = functools.partial(_rewinds, recorder, torch)
    rewinds()
    owner = torch.optim.Optimizer
    owner.state_dict = _before(owner.state_dict, lambda optimizer: rewinds().saving(optimizer))
    owner.load_state_dict = _after(
        owner.load_state_dict, lambda optimizer: rewinds().loaded(optimizer)
    )
    owner.__init__ = _after(owner.__init__, lambda optimizer: rewinds().made(optimizer))
    save = timed_save(recorder, torch.save)
    torch.save = _before(save, lambda _content: rewinds().saving(recorder.lead()))
    torch.load = _after(torch.load, lambda _file: rewinds().file_read())


def patch_engine(recorder: Any, owner: Any) -> None:
    """DeepSpeed's engine, which saves and loads its parts in files of its own."""
    rewinds = functools.partial(_rewinds, recorder, sys.modules["torch"])
    owner.save_checkpoint = _before(owner.save_checkpoint, lambda engine: rewinds().saving(engine))
    owner.load_checkpoint = _after(owner.load_checkpoint, lambda engine: rewinds().loaded(engine))


def _rewinds(recorder: Any, torch: Any) -> Rewinds:
    """The recorder's; a fork that became a rank of its own has none yet."""
    if recorder.rewinds is None:
        prefix = os.path.join(recorder.folder, "metrics", f"rank-{recorder.rank}")
        recorder.rewinds = Rewinds(recorder, torch, prefix)
    return recorder.rewinds


def _before(function: Callable[..., Any], callback: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            callback(args[0] if args else None)
        return function(*args, **kwargs)

    return wrapper


def _after(function: Callable[..., Any], callback: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        with contextlib.suppress(Exception):
            callback(args[0] if args else None)
        return result

    return wrapper

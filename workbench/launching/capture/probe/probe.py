"""What a measured rank does at each of its steps; see the package."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer

from ..core_time import queued_seconds  # noqa: TID252  (the hook is loaded by its path)
from ..writers import write_json  # noqa: TID252  (the hook is loaded by its path)
from .ledger import Ledger
from .loaders import Fetches
from .modules import Calls
from .record import (
    account,
    facts_of_optimizers,
    facts_of_parameters,
    imported_files,
    states_of,
)

TIMED = 10
"""Steps that are timed after the traced one, within the seconds given; one in any case."""
_MOST = 30  # steps: a script saves and evaluates after more
_OF_ONE_THREAD = 5  # steps


_IN_BACKWARD = (
    "its optimizers step inside the backward pass (hooks on the parameters), which is not traced. "
    "Measure it with the optimizer's step after backward(): that needs the gradients of all "
    "parameters at once, and else the same memory"
)


class _UntracedError(Exception):
    """A script whose step is not measured; its text says why."""


class Probe:
    """One rank's probe; the recorder calls it at the end of every step."""

    path = None  # of a profiler's trace: none is made

    def __init__(self, recorder: Any, *, seconds: float, quiet: float) -> None:
        """`quiet`: share of a step for which its threads may wait for a core, where it counts."""
        self._recorder, self._seconds, self._quiet_share = recorder, seconds, quiet
        self._steps = 0
        self._record: dict[str, Any] = {
            "traced": False,
            "threads": torch.get_num_threads(),
            "step_seconds": [],
            "queued_seconds": [],  # of all threads together
            "one_thread_seconds": [],  # without the waiting for a core
        }
        self._open: _Open | None = None
        self._ended_at = 0.0
        self._queued: float | None = None
        self._on_core = 0.0
        self._quiet = 0
        self._written = self._done = False
        self._folder = os.path.join(recorder.folder, "measured")
        self._last: int | None = None  # step of rank 0, after which all leave

    def step_ended(self, _line: dict[str, Any]) -> None:
        """An optimizer step ended. Raises SystemExit, to leave the script, when enough is known."""
        self._steps += 1
        if not self._done:
            try:
                self._done = self._advance(time.perf_counter())
            except _UntracedError as error:
                self._record["error"], self._done = str(error), True
            except Exception as error:
                self._record["error"], self._done = f"{type(error).__name__}: {error}", True
        if self._done:
            self._write()
        if self._may_leave():
            self._write()
            self._leave()
        self._queued, self._on_core = queued_seconds(), time.thread_time()
        self._ended_at = time.perf_counter()

    def _advance(self, now: float) -> bool:
        """Do what is due after this step; whether it was the last one."""
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            raise _UntracedError(_IN_BACKWARD)
        if self._open is not None:
            opened, self._open = self._open, None
            self._record |= opened.close()
            self._record |= {"traced": True, "traced_seconds": now - self._ended_at}
            return False
        if not self._record["traced"]:
            self._open = _Open()
            return False
        _synchronize()
        seconds = time.perf_counter() - self._ended_at
        queued = queued_seconds()
        waited = 0.0 if queued is None or self._queued is None else queued - self._queued
        return self._timed(seconds, waited)

    def _may_leave(self) -> bool:
        """Whether this rank leaves now: it has measured, and no other rank waits for it.

        Of several ranks, which one script started, rank 0 is the one that counts. It names the
        step after the one in which it was done. A rank that made that step has met rank 0 in it,
        so they all know by then, and none begins another one without the others.
        """
        if (self._recorder.world_size or 1) == 1:
            return self._done
        path = os.path.join(self._folder, "last-step")
        if self._recorder.rank == 0 and self._done and self._last is None:
            self._last = self._steps + 1
            os.makedirs(self._folder, exist_ok=True)
            write_json(path, {"step": self._last})
        elif self._recorder.rank > 0 and self._last is None:
            with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
                self._last = int(json.load(file)["step"])
        return self._last is not None and self._steps >= self._last

    def _timed(self, seconds: float, waited: float) -> bool:
        """Note how long a step took; whether it was the last one.

        Threads of a step wait for one another, and burn the time of those cores that they have:
        where no step was undisturbed, a few are made with one thread, whose waiting is its own.
        """
        samples: list[float] = self._record["one_thread_seconds"]
        if torch.get_num_threads() == 1 and self._record["threads"] > 1:
            own = time.thread_time() - self._on_core
            samples.append(max(own, seconds - waited))  # other threads may have waited meanwhile
            return len(samples) >= _OF_ONE_THREAD or sum(samples) >= self._seconds
        times: list[float] = self._record["step_seconds"]
        times.append(seconds)
        self._record["queued_seconds"].append(waited)
        self._quiet += waited <= self._quiet_share * seconds
        if self._quiet < TIMED and len(times) < _MOST and sum(times) < self._seconds:
            return False
        if self._quiet or self._record["device"] != "cpu" or self._record["threads"] == 1:
            return True
        torch.set_num_threads(1)
        return False

    def finish(self) -> None:
        """The rank ends, by itself or by `_leave`."""
        if self._open is not None:
            self._open.abandon()
            self._open = None
        self._write()

    def _write(self) -> None:
        if self._written:
            return
        self._written = True
        recorder = self._recorder
        record = self._record | {
            "steps": self._steps,
            "torch": torch.__version__,
        }
        main = getattr(sys.modules["__main__"], "__file__", None)  # of a module, a spawned rank
        record["files"] = imported_files(recorder.code.get("script") or main)
        os.makedirs(self._folder, exist_ok=True)
        write_json(os.path.join(self._folder, f"rank-{recorder.rank}.json"), record)

    def _leave(self) -> None:
        """End the script as its own ``sys.exit`` would; one that continues is ended."""
        if self._record.get("left"):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        self._record["left"] = True
        print("\nworkbench: measured; the script ends here", flush=True)  # noqa: T201
        raise SystemExit(0)


class _Open:
    """The traced step while it runs: what is watched from one step's end to the next."""

    def __init__(self) -> None:
        trained = list(_trained(list(_living(Optimizer))))
        if not trained:
            raise RuntimeError("no optimizer with parameters was found")
        self._ledger = ledger = Ledger(trained[0].device)
        self._baseline()
        self._calls = Calls(ledger)
        # On the optimizers themselves: the hooks of all of them are being iterated right now.
        self._handles = [
            handle
            for optimizer in _living(Optimizer)
            if "_optimizer_step_pre_hooks" in vars(optimizer)  # a wrapper around another has none
            for handle in (
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            )
        ]
        self._stepped: dict[int, Optimizer] = {}
        self._updated: dict[int, torch.Tensor] = {}  # an optimizer may hold frozen weights too
        self._fetches = Fetches(ledger)
        self._saved: Any = saved_tensors_hooks(ledger.pack, lambda packed: packed)
        self._saved.__enter__()
        ledger.__enter__()

    def _baseline(self) -> None:
        """What lives between two steps."""
        ledger = self._ledger
        modules, optimizers = list(_living(nn.Module)), list(_living(Optimizer))
        weights = [weight for module in modules for weight in module.parameters(recurse=False)]
        ledger.keep((*weights, *_trained(optimizers)), "parameter")
        ledger.keep(
            (buffer for module in modules for buffer in module.buffers(recurse=False)), "buffer"
        )
        gradients = (weight.grad for weight in weights)
        ledger.keep((gradient for gradient in gradients if gradient is not None), "gradient")
        ledger.keep(
            (tensor for optimizer in optimizers for tensor in states_of(optimizer)), "state"
        )

    def _before_step(self, stepping: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._stepped[id(stepping)] = stepping
        self._ledger.in_step += 1
        updated = [weight for weight in _trained([stepping]) if weight.grad is not None]
        self._updated |= {id(weight): weight for weight in updated}
        gradients = (weight.grad for weight in updated)
        self._ledger.mark((gradient for gradient in gradients if gradient is not None), "gradient")

    def _after_step(self, stepping: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._ledger.in_step = max(0, self._ledger.in_step - 1)
        self._ledger.mark(states_of(stepping), "state")

    def abandon(self) -> None:
        """Stop watching."""
        closed: Any = self._ledger
        closed.__exit__(None, None, None)
        self._saved.__exit__()
        self._fetches.close()
        self._calls.close()
        for handle in self._handles:
            handle.remove()

    def close(self) -> dict[str, Any]:
        """Stop watching, and say what was seen."""
        self.abandon()
        stepped, roots = list(self._stepped.values()), self._calls.outermost()
        with_state = (weight for optimizer in stepped for weight in optimizer.state)
        self._updated |= {id(weight): weight for weight in with_state}
        trained = [weight for weight in _trained(stepped) if id(weight) in self._updated]
        return {
            "device": _device_name(self._ledger.device),
            "roots": [self._calls.tree(root) for root in roots],
            "inputs": [self._calls.roots[root] for root in roots],
            "calls": [self._calls.counts.get(root, 0) for root in roots],
            "autocast": self._calls.autocast,
            "loader_batch": self._fetches.batch_size,
            "short_batch": self._fetches.short,
            **facts_of_parameters(trained, roots),
            "optimizers": facts_of_optimizers(stepped, trained),
            **account(self._ledger),
        }


def _living(kind: type) -> Iterator[Any]:
    """Every object of that class in this process."""
    return (item for item in gc.get_objects() if issubclass(type(item), kind))


def _trained(optimizers: list[Optimizer]) -> Iterator[torch.Tensor]:
    seen: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if id(weight) not in seen:
                    seen.add(id(weight))
                    yield weight


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()

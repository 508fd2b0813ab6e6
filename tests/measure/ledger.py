"""The peak of live storages of a script, by a ledger that shares nothing with the probe.

``python -m tests.measure.ledger OUT STEPS SCRIPT ARGS...`` runs the script under a dispatch mode.
At every operator it adds up the present size of all storages that any operator has read or made and
that still live (FSDP resizes its own without an operator). The peak counts from the end of the
second optimizer step on; after STEPS steps the script is left, and the peak is written to OUT.

``python -m tests.measure.ledger --bare OUT STEPS SCRIPT ARGS...`` only times the steps.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import runpy
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves


class Ledger(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, Any] = {}
        self.counting = False
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if is_traceable_wrapper_subclass(leaf):
                continue  # a DTensor: it has no memory, its local tensor passes by itself
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                key = storage._cdata
                known = self.living.get(key)
                if known is None or known() is None:
                    self.living[key] = weakref.ref(storage)
        if self.counting:
            self.peak = max(self.peak, self.total())
        return result

    def total(self) -> int:
        dead, total = [], 0
        for key, reference in self.living.items():
            storage = reference()
            if storage is None:
                dead.append(key)
            else:
                total += storage.nbytes()
        for key in dead:
            del self.living[key]
        return total


def main() -> None:
    bare = sys.argv[1] == "--bare"
    out, steps, script, *arguments = sys.argv[1 + bare :]
    if "ACCELERATE_USE_FSDP" in os.environ:
        from workbench.launching.prepare.cpu_ranks import act_as_accelerator

        act_as_accelerator()
    ledger, ends = Ledger(), list[float]()
    lead: list[int] = []

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        lead.append(id(optimizer))
        if id(optimizer) != lead[0]:
            return
        ends.append(time.perf_counter())
        ledger.counting = len(ends) >= 2
        if len(ends) >= int(steps):
            rank = os.environ.get("RANK", "0")
            seconds = [after - before for before, after in itertools.pairwise(ends)]
            document = {"peak": ledger.peak, "seconds": seconds}
            Path(f"{out}-{rank}.json").write_text(json.dumps(document))
            sys.stdout.flush()
            os._exit(0)

    register_optimizer_step_post_hook(after_step)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    with contextlib.nullcontext() if bare else ledger:
        runpy.run_path(script, run_name="__main__")
    raise SystemExit(f"{script} ended after {len(ends)} steps")


if __name__ == "__main__":
    main()

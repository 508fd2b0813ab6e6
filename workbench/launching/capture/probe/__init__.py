"""The probe of ``workbench measure``: one step of an unmodified script, storage by storage.

Loaded only in a run that was started to be measured (`VARIABLE` is set), so that the hook of a
normal run does nothing more per step than before. Standard library and torch only, as all of the
hook. What happens step by step:

1. The first optimizer step warms up: lazy layers get their shapes, the optimizer its states.
2. The second runs under a dispatch mode (`ledger`). It keeps the birth and the death of every
   storage, counted in operators, and what a reader needs to know which of them are gradients, saved
   for backward, inputs; per operator its FLOPs and the bytes that it moves.
3. The following ones run without it and are timed: one at least, more where steps are short
   or other processes take the cores.

Then the record is written as ``measured/rank-N.json`` of the run, and the script is left by
SystemExit, so that its own clean-up runs. A second run at another batch size (`loaders`) tells what
grows with the batch and what does not; `workbench.measuring` puts the two together.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from .. import patches  # noqa: TID252  (the hook is loaded by its path, under another name)
from . import loaders

VARIABLE = "WORKBENCH_MEASURE"
"""JSON: {"batch": [from, to] | null, "seconds": of timed steps, "quiet": see `probe.Probe`}"""


def arm(recorder: Any) -> None:
    """Measure this rank once it trains, with another batch size if one is asked for."""
    request = json.loads(os.environ[VARIABLE])
    recorder.tracer = _Later(recorder, float(request["seconds"]), float(request["quiet"]))
    patches.when_imported({"torch.nn.parallel.distributed": _leave_out_exchange})
    batch = request.get("batch")
    if batch:
        patches.when_imported(loaders.actions(int(batch[0]), int(batch[1])))


def _leave_out_exchange(module: Any) -> None:
    """DDP of one rank copies its gradients into buckets: an estimate adds those itself."""
    owner = module.DistributedDataParallel
    construct = owner.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        self.require_backward_grad_sync = False  # as in no_sync()

    owner.__init__ = init


class _Later:
    """Stands for the probe until the first step: the script has imported torch by then."""

    path = None  # of a profiler's trace: none is made

    def __init__(self, recorder: Any, seconds: float, quiet: float) -> None:
        self._recorder, self._seconds, self._quiet = recorder, seconds, quiet

    def step_ended(self, line: dict[str, Any]) -> None:
        """The first step ended."""
        from .probe import Probe  # noqa: PLC0415  (imports torch)

        self._recorder.tracer = Probe(self._recorder, seconds=self._seconds, quiet=self._quiet)
        self._recorder.tracer.step_ended(line)

    def finish(self) -> None:
        """The rank ended without a step: the run's outcome says so."""

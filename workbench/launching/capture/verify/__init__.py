"""The trace of ``workbench verify``: what each rank read, computed and changed in a few steps.

Loaded only in a run that was started to be verified (`VARIABLE` is set): the hook of a normal run
does nothing more. Standard library and torch only, as all of the hook. Per optimizer step it keeps
the samples that were read, losses, gradients before and after their exchange, weights after the
step, random states and learning rates; of tensors only a `sketch`, a few numbers that tell whether
two are equal, by how much they differ, and that add up over shards.

After the steps asked for, the trace is written as ``verify/rank-N.json`` of the run, and the script
is left by SystemExit, so that its own clean-up runs. `workbench.verifying` compares the traces.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
from typing import Any

from .. import patches  # noqa: TID252  (the hook is loaded by its path, under another name)

VARIABLE = "WORKBENCH_VERIFY"  # JSON: {"steps": int, "batch": [from, to] | null}
_FAR = 100_003  # between the seeds of two ranks


def arm(recorder: Any) -> None:
    """Trace this rank's steps; draw the same random numbers in every run of a script."""
    request = json.loads(os.environ[VARIABLE])
    watch = _Later(recorder, int(request.get("steps", 5)))
    recorder.tracer = watch
    seed = 20_240_601 + _FAR * recorder.rank  # of a script that sets none: rank 0 repeats itself
    random.seed(seed)

    def begin(torch: Any) -> None:
        torch.manual_seed(seed)
        watch.begin()

    def seed_numpy(numpy: Any) -> None:
        numpy.random.seed(seed % 2**32)

    patches.when_imported({"torch": begin, "numpy": seed_numpy})
    batch = request.get("batch")
    if batch:
        from ..probe import loaders  # noqa: PLC0415, TID252

        patches.when_imported(loaders.actions(int(batch[0]), int(batch[1])))


class _Later:
    """Stands for the trace until torch is imported."""

    path = None  # of a profiler's trace: none is made

    def __init__(self, recorder: Any, steps: int) -> None:
        self._recorder, self._steps = recorder, steps

    def begin(self) -> None:
        """The script has imported torch."""
        from .rank_trace import RankTrace  # noqa: PLC0415  (imports torch)

        self._recorder.tracer = RankTrace(self._recorder, self._steps)

    def step_ended(self, line: dict[str, Any]) -> None:
        """No optimizer of torch's steps before torch is there."""

    def finish(self) -> None:
        """The rank ended without torch: the run's outcome says so."""
        with contextlib.suppress(OSError):
            sys.stderr.flush()

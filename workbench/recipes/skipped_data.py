"""Which data a step trains on, where a run has gone back and leaves some out.

The variable holds ranges such as ``40-60,90-95``: the data that steps 41 to 60 and 91 to 95 would
have had without any rollback are left out, and what follows moves up.
"""

import os
from collections.abc import Sequence

VARIABLE = "WORKBENCH_SKIP_DATA"


def data_step(step: int, ranges: Sequence[tuple[int, int]]) -> int:
    """The step, counted from 0, whose data `step` has when those of `ranges` are left out.

    >>> [data_step(step, [(2, 4)]) for step in range(4)]
    [0, 1, 4, 5]
    >>> data_step(30, [(40, 60), (30, 65)])
    65
    """
    done = 0
    for first, last in sorted(ranges):
        begin, done = max(first, done), max(done, last)  # what two share counts once
        if last > begin and step >= begin:
            step += last - begin
    return step


def skipped_ranges() -> list[tuple[int, int]]:
    """The ranges that this process has been told of; what cannot be read is none."""
    ranges: list[tuple[int, int]] = []
    for part in os.environ.get(VARIABLE, "").split(","):
        first, dash, last = part.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            ranges.append((int(first), int(last)))
    return ranges

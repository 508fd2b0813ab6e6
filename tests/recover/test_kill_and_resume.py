"""Kills at random moments, also inside a save, cost at most one interval and change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.matrix import record

from .kill_and_resume import EVERY, cycles

pytestmark = [pytest.mark.slow, pytest.mark.full]


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_weights(tmp_path: Path) -> None:
    tally = cycles(tmp_path, 6, seed=4)
    assert tally.kills == 6
    assert tally.fingerprint == tally.undisturbed
    assert tally.wrong_losses == 0
    assert max(tally.lost) <= EVERY
    assert tally.left == 0
    record(
        14,
        f"{tally.kills} kills: same final weights, no loss differs, at most {max(tally.lost)} steps again (interval {EVERY})",
    )

"""A damaged newest checkpoint is passed over and said, wherever the newest whole one is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recover.saved import run_of_script
from tests.storage.conftest import save
from workbench.errors import UsageError
from workbench.launching.resume.branch import _start
from workbench.launching.resume.starting_point import starting_point
from workbench.store.layout import RunPaths
from workbench.trained_model.source import trained_model


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """Checkpoints of steps 10 and 20, the newer one with a bit that has flipped."""
    paths = run_of_script(tmp_path, "r", [], (0, 100))
    save(paths, 10, size=100)
    damage(save(paths, 20, size=100))
    return paths


def damage(folder: Path) -> None:
    file = folder / "weights.bin"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])


def test_it_is_passed_over_and_said(run: RunPaths) -> None:
    forked, resumed, model = _start(run, None), starting_point(run, None), trained_model(run)
    assert forked.at == resumed.at == model.checkpoint
    assert model.checkpoint.step == 10
    assert forked.notes == resumed.notes == model.notes
    assert forked.notes[0].startswith("Checkpoint step-00000020 is skipped: ")


def test_named_by_its_step_or_alone_it_is_refused(run: RunPaths) -> None:
    with pytest.raises(UsageError, match=r"no whole checkpoint of step 20.*SHA-256.*of: 10\."):
        _start(run, 20)
    with pytest.raises(UsageError, match="step-00000020 cannot be used"):
        trained_model(run, step=20)
    damage(run.checkpoints / "step-00000010")
    for choose in (lambda: _start(run, None), lambda: trained_model(run)):
        with pytest.raises(UsageError, match=r"step-00000020 is skipped.*step-00000010 is skipped"):
            choose()

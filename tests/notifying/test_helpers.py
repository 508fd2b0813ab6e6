"""Runs of a measurement, a study or verify send no messages; others do."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.launching.supervise import sidecars
from workbench.notifying import Target, write_targets
from workbench.recover.policy import Recovery
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord


@pytest.mark.parametrize(("part_of", "sends"), [(None, True), ("measure", False)])
def test_a_measurements_own_run_is_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_of: str | None, *, sends: bool
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_targets({"phone": Target(name="phone", url="json://localhost")})
    run = RunRecord(run="r", notify=["all"], part_of=part_of)
    started = list[str]()
    made = sidecars.Sidecars(RunPaths(tmp_path / "r"), run, Recovery())
    monkeypatch.setattr(made, "_spawn", lambda what, *_: started.append(what))
    made.start()
    assert started == ["messages"] * sends

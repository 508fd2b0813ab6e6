"""A run that is resumed on another machine is billed at that one's price from there on."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from workbench.describe.detection import PRICE
from workbench.errors import UsageError
from workbench.launching.resume.resume import next_spec, prepared
from workbench.launching.start.start import prepare
from workbench.recover.policy import Recovery
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord


def ended_run(store: Path, elapsed_seconds: float, max_usd: float | None = None) -> RunPaths:
    recovery = Recovery(max_usd=max_usd)
    request = wb.request("gpt", cpu=True, processes=2, store=store, recovery=recovery)
    paths, _ = prepare(request)
    write_json_atomic(paths.view, {"elapsed_seconds": elapsed_seconds})
    write_json_atomic(paths.exit, {"outcome": "failed", "message": "It failed."})
    return paths


def resumed(paths: RunPaths, **changes: object) -> tuple[RunRecord, tuple[str, ...]]:
    going_on = prepared(paths, None, None, (), changes)
    return next_spec(going_on)[0], going_on.start.notes


def test_each_part_has_its_own_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRICE, "3")
    paths = ended_run(tmp_path, 3600.0, max_usd=50)
    run, notes = resumed(paths)
    assert not run.usd_before
    assert not [note for note in notes if "An hour" in note]
    monkeypatch.setenv(PRICE, "25")
    run, notes = resumed(paths)
    assert f"An hour costs $25.00 (${PRICE}) from here on, $3.00 before." in notes
    assert [run.usd_of(hours * 3600) for hours in (0.5, 1, 2, 3)] == [1.5, 3.0, 28.0, 53.0]
    monkeypatch.delenv(PRICE)
    assert resumed(paths)[0].usd_per_hour == 3.0, "it is not said to be another"


def test_a_price_that_was_unknown_counts_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the refusal of a limit without a price tells people to set it."""
    monkeypatch.delenv(PRICE, raising=False)
    paths = ended_run(tmp_path, 3600.0)
    limit = {"recovery": {"max_usd": 50}}
    with pytest.raises(UsageError, match=f"{PRICE}=2.50 in front of the command"):
        resumed(paths, **limit)
    monkeypatch.setenv(PRICE, "25")
    run, _ = resumed(paths, **limit)
    assert (run.usd_per_hour, run.usd_of(7200)) == (25.0, 50.0)

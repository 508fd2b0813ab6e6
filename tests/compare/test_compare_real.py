"""Two trainings that really ran, set beside each other, listed from the index, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import workbench as wb
from workbench.compare import deletion, export, index
from workbench.compare.runs import compare

pytestmark = [pytest.mark.slow, pytest.mark.full]


def test_two_real_runs(store: Path, start: Callable[..., wb.Run]) -> None:
    words = ("--steps", "8", "--size", "1", "--minutes", "5")
    place = wb.Store(store)
    one = start("gpt", words, strategy="single", name="one")
    with pytest.raises(wb.UsageError, match="Stop it first"):
        deletion.delete(place, one.id)
    assert one.wait(300) == "succeeded", one.status
    two = start("gpt", (*words, "--lr", "3e-3"), strategy="ddp", processes=2, name="two")
    assert two.wait(300) == "succeeded", two.status
    found = compare(place, ["one", "two"])
    values = {row["what"]: row["values"] for row in found.configuration}
    assert values["strategy"] == {"one": "single", "two": "ddp"}
    assert values["argument --lr"] == {"one": None, "two": "3e-3"}
    for run, tokens in zip(("one", "two"), (1, 2), strict=True):
        curve = found.curves[run]
        assert curve.step == tuple(range(1, 9))
        assert curve.tokens[-1] == tokens * found.curves["one"].tokens[-1]
        assert 0 < curve.seconds[0] < curve.seconds[-1]
        steps = list(export.steps(place.find(run)))
        assert [row["tokens"] for row in steps] == list(curve.tokens)
        assert [row["loss"] for row in steps] == pytest.approx(curve.loss, rel=1e-4)
    assert found.cost_to_reach()["runs"]["two"] is not None
    told: list[int] = []
    index.table(place)
    assert [row["run"] for row in index.table(place, lambda _, of: told.append(of))] == [
        "two",
        "one",
    ]
    assert told == []
    assert deletion.delete(place, "one").bytes > 0
    assert place.ids() == ["two"]

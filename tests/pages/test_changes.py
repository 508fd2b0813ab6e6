"""Two views and what changed between them: Python makes it, the page's own module applies it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pages.applied import applied
from tests.widgets.sample_fleet import STEPS, SampleFleet
from workbench.pages.changes import NOTHING, changes
from workbench.pages.snapshots import Snapshots

MODULE = Path(__file__).parents[2] / "widgets/workbench_widgets/static/changes.js"
# Columns of a view hold numbers and texts; no column mixes numbers with true and false.
VALUES = st.none() | st.integers(-3, 3) | st.text("ab", max_size=2)
TREES = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=14,
)
CASES: list[tuple[Any, Any]] = [
    ([1, 2, 3], [1, 2, 3, 4]),
    ([1, 2, 3], [1, 2, 9]),
    ([1, 2, 3, 4], [3, 4, 5]),
    ([1, 1, 1, 2], [1, 1, 2, 3]),
    ([], [1]),
    ([1], []),
    ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3, "b": [1]}]),
    ([{"a": 1}], [{"a": 1}, {"a": 2}]),
    ({"a": {"b": 1}, "c": 2}, {"a": {"b": None}}),
    ({}, {"is": 1, "add": [2], "at": {"0": 1}}),
    ({"in": 1}, {"in": {"gone": ["x"]}}),
    (1, True),
    (None, {}),
]


@given(old=TREES, new=TREES)
@settings(max_examples=100)
def test_a_change_makes_the_new_value_of_the_old_one(old: Any, new: Any) -> None:
    change = changes(old, new)
    assert applied(old, json.loads(json.dumps(change))) == new
    assert (change == NOTHING) == (old == new)


def size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def test_what_grows_or_slides_costs_what_is_new() -> None:
    column = [round(0.37 * at, 3) for at in range(300)]
    for new in ([*column, 9.5], [*column[:-1], 9.5], [*column[2:], 8.5, 9.5]):
        assert len(json.dumps(changes(column, new))) < 60


def test_the_page_applies_them_as_python_does(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node, which runs the page's modules")
    shutil.copy(MODULE, tmp_path / "changes.mjs")
    cases = [{"old": old, "change": changes(old, new)} for old, new in CASES]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    script = """
    import { readFileSync } from "node:fs";
    import { changed, KeptView } from "./changes.mjs";
    const cases = JSON.parse(readFileSync("cases.json"));
    const frozen = (one) => (one && typeof one === "object" ? Object.values(Object.freeze(one)).forEach(frozen) : 0);
    cases.forEach((one) => frozen(one.old));
    const kept = new KeptView();
    const whole = kept.take({ base: null, version: "1", view: { a: 1 } });
    const next = kept.take({ base: "1", version: "2", changes: { in: { a: { is: 2 } } } });
    const lost = kept.take({ base: "7", version: "8", changes: {} });
    console.log(JSON.stringify([cases.map((one) => changed(one.old, one.change)), [whole, next, lost]]));
    """
    (tmp_path / "test.mjs").write_text(script)
    done = subprocess.run(
        [node, "test.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, kept = json.loads(done.stdout)
    assert found == [new for _, new in CASES]
    assert kept == [{"a": 1}, {"a": 2}, None]


def test_a_step_of_eight_gpus_costs_a_seventh_of_its_view(tmp_path: Path) -> None:
    fleet = SampleFleet(tmp_path, "fleet", each=8)
    builder = fleet.write()
    snapshots = Snapshots(fleet.directory)
    first = snapshots.since(None)
    assert first is not None
    for steps in (STEPS + 1, STEPS + 2):
        fleet.grow(builder, steps)
        second = snapshots.since(first["version"])
        assert second is not None
        assert applied(first["view"], second["changes"]) == json.loads(
            (fleet.directory / "view.json").read_text()
        )
        assert size(second["changes"]) < size(first["view"]) / 7
        first = snapshots.since(None)
        assert first is not None
    assert snapshots.since(first["version"])["changes"] == NOTHING  # type: ignore[index]
    assert "view" in snapshots.since("an older one")  # type: ignore[operator]

"""Runs that began from others are shown as trees, also where records are odd."""

from __future__ import annotations

from typing import Any

from workbench.compare.lineage import ancestry, origin_text, trees
from workbench.store.files import write_json_atomic
from workbench.store.runs import Store


def row(run: str, parent: str | None = None, step: int = 3, at: float = 0.0) -> dict[str, Any]:
    return {"run": run, "resumed_from": parent, "resumed_step": step, "created_at": at}


def drawn(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{one.prefix}{one.row['run']}" for one in trees(rows)]


def test_a_run_stands_below_the_one_that_it_began_from() -> None:
    newest_first = [
        row("d", "b", at=5),
        row("x", at=4),
        row("c", "a", at=3),
        row("b", "a", at=2),
        row("a", at=1),
    ]
    assert drawn(newest_first) == ["a", "├ b", "│ └ d", "└ c", "x"]
    assert [one.depth for one in trees(newest_first)] == [0, 1, 2, 1, 0]


def test_a_parent_that_is_not_listed_leaves_a_root() -> None:
    assert drawn([row("b", "gone")]) == ["b"]


def test_records_that_name_each_other_in_a_circle_are_all_listed() -> None:
    rows = [row("a", "b"), row("b", "a"), row("c", "c"), row("d", "a")]
    assert sorted(one.row["run"] for one in trees(rows)) == ["a", "b", "c", "d"]


def test_thousands_of_runs_may_each_have_begun_from_the_last() -> None:
    chain = [row(str(at), str(at - 1) if at else None, at=float(at)) for at in range(2000)]
    for rows in (chain, chain[::-1]):
        found = trees(rows)
        assert [one.row["run"] for one in found] == [str(at) for at in range(2000)]
        assert [one.depth for one in found] == list(range(2000))


def test_a_rerun_of_a_fork_is_the_forks_child() -> None:
    again = {**row("c", "a"), "rerun_of": "b"}
    assert drawn([row("a"), row("b", "a"), again]) == ["a", "└ b", "  └ c"]
    assert origin_text(again) == "rerun of b"
    assert origin_text(row("b", "a")) == "step 3 of a"
    assert origin_text(row("a")) == ""


def test_the_ancestry_goes_up_through_runs_that_are_not_compared(tmp_path: Any) -> None:
    store = Store(tmp_path / "runs")
    parents = {"a": None, "b": "a", "c": "b", "d": "../elsewhere", "e": "gone"}
    for at, (run, parent) in enumerate(parents.items()):
        began = parent and {"run": parent, "checkpoint": "x", "step": 3}
        document = {"run": run, "created_at": float(at), "resumed_from": began}
        write_json_atomic(store.create(run).run, document)
    found = ancestry(store, ["c", "d", "e"])
    assert [f"{one.prefix}{one.row['run']}" for one in found] == ["a", "└ b", "  └ c", "d", "e"]

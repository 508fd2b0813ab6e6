"""A rank whose loader is slow: told as that from the start, or as soon as its loader is known.

Each recording is of a run whose rank 1 has a slow loader. The notes of the loaders are taken out of
the start records and come when a test says so, as they do while a run starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.diagnose.recordings import FOLDER, load, unpacked
from tests.notifying.test_following import Case
from workbench.cli.recovery import print_findings
from workbench.diagnose.offline import Moment, replayed
from workbench.notifying.following import BETWEEN_SECONDS
from workbench.observe.report_recovery import troubles
from workbench.observe.trackers.source import finding_note
from workbench.store.layout import RunPaths
from workbench.store.record import read_run

RUNS = {
    f"{file}/{name}": files
    for file in ("chosen", "held_out")
    for name, files in load(FOLDER / f"{file}.json.xz").items()
    if "-input-" in name
}
SLOW = sorted(name for name in RUNS if not name.endswith("-15"))  # the small delays may be missed
ALSO = {"input-bound", "imbalanced-work", "straggler"}


def prepared(folder: Path, name: str) -> tuple[RunPaths, Callable[[], None]]:
    """The run with no loader noted, and what notes one of rank `rank_of(name)`."""
    paths = unpacked(folder, RUNS[name])
    run = read_run(paths)
    assert run is not None
    starts = [paths.rank_start(rank) for rank in range(run.processes)]
    for start in starts:
        kept = json.loads(start.read_text())
        kept.pop("samplers", None)
        start.write_text(json.dumps(kept))

    def note() -> None:
        for start in starts:
            about = [{"loader": "DataLoader", "sampler": "DistributedSampler", "distributed": True}]
            start.write_text(json.dumps({**json.loads(start.read_text()), "samplers": about}))

    return paths, note


def rank_of(name: str) -> int:
    return int(name.split("-rank")[1].split("-", maxsplit=1)[0])


def standing(moment: Moment) -> set[tuple[str, int | None]]:
    late = (one for one in moment.findings if one.kind in ALSO)
    return {one.key for one in late if one.cleared_at is None}


@pytest.mark.parametrize("name", SLOW)
def test_the_cause_is_right_the_first_time(tmp_path: Path, name: str) -> None:
    """The loader is noted after the first reading of the starts, and before the rank is named."""
    paths, note = prepared(tmp_path / "run", name)
    seen: list[set[tuple[str, int | None]]] = []
    for number, moment in enumerate(replayed(paths)):
        if number == 0:
            note()  # within the five seconds until the starts are read again
        seen.append(standing(moment))
    told = set[tuple[str, int | None]]().union(*seen)
    assert told == {("input-bound", rank_of(name))}


@pytest.mark.parametrize("name", SLOW)
def test_a_better_cause_replaces_a_general_one_in_the_same_look(tmp_path: Path, name: str) -> None:
    """The loader is noted only after its rank was called slow."""
    paths, note = prepared(tmp_path / "run", name)
    late, rank, noted = False, rank_of(name), False
    for moment in replayed(paths):
        now = standing(moment)
        assert len(now) <= 1, now  # one finding for one cause, at every look
        if noted:
            assert now == {("input-bound", rank)}
            old = next(one for one in moment.findings if one.kind == "straggler")
            assert (old.replaced_by, old.cleared_at is not None) == (f"input-bound@{rank}", True)
            late = True
        elif now == {("straggler", rank)}:
            note()
            noted = True
    assert late


def told_late(folder: Path) -> list[Moment]:
    """The looks at a run of which a straggler was told that turned out to wait for its loader."""
    paths, note = prepared(folder, SLOW[0])
    looks: list[Moment] = []
    for moment in replayed(paths):
        looks.append(moment)
        if standing(moment) == {("straggler", rank_of(SLOW[0]))}:
            note()
    return looks


def test_every_face_says_what_replaced_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, last = told_late(tmp_path / "run")
    (old,) = (one for one in last.findings if one.kind == "straggler")
    by = f"replaced by {old.replaced_by}"
    assert old.document()["replaced_by"] == old.replaced_by
    assert finding_note(old).title.endswith(by)
    paths = RunPaths(tmp_path / "without findings.json")
    listed = {"findings": [one.document() for one in last.findings]}
    assert f"warning, {by}" in troubles(paths, listed)
    print_findings([old], Path("runs/r-1"))
    assert by in " ".join(capsys.readouterr().out.split())


def test_a_message_goes_out_for_the_cause_that_holds(tmp_path: Path) -> None:
    """Both are written in looks a second apart, and the phone was sent something just before."""
    looks = told_late(tmp_path / "run")
    case, now = Case(tmp_path), 0.0
    case.attempts(None, "rank 1 died")
    case.follower.look(now)
    for moment in looks:
        case.findings(*moment.findings)
        case.follower.look(now := now + 1)
    case.follower.look(now + BETWEEN_SECONDS)
    assert case.titles == ["my run: restarted", "my run: input-bound"]
    assert "straggler" not in case.sent[1][1].body


def test_a_message_that_was_sent_is_put_right(tmp_path: Path) -> None:
    case, now = Case(tmp_path), 0.0
    for moment in told_late(tmp_path / "run"):
        case.findings(*moment.findings)
        case.follower.look(now := now + BETWEEN_SECONDS + 1)
    assert case.titles == ["my run: straggler", "my run: input-bound"]
    assert "told before as straggler" in case.sent[1][1].body

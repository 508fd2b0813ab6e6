"""The notebook on profiles: what it says of its training holds when it is run."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("accelerate", reason="the train extra is not installed")

import workbench as wb
from tests.widgets.notebook_run import Said, assert_short_and_clean, read, runner
from workbench.compare.profile.analysis import profiles, read_profile
from workbench.compare.profile.trace import read_trace
from workbench.store.layout import RunPaths

NAME = "12_profile"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory):
    return runner(tmp_path_factory)(NAME)


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(NAME)


@pytest.mark.parametrize(
    ("answers", "hint"),
    [
        ({"a": "exposed", "b": "exposed", "c": "input"}, None),
        ({"a": "idle", "b": None, "c": None}, None),
        ({"a": "compute", "b": None, "c": None}, "half the compute"),
        ({"a": None, "b": "compute", "c": None}, "more ranks"),
        ({"a": None, "b": None, "c": "copies"}, "waits for data"),
    ],
)
def test_the_exercise_is_checked(answers: dict[str, str | None], hint: str | None) -> None:
    (source,) = [cell.source for cell in read(NAME).cells if "answers = {" in cell.source]
    source = source.replace('{"a": None, "b": None, "c": None}', repr(answers))
    with nullcontext() if hint is None else pytest.raises(AssertionError, match=hint):
        exec(source, {})


@pytest.mark.full
@pytest.mark.slow
def test_what_it_says_of_the_profiles_holds(said) -> None:
    said.has(r"^rank 0: the parts are 1\.0000 of the step$", r"^traced steps: \[\d+, .*\]$")
    said.has(r"^rank 1: .* a step: compute .*exposed .*$", r"^Profile of .*, steps \d+ to \d+")
    said.has(r"^rank 0: .*input [\d.]+ ms .*$")  # the slow loader
    assert said.number(r"^exchange every time: .*communication ([\d.]+) ms") > 0
    assert said.number(r"^exchange one in four: .*communication ([\d.]+) ms") > 0
    # "one exchange instead of four": counted, because times also show who else uses the machine.
    assert exchanges(said, "--accumulate", "4") == pytest.approx(exchanges(said), rel=0.05)


def exchanges(said: Said, *arguments: str) -> float:
    """All-reduces per step and rank in the first profile of the run that had these arguments."""
    store = wb.Store(said.folder / "runs")
    runs = [wb.attach(one, store.root) for one in store.ids()]
    (run,) = [one for one in runs if one.document["arguments"] == list(arguments)]
    paths = RunPaths(run.directory)
    found = read_profile(paths, profiles(paths)[0])
    traces = [(one, read_trace(one.trace, found.origin_ns)) for one in found.ranks]
    counts = [len(trace.collectives["gloo:all_reduce"]) / len(one.steps) for one, trace in traces]
    assert min(counts) == max(counts) >= 1
    return counts[0]

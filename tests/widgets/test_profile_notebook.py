"""The notebook on profiles: what it says of its training holds when it is run."""

from __future__ import annotations

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("accelerate", reason="the train extra is not installed")

from tests.widgets.notebook_run import assert_short_and_clean, runner

NAME = "12_profile"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory):
    return runner(tmp_path_factory)(NAME)


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(NAME)


@pytest.mark.full
@pytest.mark.slow
def test_what_it_says_of_the_profiles_holds(said) -> None:
    said.has(r"^rank 0: the parts are 1\.0000 of the step$", r"^traced steps: \[\d+, .*\]$")
    said.has(r"^rank 1: .* a step: compute .*exposed .*$", r"^Profile of .*, steps \d+ to \d+")
    said.has(r"^rank 0: .*input [\d.]+ ms .*$")  # the slow loader
    every = said.number(r"^exchange every time: .*communication ([\d.]+) ms")
    rare = said.number(r"^exchange one in four: .*communication ([\d.]+) ms")
    assert rare < 0.7 * every  # "communication falls"

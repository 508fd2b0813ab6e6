"""The notebook on the user's own model: what it says of the training holds when it is run."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("accelerate", reason="the train extra is not installed")

from tests.widgets.notebook_run import assert_short_and_clean, runner

NAME = "14_your_own_model"


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(NAME)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_statement_holds(tmp_path_factory: pytest.TempPathFactory) -> None:
    if find_spec("trl") is None:
        pytest.skip("pip install 'training-workbench[finetune]'")
    said = runner(tmp_path_factory, "finetune")(NAME)
    said.has(r"^messages \| 35 rows, 32 examples, 3 bad$", r"^row 11: not valid JSON")
    said.has(r"^2 steps are one epoch, 60 are asked for$", r"^107,328 parameters, \d+ MiB")
    said.has(r"^succeeded \| 60 steps on 2 ranks$")
    said.has(r"^step  60: '(red|green|blue|white)'$")  # "it ends with a colour"
    said.has(r"^held out is worse than training: True$", r"^full ends lower: True$")
    said.has(r"^my-model \| adapter", r"^largest difference .* below 1e-5: True$")
    said.has(r"^same names and shapes: True$", r"blocks: True \| 14$", r"at most 8: True$")
    said.has(r"^as in the last sample: True$")

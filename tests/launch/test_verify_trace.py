"""What a verified rank notes of the passes of a script's modules."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.launch.ranks import Ranks
from workbench.verifying.verify import VARIABLE


def test_a_frozen_model_s_passes_are_no_batches_of_the_training(
    begin: Callable[..., Ranks],
) -> None:
    ranks = begin("teacher.py", **{VARIABLE: json.dumps({"steps": 2})})
    assert ranks.wait() == [0]
    trace = json.loads((ranks.folder / "verify" / "rank-0.json").read_text())
    batches = [[len(batch["samples"]) for batch in step["batches"]] for step in trace["steps"]]
    assert batches == [[8, 8], [8, 8]]  # the student's two passes

"""The measured bubble is the predicted one; the benchmark prints the whole table."""

import pytest

from tests.benchmarks import pipeline_bubble as bubble


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("count", [4, 8, 16])
@pytest.mark.parametrize(
    ("name", "chunks"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1), ("zero-bubble", 2)],
)
def test_formula_and_simulation_agree(stages, count, name, chunks):
    setting = (name, stages, count, chunks)
    assert bubble.formula(*setting) == pytest.approx(bubble.predicted(*setting, 0.03))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(("stages", "count"), [(2, 4), (4, 8)])
def test_gpipe_and_1f1b_wait_as_long_as_predicted(stages, count):
    for row in bubble.rows(stages, [count], ["gpipe", "1f1b"], 50.0):
        assert row["measured"] == pytest.approx(
            (stages - 1) / (count + stages - 1), abs=bubble.SLACK
        ), row["schedule"]
        assert row["measured"] == pytest.approx(row["predicted"], abs=bubble.SLACK)
        kinds = [kind for passes in row["passes"] for kind, *_ in passes]
        assert {kind: kinds.count(kind) for kind in "FBW"} == dict.fromkeys("FBW", stages * count)

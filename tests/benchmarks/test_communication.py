"""What a rank really hands to collectives is what the estimate's formulas say."""

import pytest

from tests.benchmarks import communication


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp", "tp2"])
def test_bytes_of_a_step_are_the_formulas(name):
    found, wanted = communication.counted(name), communication.expected(name)
    for kind, size in wanted.items():
        assert size > 0
        assert found[kind] == pytest.approx(size, rel=communication.WITHIN), kind
    rest = sum(size for kind, size in found.items() if kind not in wanted)
    assert rest < 0.001 * sum(wanted.values())

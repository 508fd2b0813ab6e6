"""tensor_parallel.py on its own: refusals, and one curve on one and on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tensor_parallel

from tests.launch.ranks import output, torchrun

SCRIPT = Path(tensor_parallel.__file__)
SHAPE = ("--layers", "2", "--hidden", "64", "--heads", "4", "--seq-len", "32", "--warmup", "2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--heads 2 --tp 4", "2 heads cannot be split over --tp 4 ranks"),
        ("--size 4 --tp 4 --sequence-parallel --seq-len 30", "splits 30 positions into 4"),
        ("--hidden 65", "not a multiple of 2 x --heads 1"),
        ("--steps 0", "give a number above 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments, said):
    with pytest.raises(ValueError, match=said):
        tensor_parallel.parse_options(arguments.split())


def test_the_sequence_need_not_divide_where_it_is_not_cut():
    assert tensor_parallel.parse_options(["--tp", "2", "--seq-len", "31"]).seq_len == 31


def test_the_script_stays_readable_in_one_sitting():
    assert len(SCRIPT.read_text().splitlines()) <= 300


def printed(processes: int, *arguments: str) -> str:
    program = (SCRIPT, *SHAPE, "--steps=20", *arguments)
    if processes == 1:
        return output(*program)
    return torchrun(processes, *program)


def losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\S+)", said)]


@pytest.mark.full
@pytest.mark.slow
def test_two_ranks_train_as_one_and_hold_half_each():
    alone = printed(1)
    assert "131,072 parameters, 131,072 of them on each of 1 ranks" in alone
    assert losses(alone)[-1] < 4
    split = printed(2)
    assert "131,072 parameters, 65,536 of them on each of 2 ranks" in split
    assert losses(split) == pytest.approx(losses(alone), abs=2e-4)  # as printed
    assert losses(printed(2, "--sequence-parallel")) == pytest.approx(losses(alone), abs=2e-4)


@pytest.mark.full
@pytest.mark.slow
def test_bf16_falls_too():
    said = losses(printed(1, "--precision", "bf16"))
    assert said[-1] < 4

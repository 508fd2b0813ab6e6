"""context_parallel.py: the parts of attention and their merging; then two real ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import context_parallel
import pytest
import torch
from gpt_model import causal_attention

from tests.launch.ranks import output, torchrun

SCRIPT = Path(context_parallel.__file__)


def heads(length: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, 3, length, 8, generator=generator) for _ in range(3))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_query_meets_every_earlier_key_once_and_all_ranks_work_alike(ranks):
    half, length = 2, 4 * ranks
    pieces = torch.arange(length).chunk(2 * ranks)
    places = [torch.cat([pieces[r], pieces[2 * ranks - 1 - r]]) for r in range(ranks)]
    met = torch.zeros(length, length, dtype=torch.int)
    for rank in range(ranks):
        work = 0
        for source in range(ranks):
            rows, keys, causal = context_parallel.visible(rank, source, half)
            seen = torch.ones(len(places[rank][rows]), len(places[source][keys]), dtype=torch.int)
            met[places[rank][rows][:, None], places[source][keys]] += (
                seen.tril() if causal else seen
            )
            work += seen.numel() if source != rank else 0
        assert work == 2 * half * half * (ranks - 1)
    assert torch.equal(met, torch.ones(length, length, dtype=torch.int).tril())


@pytest.mark.parametrize("causal", [True, False])
def test_the_plain_formulas_are_the_kernels(causal):
    """What an fp32 GPU computes with, against the CPU's flash kernel."""
    q, k, v = heads(16)
    given = context_parallel.attend_part(q, k, v, causal=causal)
    plain = context_parallel.attend_plainly(q, k, v, causal=causal)
    for one, other in zip(given, plain, strict=True):
        torch.testing.assert_close(one, other)
    grad = torch.randn_like(q)
    kernels = context_parallel.attend_part_backward(grad, (q, k, v), *given, causal=causal)
    formulas = context_parallel.attend_plainly_backward(grad, (q, k, v), *given, causal=causal)
    for one, other in zip(kernels, formulas, strict=True):
        torch.testing.assert_close(one, other)


def test_parts_merge_to_the_whole():
    """Late queries over early keys, then over their own: by log-sum-exp the same as at once."""
    q, k, v = heads(16)
    late, early = slice(8, None), slice(None, 8)
    first, first_lse = context_parallel.attend_part(
        q[:, :, late], k[:, :, early], v[:, :, early], causal=False
    )
    second, second_lse = context_parallel.attend_part(
        q[:, :, late], k[:, :, late], v[:, :, late], causal=True
    )
    weight = torch.sigmoid(first_lse - second_lse)[..., None]
    whole = causal_attention(q, k, v)[:, :, late]
    torch.testing.assert_close(weight * first + (1 - weight) * second, whole)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--cp 3 --seq-len 256", "not a multiple of 6"),
        ("--cp 4 --cp-method ulysses", "2 heads cannot be split over --cp 4"),
        ("--steps 0", "--steps 0: give a number above 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments, said):
    with pytest.raises(ValueError, match=said):
        context_parallel.parse_options(arguments.split())


def test_the_script_stays_readable_in_one_sitting():
    assert len(SCRIPT.read_text().splitlines()) <= 300


@pytest.mark.full
@pytest.mark.slow
def test_the_recipe_alone_gives_one_curve_on_one_and_on_two_ranks(tmp_path):
    def losses(method: str, start: Callable[..., str]) -> list[float]:
        shape = ("--seq-len", "64", "--steps", "20", "--warmup", "2", "--cp-method", method)
        printed = start(SCRIPT, *shape, folder=tmp_path)
        return [float(loss) for loss in re.findall(r"loss (\S+)", printed)]

    alone = losses("ring", output)
    assert len(alone) == 2
    assert alone[-1] < 4
    for method in ("ring", "ulysses"):
        assert losses(method, partial(torchrun, 2)) == pytest.approx(alone, abs=2e-4)  # as printed

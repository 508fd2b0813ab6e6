"""The replay of CUDA's caching allocator against cases worked out by hand from its source."""

from __future__ import annotations

import random

import pytest

from workbench.estimate.simulation.allocator import (
    MIB,
    CachingAllocator,
    CardFullError,
    replay,
    smallest_card,
)
from workbench.estimate.simulation.trace import rounded


@pytest.mark.parametrize(("asked", "given"), [(1, 512), (512, 512), (513, 1024), (0, 512)])
def test_sizes_are_rounded_to_512_bytes(asked: int, given: int) -> None:
    assert rounded(asked) == given
    allocator = CachingAllocator()
    allocator.allocate(0, asked)
    assert allocator.peak_allocated == given


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),  # small pool
        (MIB, 2 * MIB),  # the last size of the small pool
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # a segment of its own, in multiples of 2 MiB
        (10 * MIB + 512, 12 * MIB),
        (100 * MIB + 1, 102 * MIB),
    ],
)
def test_segment_sizes(size: int, segment: int) -> None:
    assert replay([(0, size, 0)]).peak_reserved == segment


def test_a_large_segment_is_split_and_its_rest_used() -> None:
    allocator = replay([(0, 4 * MIB, 0), (1, 4 * MIB, 0), (2, 12 * MIB, 0)])
    assert allocator.peak_reserved == 20 * MIB  # 4 + 4 + 12 share one segment


def test_a_rest_of_a_mebibyte_stays_with_its_block() -> None:
    allocator = CachingAllocator()
    allocator.allocate(0, 19 * MIB)  # own segment of 20 MiB; 1 MiB is too little to split off
    assert allocator.reserved == 20 * MIB
    assert allocator.allocated == 20 * MIB


def test_neighbours_merge_when_freed_in_any_order() -> None:
    for order in [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)]:
        requests = [(block, 6 * MIB, 0) for block in range(3)]
        requests += [(-block - 1, 6 * MIB, 0) for block in order]
        requests += [(9, 20 * MIB, 0)]
        assert replay(requests).peak_reserved == 20 * MIB, order


def test_best_fit_takes_the_smallest_hole() -> None:
    requests = [(0, 40 * MIB, 0), (1, 30 * MIB, 0), (-1, 40 * MIB, 0), (-2, 30 * MIB, 0)]
    requests += [(2, 30 * MIB, 0), (3, 40 * MIB, 0)]
    assert replay(requests).peak_reserved == 70 * MIB


def test_streams_and_pools_do_not_share() -> None:
    requests = [(0, 30 * MIB, 0), (-1, 30 * MIB, 0), (1, 30 * MIB, 1)]
    assert replay(requests).peak_reserved == 60 * MIB
    small = [(0, 20 * MIB, 0), (-1, 20 * MIB, 0), (1, 512, 0)]
    assert replay(small).peak_reserved == 22 * MIB


def test_fragments_do_not_serve_a_larger_request() -> None:
    requests = [(block, 30 * MIB, 0) for block in range(4)]
    requests += [(-block - 1, 30 * MIB, 0) for block in range(4)]
    requests += [(9, 120 * MIB, 0)]
    allocator = replay(requests)
    assert allocator.peak_allocated == 120 * MIB
    assert allocator.peak_reserved == 240 * MIB
    assert replay(requests, expandable=True).peak_reserved == 120 * MIB


def test_a_full_card_gives_cached_segments_back_and_tries_again() -> None:
    requests = [(block, 30 * MIB, 0) for block in range(4)]
    requests += [(-block - 1, 30 * MIB, 0) for block in range(4)]
    requests += [(9, 120 * MIB, 0)]
    allocator = replay(requests, limit_bytes=121 * MIB)
    assert allocator.peak_reserved == 120 * MIB
    with pytest.raises(CardFullError):
        replay(requests, limit_bytes=119 * MIB)
    assert 120 * MIB <= smallest_card(requests, 120 * MIB, 240 * MIB) <= 122 * MIB


def test_a_segment_in_partial_use_cannot_be_given_back() -> None:
    requests = [(0, 4 * MIB, 0), (1, 4 * MIB, 0), (-1, 4 * MIB, 0), (2, 30 * MIB, 0)]
    assert replay(requests, limit_bytes=50 * MIB).peak_reserved == 50 * MIB
    with pytest.raises(CardFullError):
        replay(requests, limit_bytes=49 * MIB)


def test_expandable_segments_grow_by_pages() -> None:
    assert replay([(0, 512, 0)], expandable=True).peak_reserved == 2 * MIB
    assert replay([(0, 30 * MIB, 0)], expandable=True).peak_reserved == 40 * MIB
    two = [(0, 30 * MIB, 0), (1, 30 * MIB, 0)]
    assert replay(two, expandable=True).peak_reserved == 60 * MIB  # 10 of 40 were still free


def test_an_expandable_tail_is_the_last_choice() -> None:
    requests = [(0, 30 * MIB, 0), (1, 2 * MIB, 0), (-1, 30 * MIB, 0)]  # hole of 30, tail of 8
    requests += [(2, 4 * MIB, 0), (3, 8 * MIB, 0)]  # both into the hole; the tail stays whole
    allocator = replay(requests, expandable=True)
    assert allocator.peak_reserved == 40 * MIB


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_laws_of_any_allocator(seed: int, *, expandable: bool) -> None:
    generator = random.Random(seed)
    requests: list[tuple[int, int, int]] = []
    live: dict[int, tuple[int, int]] = {}
    peak = now = 0
    for block in range(400):
        size, stream = generator.choice((300, 70_000, 3 * MIB, 25 * MIB)), generator.randrange(2)
        requests.append((block, size, stream))
        live[block] = (size, stream)
        now += rounded(size)
        peak = max(peak, now)
        while live and generator.random() < 0.45:
            gone = generator.choice(list(live))
            requests.append((-gone - 1, *live[gone]))
            now -= rounded(live.pop(gone)[0])
    allocator = replay(requests, expandable=expandable)
    assert peak <= allocator.peak_allocated <= allocator.peak_reserved
    for block, (size, stream) in live.items():
        allocator.free(block)
        del size, stream
    assert allocator.allocated == 0
    assert allocator.reserved == sum(
        size for pool in allocator._pools.values() for size, *_ in pool.free
    )
    if expandable:  # everything merged again: one piece per stream and pool
        assert all(len(pool.free) == 1 for pool in allocator._pools.values())

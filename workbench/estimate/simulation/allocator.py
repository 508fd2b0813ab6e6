"""CUDA's caching allocator in pure Python: what a sequence of allocations would reserve.

Rules of c10/cuda/CUDACachingAllocator.cpp (torch 2.13), without NVIDIA or torch: sizes are rounded
to 512 bytes; up to 1 MiB comes from the small pool (segments of 2 MiB), below 10 MiB from segments
of 20 MiB, above from segments of their own in multiples of 2 MiB; the best fit of the same stream
and pool is split if more than 1 MiB (small pool: 512 bytes) remains; neighbours merge when freed;
when the card is full, wholly free segments are given back and the request is tried again.
With expandable segments each (stream, pool) is one growing segment, mapped in pages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from workbench.estimate.simulation.trace import rounded

MIB = 2**20
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
LARGE_ROUNDING = 2 * MIB
Request = tuple[int, int, int]
"""(block to allocate, or -block - 1 to free it; bytes; stream)."""


class CardFullError(Exception):
    """The request does not fit even after everything free was given back."""


class _Piece:
    """A stretch of one segment, free or in use, linked to its neighbours in it."""

    __slots__ = ("address", "after", "before", "pool", "size")

    def __init__(self, address: int, size: int, pool: _Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.before: _Piece | None = None
        self.after: _Piece | None = None


class _Pool:
    """Free pieces of one (stream, small or large) pool, smallest first."""

    __slots__ = ("free", "heap_end", "leftover", "page", "small", "tail")

    def __init__(self, *, small: bool, expandable: bool) -> None:
        self.small = small
        self.leftover = 512 if small or expandable else SMALL + 1  # least worth splitting off
        self.page = SMALL_SEGMENT if small else LARGE_SEGMENT
        self.free: list[tuple[int, int, _Piece]] = []
        self.heap_end = 0
        self.tail: _Piece | None = None

    def put(self, piece: _Piece) -> None:
        insort(self.free, (piece.size, piece.address, piece))

    def take(self, piece: _Piece) -> None:
        del self.free[bisect_left(self.free, (piece.size, piece.address))]


class CachingAllocator:
    """One GPU's allocator; `limit_bytes` is what the card can give it."""

    def __init__(self, *, expandable: bool = False, limit_bytes: int | None = None) -> None:
        self.expandable = expandable
        self.limit_bytes = limit_bytes
        self.reserved = self.peak_reserved = self.allocated = self.peak_allocated = 0
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._used: dict[int, _Piece] = {}
        self._next_address = 0

    def allocate(self, block: int, size: int, stream: int = 0) -> None:
        """Hand out `size` bytes under the name `block`.

        Raises:
            CardFullError: `limit_bytes` does not allow it.
        """
        size = rounded(size)
        pool = self._pool(stream, small=size <= SMALL)
        piece = self._best_fit(pool, size)
        if piece is None:
            piece = self._grow(pool, size) if self.expandable else self._segment(pool, size)
        elif piece.size < size:
            piece = self._grow(pool, size)
        else:
            pool.take(piece)
        if piece.size - size >= pool.leftover:
            self._split(piece, size)
        self._used[block] = piece
        self.allocated += piece.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def free(self, block: int) -> None:
        """Take `block` back and merge it with free neighbours."""
        piece = self._used.pop(block)
        pool = piece.pool
        self.allocated -= piece.size
        used = piece
        before, after = piece.before, piece.after
        if before is not None and self._is_free(before):
            pool.take(before)
            before.size += piece.size
            before.after = after
            if after is not None:
                after.before = before
            if pool.tail is used:
                pool.tail = before
            piece = before
        if after is not None and self._is_free(after):
            pool.take(after)
            piece.size += after.size
            piece.after = after.after
            if after.after is not None:
                after.after.before = piece
            if pool.tail is after:
                pool.tail = piece
        pool.put(piece)

    def _pool(self, stream: int, *, small: bool) -> _Pool:
        key = (stream, small)
        if key not in self._pools:
            self._pools[key] = _Pool(small=small, expandable=self.expandable)
        return self._pools[key]

    def _is_free(self, piece: _Piece) -> bool:
        free = piece.pool.free
        at = bisect_left(free, (piece.size, piece.address))
        return at < len(free) and free[at][2] is piece

    def _best_fit(self, pool: _Pool, size: int) -> _Piece | None:
        """The smallest free piece that holds `size`; an expandable tail counts as endless."""
        at = bisect_left(pool.free, (size,))
        if self.expandable:
            # The tail can grow, so it is the last choice, not the best fit by its present size.
            while at < len(pool.free) and pool.free[at][2] is pool.tail:
                at += 1
            if at == len(pool.free):
                tail = pool.tail
                return tail if tail is not None and self._is_free(tail) else None
        return pool.free[at][2] if at < len(pool.free) else None

    def _segment(self, pool: _Pool, size: int) -> _Piece:
        if pool.small:
            length = SMALL_SEGMENT
        elif size < OWN_SEGMENT:
            length = LARGE_SEGMENT
        else:
            length = -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        self._reserve(length)
        address = self._next_address
        self._next_address += length + LARGE_SEGMENT  # a gap: segments never merge
        return _Piece(address, length, pool)

    def _grow(self, pool: _Pool, size: int) -> _Piece:
        """Map pages at the end of an expandable segment until its tail holds `size`."""
        tail = pool.tail
        if tail is not None and self._is_free(tail):
            pool.take(tail)
            if tail.size >= size:
                return tail
        else:
            fresh = _Piece(pool.heap_end, 0, pool)
            fresh.before = tail
            if tail is not None:
                tail.after = fresh
            tail = pool.tail = fresh
        pages = -(-(size - tail.size) // pool.page) * pool.page
        self._reserve(pages)
        tail.size += pages
        pool.heap_end += pages
        return tail

    def _reserve(self, length: int) -> None:
        if self.limit_bytes is not None and self.reserved + length > self.limit_bytes:
            self._release_cached()
            if self.reserved + length > self.limit_bytes:
                raise CardFullError
        self.reserved += length
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _release_cached(self) -> None:
        """Give back every segment that is free as a whole (expandable ones keep their pages)."""
        if self.expandable:
            return
        for pool in self._pools.values():
            unsplit = [
                entry for entry in pool.free if entry[2].before is None and entry[2].after is None
            ]
            for entry in unsplit:
                pool.free.remove(entry)
                self.reserved -= entry[0]

    def _split(self, piece: _Piece, size: int) -> None:
        rest = _Piece(piece.address + size, piece.size - size, piece.pool)
        piece.size = size
        rest.before, rest.after = piece, piece.after
        if piece.after is not None:
            piece.after.before = rest
        piece.after = rest
        if piece.pool.tail is piece:
            piece.pool.tail = rest
        piece.pool.put(rest)


def replay(
    requests: Iterable[Request], *, expandable: bool = False, limit_bytes: int | None = None
) -> CachingAllocator:
    """Run `requests` through a fresh allocator and return it with its peaks.

    Raises:
        CardFullError: `limit_bytes` is too small.
    """
    allocator = CachingAllocator(expandable=expandable, limit_bytes=limit_bytes)
    for event, size, stream in requests:
        if event >= 0:
            allocator.allocate(event, size, stream)
        else:
            allocator.free(-event - 1)
    return allocator


def smallest_card(requests: Sequence[Request], allocated: int, reserved: int) -> int:
    """Least capacity with which the replay succeeds, to 1/256 of `reserved` or 2 MiB.

    `allocated` and `reserved` are the peaks of a replay without limit: the answer lies between.
    """
    low, high = allocated, reserved
    while high - low > max(LARGE_ROUNDING, reserved // 256):
        middle = (low + high) // 2
        try:
            replay(requests, limit_bytes=middle)
        except CardFullError:
            low = middle
        else:
            high = middle
    return high

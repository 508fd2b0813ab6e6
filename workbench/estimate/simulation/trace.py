"""What a tracked run allocated and freed, in order: pure Python, so every rule here is testable.

Sizes are rounded up to 512 bytes as CUDA's allocator does, because ``max_memory_allocated`` counts
the rounded sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GRANULE = 512  # bytes, c10/cuda/CUDACachingAllocator: kMinBlockSize
PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer states"
ACTIVATIONS, LOGITS, UNSHARDED = "activations", "logits and loss", "unsharded parameters"
TEMPORARIES, INPUTS = "temporaries", "inputs"
PARTS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS, UNSHARDED, INPUTS, TEMPORARIES)
BUILD, FORWARD, LOSS, LOSS_BACKWARD = "build", "forward", "loss", "loss backward"
BACKWARD, OPTIMIZER_STEP = "backward", "optimizer step"


def rounded(size: int) -> int:
    """Bytes that the allocator hands out for a request of `size`."""
    return max(GRANULE, -(-size // GRANULE) * GRANULE)


@dataclass(slots=True, kw_only=True)
class Block:
    """One storage between its allocation and its release."""

    size: int
    """Rounded bytes."""
    stream: int
    """CUDA stream it would come from, numbered by first use."""
    phase: int
    """Index into `Trace.phases` of the phase it was born in."""
    saving: bool
    """Whether autograd was recording: inside backward that means a block is recomputed."""
    died: int | None = None
    """Phase in which it was freed; None while alive."""
    part: str | None = None
    """What it is, where known; else `Trace.part_of` concludes it from its life."""
    host: bool = False
    """It would be in host memory on a GPU (AdamW's step counters): not counted."""
    on_cpu: bool = True
    """Its tensor says "cpu": host memory in a job that uses a card (see `Trace.keep_card`)."""


@dataclass(slots=True)
class Trace:
    """Blocks, the order of their allocations (n) and releases (-n - 1), and the step's phases."""

    blocks: list[Block] = field(default_factory=list[Block])
    events: list[int] = field(default_factory=list[int])
    phases: list[tuple[int, str]] = field(default_factory=lambda: [(0, BUILD)])

    def enter(self, phase: str) -> None:
        """Begin `phase` (a no-op when it is already the current one)."""
        if self.phases[-1][1] != phase:
            self.phases.append((len(self.events), phase))

    def allocate(
        self, size: int, stream: int = 0, *, saving: bool = True, on_cpu: bool = True
    ) -> int:
        """Record an allocation and return the block's number."""
        number = len(self.blocks)
        phase = len(self.phases) - 1
        self.blocks.append(
            Block(size=rounded(size), stream=stream, phase=phase, saving=saving, on_cpu=on_cpu)
        )
        self.events.append(number)
        return number

    def free(self, number: int) -> None:
        """Record the release of block `number`."""
        self.blocks[number].died = len(self.phases) - 1
        self.events.append(-number - 1)

    def keep_card(self) -> bool:
        """Count CPU tensors as host memory if the job put anything on a card; say whether it did.

        A job that names no device is meant for the card as a whole.
        """
        if all(block.on_cpu for block in self.blocks):
            return False
        for block in self.blocks:
            block.host = block.host or block.on_cpu
        return True

    def part_of(self, block: Block) -> str:
        """The part a block belongs to: as marked, else by when it lived."""
        if block.part is not None:
            return block.part
        phase = self.phases[block.phase][1]
        if phase in {LOSS, LOSS_BACKWARD}:
            return LOGITS
        outlives = block.died != block.phase
        if phase == FORWARD and outlives:
            return ACTIVATIONS
        if phase == BACKWARD and block.saving:
            return ACTIVATIONS  # a block run again by activation checkpointing
        return TEMPORARIES

    def requests(self) -> list[tuple[int, int, int]]:
        """(block or -block - 1, bytes, stream) of everything on the card: the allocator's input."""
        sizes: list[tuple[int, int, int]] = []
        for event in self.events:
            block = self.blocks[event if event >= 0 else -event - 1]
            if not block.host:
                sizes.append((event, block.size, block.stream))
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment at which most bytes are alive."""

    total: int
    """Bytes."""
    event: int
    """Index of the allocation that reached it."""
    phase: str
    """Phase it lies in."""
    parts: dict[str, int]
    """Part -> bytes; they sum to `total`."""


def peak(trace: Trace) -> Peak:
    """Find the highest sum of live blocks, the first one if there are several."""
    live = best = where = 0
    for index, event in enumerate(trace.events):
        block = trace.blocks[event if event >= 0 else -event - 1]
        if block.host:
            continue
        live += block.size if event >= 0 else -block.size
        if live > best:
            best, where = live, index
    phase = [name for start, name in trace.phases if start <= where][-1]
    return Peak(total=best, event=where, phase=phase, parts=parts_at(trace, where))


def parts_at(trace: Trace, index: int) -> dict[str, int]:
    """Bytes by part just after event `index`."""
    sums: dict[str, int] = dict.fromkeys(PARTS, 0)
    for event in trace.events[: index + 1]:
        block = trace.blocks[event if event >= 0 else -event - 1]
        if not block.host:
            sums[trace.part_of(block)] += block.size if event >= 0 else -block.size
    return {part: size for part, size in sums.items() if size}


def timeline(trace: Trace, points: int = 2000) -> list[tuple[int, dict[str, int]]]:
    """At most `points` moments, each the highest of its stretch: no peak is lost by thinning."""
    stretch = max(1, -(-len(trace.events) // points))
    sums: dict[str, int] = dict.fromkeys(PARTS, 0)
    names = [trace.part_of(block) for block in trace.blocks]
    points_kept: list[tuple[int, dict[str, int]]] = []
    live, best = 0, -1
    highest: tuple[int, dict[str, int]] = (0, {})
    for index, event in enumerate(trace.events):
        number = event if event >= 0 else -event - 1
        block = trace.blocks[number]
        if not block.host:
            size = block.size if event >= 0 else -block.size
            sums[names[number]] += size
            live += size
        if live > best:
            best, highest = live, (index, dict(sums))
        if index % stretch == stretch - 1 or index == len(trace.events) - 1:
            points_kept.append(
                (highest[0], {part: size for part, size in highest[1].items() if size})
            )
            best = -1
    return points_kept

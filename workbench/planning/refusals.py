"""Why combinations are not plans: one compact entry per reason, expanded to each layout on demand.

A combination is one layout on one offer with one number of nodes and one kind of price. What rules
an offer out as a whole counts once, whatever number of layouts it would have had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workbench.describe import Strategy
from workbench.estimate.parts import SAFETY
from workbench.planning.space import Choice, ParallelLayout
from workbench.units import format_bytes, format_seconds

LAYOUT, LAUNCH = "impossible layout", "not launchable"
MEMORY, HOST, SLOWER = "memory", "host memory", "slower layout"


@dataclass(frozen=True, slots=True)
class Bar:
    """Seconds of a step from which on a layout is of no use, whatever the others are."""

    seconds: float
    kind: str
    """Kind of refusal."""
    reason: str
    """What goes wrong from there on, in words."""


def layout_text(strategy: Strategy, micro_batch: int, accumulate: int) -> str:
    """A layout in one line, as every face names it."""
    words = [strategy.name]
    if strategy.recompute == "selective":
        words.append(f"recompute {'+'.join(strategy.recompute_parts)}")
    elif strategy.recompute != "none":
        words.append(f"recompute {strategy.recompute}")
    if strategy.offload:
        words.append(f"offload {'+'.join(strategy.offload)}")
    return f"{', '.join(words)}, micro-batch {micro_batch} x {accumulate}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Candidates of one layout that are out for one reason, on one kind of machine."""

    kind: str
    """LAYOUT, LAUNCH, MEMORY, HOST, SLOWER, or the kind of a `Bar`."""
    layout: ParallelLayout
    """Degrees and data parallelism."""
    choices: tuple[Choice, ...] = ()
    """Recompute and offload of the layouts; empty = an impossible layout."""
    micro_batches: tuple[int, ...] = ()
    """Micro-batches of the layouts."""
    needed: float = 0.0
    """MEMORY, HOST: bytes that the smallest of them needs (at least); SLOWER: seconds of a step
    that the fastest of them takes at least, 0 = not computed: another layout does less work."""
    limit: float = 0.0
    """MEMORY, HOST: bytes there are; SLOWER: seconds of a step of the best layout known then, or of
    the bar."""
    bar: Bar | None = None
    """What the layouts are too slow for, where that is not another layout."""
    rough: bool = False
    """MEMORY: `needed` counts states and buffers alone; they are too much already."""
    assumed: bool = False
    """HOST: how much memory the host has is not known."""

    @property
    def count(self) -> int:
        """Layouts it stands for."""
        return max(1, len(self.choices) * len(self.micro_batches))

    @property
    def reason(self) -> str:
        """One sentence."""
        if self.kind in {LAYOUT, LAUNCH}:
            return self.layout.reason
        if self.kind in {MEMORY, HOST}:
            limit_text = f"the host has {format_bytes(self.limit)} per GPU"
            if self.assumed:
                limit_text = (
                    f"the host's is not known, {format_bytes(self.limit)} per GPU are assumed"
                )
            if self.kind == MEMORY:
                card = format_bytes(self.limit / (1 - SAFETY))
                limit_text = f"the card has {card}, of which {SAFETY:.0%} must stay free"
            needs, over = format_bytes(self.needed), format_bytes(self.needed - self.limit)
            return f"needs {needs}{self._at_least}, {limit_text}: {over} too much"
        if self.bar is not None:
            return (
                f"{format_seconds(self.needed)} a step or more; from "
                f"{format_seconds(self.limit)} on {self.bar.reason}"
            )
        if not self.needed:
            return "slower: less recompute, less offload or a larger micro-batch fits as well"
        return (
            f"slower: {format_seconds(self.needed)} a step{self._at_least}, another layout on the "
            f"same machines takes {format_seconds(self.limit)}"
        )

    @property
    def _at_least(self) -> str:
        return " or more" if self.count > 1 or self.rough else ""

    def layouts(self) -> Iterator[str]:
        """Every layout it stands for, in words."""
        if not self.choices:
            yield self.layout.strategy.name
            return
        for choice in self.choices:
            for size in self.micro_batches:
                yield layout_text(choice.strategy, size, self.layout.accumulate(size))

"""Which candidates of a layout fit the card and the host of one kind of machine."""

from __future__ import annotations

from workbench.estimate.parts import SAFETY
from workbench.planning.refusals import HOST, MEMORY, Refusal
from workbench.planning.search_context import NodeGroup, SearchContext
from workbench.planning.space import Choice, ParallelLayout

Fitting = dict[int, tuple[int, ...]]
"""Choice of a layout -> micro-batches that fit."""


class MemorySearch:
    """Finds what fits on one kind of machine; the reasons against the rest go to `refusals`."""

    def __init__(self, context: SearchContext, where: NodeGroup, refusals: list[Refusal]) -> None:
        self._context, self._where, self._refusals = context, where, refusals
        self.limit = (1 - SAFETY) * where.card_bytes

    def possible(self, layout: ParallelLayout) -> tuple[int, ...]:
        """Choices whose states alone are not too much for the card or the host."""
        least, limit = self._context.least(layout), self.limit
        sizes, needs = layout.micro_batches, min(least.values())
        if needs > limit:
            refusal = Refusal(MEMORY, layout, layout.choices, sizes, needs, limit, rough=True)
            self._refusals.append(refusal)
            return ()
        left: list[int] = []
        for position, choice in enumerate(layout.choices):
            needs = least[choice.strategy.offload]
            if needs > limit:
                refusal = Refusal(MEMORY, layout, (choice,), sizes, needs, limit, rough=True)
                self._refusals.append(refusal)
            elif self._host_holds(layout, choice):
                left.append(position)
        return tuple(left)

    def _host_holds(self, layout: ParallelLayout, choice: Choice) -> bool:
        needed = self._context.host_bytes(layout, choice)
        if needed <= self._where.host_bytes:
            return True
        sizes, limit = layout.micro_batches, self._where.host_bytes
        unknown = self._where.cluster.memory_bytes is None
        refusal = Refusal(HOST, layout, (choice,), sizes, needed, limit, assumed=unknown)
        self._refusals.append(refusal)
        return False

    def none_fits(self, layout: ParallelLayout, choices: tuple[Choice, ...]) -> bool:
        """Whether not even the smallest need of the layout fits; then all of it is refused."""
        needs = self._context.smallest(layout, choices, self.limit)
        if needs <= self.limit:
            return False
        sizes = layout.micro_batches
        self._refusals.append(Refusal(MEMORY, layout, choices, sizes, needs, self.limit))
        return True

    def micro_batches(
        self, layout: ParallelLayout, position: int, fitting: Fitting
    ) -> tuple[int, ...]:
        """Micro-batches that fit, ascending."""
        if position not in fitting:
            fitting[position] = self._weigh(layout, layout.choices[position])
        return fitting[position]

    def _weigh(self, layout: ParallelLayout, choice: Choice) -> tuple[int, ...]:
        """Find the largest micro-batch that fits by doubling and bisection.

        With as many micro-batches as stages no gradients exist while all activations do: then the
        largest micro-batch may fit where smaller ones do not, and is asked for itself.
        """
        s, sizes = layout.strategy, layout.micro_batches
        try_last = layout.accumulate(sizes[-1]) == s.pp
        count = len(sizes) - try_last

        def lacks(index: int) -> float:
            return self._context.bytes(layout, choice, sizes[index]) - self.limit

        low, high, step = -1, 0, 1  # fits(low) or none; the next to ask
        while high < count and lacks(high) <= 0:
            low, high, step = high, min(high + step, max(high + 1, count - 1)), 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if lacks(middle) <= 0 else (low, middle)
        fits = sizes[: low + 1]
        gradients = 4 * self._context.workload.model.parameters / (s.tp * s.pp)
        is_near = high >= count or lacks(high) < gradients
        return (*fits, sizes[-1]) if try_last and is_near and lacks(-1) <= 0 else fits

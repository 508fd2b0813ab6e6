"""Everything that did not become a plan: counted in full, kept compactly, worded on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, zip_longest

from workbench.planning.layout_result import LayoutResult
from workbench.planning.market import Ruled

ANY = "any"
"""Layout of a rejection that holds for all of an offer's layouts."""
LISTED = 200
"""Single rejections in a JSON document; the totals are always complete."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One combination of a layout and an offer, and why it is out."""

    layout: str
    """The layout in words; `ANY` when the offer is out whatever the layout."""
    offer: str
    """Provider, machines and price kind in words."""
    kind: str
    """Reason in two words, to count by."""
    reason: str
    """Reason in one sentence."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """All rejections of a search; iterating makes each of them in words."""

    offers: tuple[Ruled, ...]
    """Offers that are out as a whole: each counts once."""
    searched: tuple[tuple[str, LayoutResult], ...]
    """(offer in words, its layouts) of every offer whose layouts were looked at."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_kind.values())

    @property
    def by_kind(self) -> Mapping[str, int]:
        """Kind of reason -> number of combinations, the most frequent first."""
        counts: Counter[str] = Counter(ruled.kind for ruled in self.offers)
        for _, result in self.searched:
            counts.update(result.refused)
        return dict(counts.most_common())

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Rejection]:
        for ruled in self.offers:
            yield Rejection(ANY, ruled.where, ruled.kind, ruled.reason)
        for where, result in self.searched:
            for refusal in result.refusals:
                for layout in refusal.layouts():
                    yield Rejection(layout, where, refusal.kind, refusal.reason)

    def examples(self) -> Mapping[str, Rejection]:
        """One rejection of every kind."""
        by_kind: dict[str, Rejection] = {}
        for ruled in self.offers:
            if ruled.kind not in by_kind:
                by_kind[ruled.kind] = Rejection(ANY, ruled.where, ruled.kind, ruled.reason)
        for where, result in self.searched:
            for refusal in result.refusals:
                if refusal.kind not in by_kind:
                    layout = next(refusal.layouts())
                    by_kind[refusal.kind] = Rejection(layout, where, refusal.kind, refusal.reason)
        return by_kind

    def listed(self, most: int = LISTED) -> tuple[Rejection, ...]:
        """At most so many: offers as a whole, then one layout of every reason, offer by offer."""
        of_offers = islice((rejection for rejection in self if rejection.layout == ANY), most)
        rows = [
            [(where, refusal) for refusal in result.refusals] for where, result in self.searched
        ]
        samples = (
            Rejection(next(refusal.layouts()), where, refusal.kind, refusal.reason)
            for row in zip_longest(*rows)
            for where, refusal in filter(None, row)
        )
        return tuple(islice(chain(of_offers, samples), most))

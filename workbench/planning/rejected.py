"""Everything that did not become a plan: counted in full, kept compactly, worded on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest

from workbench.planning.layout_result import LayoutResult
from workbench.planning.market import RuledOutOffer
from workbench.planning.refusals import Refusal

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

    offers: tuple[RuledOutOffer, ...]
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

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.by_kind.items())
        return f"{self.total:,} combinations rejected: {kinds}"

    __repr__ = __str__

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Rejection]:
        for ruled in self.offers:
            yield Rejection(ANY, ruled.where, ruled.kind, ruled.reason)
        for where, result in self.searched:
            for refusal in result.refusals:
                for layout in refusal.layouts():
                    yield Rejection(layout, where, refusal.kind, refusal.reason)

    def samples(self, most: int) -> Mapping[str, list[Rejection]]:
        """At most so many rejections of every kind, from as many offers as possible."""
        samples: dict[str, list[Rejection]] = {}
        for where, out in self._varied():
            if len(rows := samples.setdefault(out.kind, [])) < most:
                rows.append(_worded(where, out))
        return samples

    def listed(self, most: int = LISTED) -> tuple[Rejection, ...]:
        """At most so many: offers as a whole, then one layout of every reason, offer by offer."""
        return tuple(_worded(where, out) for where, out in islice(self._varied(), most))

    def _varied(self) -> Iterator[tuple[str, RuledOutOffer | Refusal]]:
        """(offer in words, why it is out): offers as a whole, then a reason of each in turn."""
        for ruled in self.offers:
            yield ruled.where, ruled
        rows = [
            [(where, refusal) for refusal in result.refusals] for where, result in self.searched
        ]
        for row in zip_longest(*rows):
            yield from filter(None, row)


def _worded(where: str, out: RuledOutOffer | Refusal) -> Rejection:
    layout = ANY if isinstance(out, RuledOutOffer) else next(out.layouts())
    return Rejection(layout, where, out.kind, out.reason)

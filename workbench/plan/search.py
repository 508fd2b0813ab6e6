"""From a workload to ranked plans over all offers: exact, although little of it is computed.

Offers are tried in the order of what they would cost without any loss. One that `KEEP` plans
already beat in dollars and hours, even so, cannot be on the Pareto front nor among the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import UsageError
from workbench.estimate.cost import RunCost
from workbench.estimate.switching import HOST_BYTES_PER_GPU
from workbench.estimate.timing import StepTime
from workbench.plan.case import Case, Machines
from workbench.plan.machines import Fit, Found, LayoutSearch
from workbench.plan.market import (
    BUDGET,
    DEADLINE,
    DOMINATED,
    INTERRUPTED,
    PRICE,
    Candidate,
    Limits,
    Market,
    Ruled,
    where_text,
)
from workbench.units import format_seconds, format_usd

BEST_CASE = "even without any loss "
KEEP = 10
"""Plans that must beat an offer in dollars and hours before it is left out: so many of the cheapest
and the fastest are exact, and the front is."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A candidate with its fastest layout and the bill."""

    candidate: Candidate
    fit: Fit
    found: Found
    cost: RunCost

    @property
    def usd(self) -> float:
        """The finished run; only priced candidates get here."""
        assert self.cost.usd is not None
        return self.cost.usd

    @property
    def hours(self) -> float:
        """The finished run."""
        return self.cost.wall_hours

    @property
    def rank(self) -> tuple[float, int, float]:
        """Cheapest first; ties go to fewer GPUs, then to the faster."""
        return (round(self.usd, 6), self.candidate.gpus, self.hours)


class OfferSearch:
    """One search over all candidates; use it once."""

    def __init__(self, case: Case, market: Market, limits: Limits) -> None:
        self.case, self.market, self.limits = case, market, limits
        self.priced: list[Priced] = []
        self.ruled: list[Ruled] = list(market.ruled)
        self.searched: list[tuple[str, Found]] = []
        self.combinations = len(market.ruled)
        self._found: dict[tuple[object, ...], Found] = {}

    def run(self) -> None:
        """Price every candidate, or say why not."""
        ideals: list[tuple[float, float, int, Candidate]] = []
        for index, candidate in enumerate(self.market.candidates):
            cost = self._cost(candidate, self.case.ideal(candidate.cluster))
            if cost is None or self._beyond(candidate, cost, BEST_CASE):
                self.combinations += 1
            else:
                assert cost.usd is not None
                ideals.append((cost.usd, cost.wall_hours, index, candidate))
        for usd, hours, _, candidate in sorted(ideals, key=lambda one: one[:3]):
            self._look_at(candidate, usd, hours)
        self.priced.sort(key=lambda one: one.rank)

    def _look_at(self, candidate: Candidate, usd: float, hours: float) -> None:
        better = self._better(candidate, usd, hours)
        if better is not None:
            self._rule(
                candidate,
                DOMINATED,
                f"{BEST_CASE}{format_usd(usd)} and {format_seconds(3600 * hours)}; "
                f"{_where(better.candidate)} takes {format_usd(better.usd)} and "
                f"{format_seconds(3600 * better.hours)}, and {KEEP - 1} others beat it too",
            )
            self.combinations += 1
            return
        found = self.found(candidate)
        self.searched.append((_where(candidate), found))
        self.combinations += found.layouts
        if not found.best:
            return
        fit = found.best[0]
        cost = self._cost(candidate, fit.step)
        if cost is not None and not self._beyond(candidate, cost):
            self.priced.append(Priced(candidate, fit, found, cost))

    def _better(self, candidate: Candidate, usd: float, hours: float) -> Priced | None:
        """The best plan that leaves no hope, when there are `KEEP` of them.

        On-demand offers are only measured by others of their kind: if spot machines turn out worse
        than thought, they must still be there.
        """
        beaten = [
            one
            for one in self.priced
            if one.usd <= usd and one.hours <= hours and one.candidate.spot <= candidate.spot
        ]
        return min(beaten, key=lambda one: one.rank) if len(beaten) >= KEEP else None

    def found(self, candidate: Candidate) -> Found:
        """The layouts on this kind of machine; asked once for all offers of it."""
        cluster, memory = candidate.cluster, candidate.offer.memory_bytes
        host = memory / candidate.offer.gpus if memory else HOST_BYTES_PER_GPU
        ample = self._layouts(Machines(cluster, float("inf")))
        best = ample.best[0] if ample.best else None
        if best is None or self.case.host_bytes(best.spread, best.choice) <= host:
            return ample
        return self._layouts(Machines(cluster, host))

    def _layouts(self, where: Machines) -> Found:
        key = where.key
        if key not in self._found:
            self._found[key] = LayoutSearch(self.case, where).run()
        return self._found[key]

    def _cost(self, candidate: Candidate, step: StepTime) -> RunCost | None:
        """The bill; None (and ruled out) when the run never ends or a term has no price."""
        try:
            cost = candidate.cost(step)
        except UsageError as error:
            self._rule(candidate, INTERRUPTED, str(error))
            return None
        if cost.usd is None:
            unknown = (name for name, usd in cost.amounts.items() if usd is None)
            self._rule(candidate, PRICE, f"no price is known for {', '.join(unknown)}")
            return None
        return cost

    def _beyond(self, candidate: Candidate, cost: RunCost, prefix: str = "") -> bool:
        """Whether it breaks a limit; then it is ruled out."""
        budget, deadline = self.limits.budget_usd, self.limits.deadline_hours
        assert cost.usd is not None
        if budget is not None and cost.usd > budget:
            text = f"{prefix}{format_usd(cost.usd)}, {format_usd(cost.usd - budget)} over budget"
            self._rule(candidate, BUDGET, text)
            return True
        if deadline is not None and cost.wall_hours > deadline:
            late = format_seconds(3600 * (cost.wall_hours - deadline))
            text = f"{prefix}{format_seconds(3600 * cost.wall_hours)}, {late} too late"
            self._rule(candidate, DEADLINE, text)
            return True
        return False

    def _rule(self, candidate: Candidate, kind: str, reason: str) -> None:
        one = Ruled(kind, candidate.offer, candidate.nodes, candidate.spot, reason)
        self.ruled.append(one)


def _where(candidate: Candidate) -> str:
    return where_text(candidate.offer, candidate.nodes, spot=candidate.spot)

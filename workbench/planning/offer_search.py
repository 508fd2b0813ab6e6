"""From a workload to ranked plans over all offers: exact, although little of it is computed.

Offers are tried in the order of what they would cost without any loss. One that a plan beats in
dollars and hours, even so, cannot be on the Pareto front; nor among the first `KEEP`, when so many
are cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from workbench.errors import UsageError
from workbench.estimate.cost import RunCost
from workbench.estimate.timing import StepTime
from workbench.planning.layout_result import FittingLayout, LayoutResult
from workbench.planning.layout_search import LayoutSearch
from workbench.planning.market import (
    BUDGET,
    DEADLINE,
    DOMINATED,
    INTERRUPTED,
    PRICE,
    Candidate,
    Limits,
    Market,
    RuledOutOffer,
)
from workbench.planning.refusals import HOST, Bar
from workbench.planning.search_context import SearchContext, node_group
from workbench.units import format_seconds, format_usd

BEST_CASE = "even without any loss "
SLOWEST = 100.0
"""Times as long as without any loss: no layout worth looking at takes longer."""
KEEP = 10
"""Plans that must be cheaper before an offer is left out: so many of the cheapest are exact."""

Progress = Callable[[int, int, int], None]
"""Is told while it continues: offers looked at, of how many, plans found."""


@dataclass(frozen=True, slots=True)
class PricedCandidate:
    """A candidate with its fastest layout and the bill."""

    candidate: Candidate
    fit: FittingLayout
    result: LayoutResult
    cost: RunCost
    usd: float
    """The finished run."""
    hours: float
    """The finished run."""

    @property
    def rank(self) -> tuple[float, float, int]:
        """Cheapest first; ties go to the faster, then to fewer GPUs."""
        return (self.price, self.hours, self.candidate.gpus)

    @property
    def price(self) -> float:
        """Dollars without the last digits' noise, for comparing."""
        return round(self.usd, 6)


class OfferSearch:
    """One search over all candidates; use it once."""

    def __init__(
        self,
        context: SearchContext,
        market: Market,
        limits: Limits,
        progress: Progress | None = None,
    ) -> None:
        self.context, self.market, self.limits, self._progress = context, market, limits, progress
        self.priced: list[PricedCandidate] = []
        self.ruled: list[RuledOutOffer] = list(market.ruled)
        self.searched: list[tuple[str, LayoutResult]] = []
        self.combinations = len(market.ruled)
        self._results: dict[tuple[object, ...], list[tuple[float, LayoutResult]]] = {}

    def run(self) -> None:
        """Price every candidate, or say why not."""
        ideals: list[tuple[float, float, int, Candidate]] = []
        for index, candidate in enumerate(self.market.candidates):
            cost = self._cost(candidate, self.context.ideal(candidate.cluster))
            if cost is None or self._beyond(candidate, cost, BEST_CASE):
                self.combinations += 1
            else:
                assert cost.usd is not None
                ideals.append((cost.usd, cost.wall_hours, index, candidate))
        for done, (usd, hours, _, candidate) in enumerate(
            sorted(ideals, key=lambda ideal: ideal[:3])
        ):
            if self._progress is not None:
                self._progress(done, len(ideals), len(self.priced))
            self._look_at(candidate, usd, hours)
        self.priced.sort(key=lambda priced: priced.rank)

    def _look_at(self, candidate: Candidate, usd: float, hours: float) -> None:
        better = self._better(candidate, usd, hours)
        if better is not None:
            self._rule(
                candidate,
                DOMINATED,
                f"{BEST_CASE}{format_usd(usd)} and {format_seconds(3600 * hours)}; "
                f"{better.candidate.where} takes {format_usd(better.usd)} and "
                f"{format_seconds(3600 * better.hours)}",
            )
            self.combinations += 1
            return
        result = self.layouts(candidate, self._bar(candidate))
        self.searched.append((candidate.where, result))
        self.combinations += result.layouts
        if not result.best:
            return
        fit = result.best[0]
        cost = self._cost(candidate, fit.step)
        if cost is not None and not self._beyond(candidate, cost):
            assert cost.usd is not None
            priced = PricedCandidate(candidate, fit, result, cost, cost.usd, cost.wall_hours)
            self.priced.append(priced)

    def _better(self, candidate: Candidate, usd: float, hours: float) -> PricedCandidate | None:
        """A plan that leaves no hope: cheaper and faster, and `KEEP` are cheaper.

        On-demand offers are only measured by others of their kind: if spot machines turn out worse
        than thought, they must still be there.
        """
        spot = candidate.spot
        cheaper = [
            priced
            for priced in self.priced
            if priced.usd <= usd and (spot or not priced.candidate.spot)
        ]
        if len(cheaper) < KEEP:
            return None
        best = min(cheaper, key=lambda priced: priced.hours)
        return best if best.hours <= hours else None

    def _bar(self, candidate: Candidate) -> Bar | None:
        """The step time from which on the candidate is beaten or breaks a limit; None = none.

        Bisection between no loss at all and `SLOWEST` times as long; dollars and hours only grow.
        """
        ideal = self.context.ideal(candidate.cluster)

        def useless(factor: float) -> tuple[str, str] | None:
            parts = {name: factor * part for name, part in ideal.parts.items()}
            try:
                cost = candidate.cost(replace(ideal, parts=parts))
            except UsageError:
                return INTERRUPTED, "the run never ends"
            assert cost.usd is not None
            if self.limits.over_budget(cost.usd):
                return BUDGET, f"the run costs more than {format_usd(self.limits.budget_usd)}"
            if self.limits.too_late(cost.wall_hours):
                return DEADLINE, "the run takes longer than the deadline"
            better = self._better(candidate, cost.usd, cost.wall_hours)
            if better is None:
                return None
            return DOMINATED, f"{better.candidate.where} is cheaper and faster"

        low, high = 1.0, SLOWEST
        why = useless(high)
        if why is None:
            return None
        while high / low > 1.01:
            middle = math.sqrt(low * high)
            reason = useless(middle)
            low, high, why = (middle, high, why) if reason is None else (low, middle, reason)
        return Bar(high * ideal.step_seconds, *why)

    def layouts(self, candidate: Candidate, bar: Bar | None = None) -> LayoutResult:
        """The layouts on this kind of machine; asked once for all offers of it.

        An answer for more host memory holds where its best layout still finds room; one for less,
        where what was refused for it would be refused again. And it must not have stopped at a
        lower bar.
        """
        memory, cluster = candidate.offer.memory_bytes, candidate.cluster
        where = node_group(replace(cluster, memory_bytes=memory))
        results = self._results.setdefault(where.key[:-1], [])
        seconds = bar.seconds if bar else math.inf
        for host, result in results:
            stopped = not result.best and result.bar < seconds
            if host >= where.host_bytes:
                holds = self._needs(result) <= where.host_bytes
            else:
                refused = (refusal.needed for refusal in result.refusals if refusal.kind == HOST)
                holds = where.host_bytes < min(refused, default=math.inf)
            if holds and not stopped:
                return result
        result = LayoutSearch(self.context, where, 1, bar).run()
        results.append((where.host_bytes, result))
        return result

    def _needs(self, result: LayoutResult) -> float:
        """Host memory of the best layout."""
        return max(
            (self.context.host_bytes(fit.layout, fit.choice) for fit in result.best), default=0
        )

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
        if budget is not None and self.limits.over_budget(cost.usd):
            text = f"{prefix}{format_usd(cost.usd)}, {format_usd(cost.usd - budget)} over budget"
            self._rule(candidate, BUDGET, text)
            return True
        if deadline is not None and self.limits.too_late(cost.wall_hours):
            late = format_seconds(3600 * (cost.wall_hours - deadline))
            text = f"{prefix}{format_seconds(3600 * cost.wall_hours)}, {late} too late"
            self._rule(candidate, DEADLINE, text)
            return True
        return False

    def _rule(self, candidate: Candidate, kind: str, reason: str) -> None:
        ruled = RuledOutOffer(kind, candidate.offer, candidate.nodes, candidate.spot, reason)
        self.ruled.append(ruled)

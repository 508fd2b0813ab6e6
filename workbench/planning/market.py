"""Which offers come into question: limits of the user, and every offer x nodes x kind of price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from workbench.describe import Cluster, Conditions, Workload
from workbench.describe.accelerators import STARTABLE, accelerators, find
from workbench.describe.hardware import MOST_GPUS, MOST_NODES
from workbench.describe.option import Option, several
from workbench.describe.option_limits import check_declared
from workbench.describe.price import Offer, Terms
from workbench.errors import UnknownNameError, UsageError
from workbench.estimate.cost import RunCost, RunPlan, run_cost
from workbench.estimate.rates import machine
from workbench.estimate.timing import StepTime
from workbench.units import GIB, format_bytes

MOST = 128
"""GPUs of a plan where `Limits.max_gpus` says nothing."""
PRICE, SPOT, FABRIC, NODES = "price unknown", "spot not offered", "no fabric", "node limit"
GPUS, PRECISION, VENDOR = "too many GPUs", "precision", "not startable"
SMALL_HOST = "small host"
RANK_HOST_BYTES = 8 * GIB
"""Host memory per GPU: process, pinned buffers, loaders. The usual lower figure."""
BUDGET, DEADLINE, DOMINATED = "over budget", "past the deadline", "dominated"
INTERRUPTED = "never ends"
ROUNDING = 1e-9
"""Share by which the sum of a bill's parts may differ from that of another with as many hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a plan must keep to; nothing given = no limit."""

    budget_usd: Annotated[
        float | None, Option(help="Maximum cost of the run.", unit="$", above=0)
    ] = None
    """Most dollars of the finished run."""
    deadline_hours: Annotated[
        float | None, Option(help="Maximum hours, including start-up.", unit="h", above=0)
    ] = None
    """Most hours from renting the machines to the finished run."""
    providers: tuple[str, ...] = ()
    """Only these; empty = all."""
    gpus: tuple[str, ...] = ()
    """Only these accelerators: an id, or a family's name (h100: every form factor); empty = all."""
    regions: tuple[str, ...] = ()
    """Only regions whose name contains one of these; an unknown region is in none of them."""
    max_gpus: Annotated[
        int | None, Option(help="Maximum number of GPUs.", least=1, most=MOST_GPUS * MOST_NODES)
    ] = None
    """Most GPUs; None = `MOST`."""
    spot: bool = False
    """Interruptible machines may be used too."""

    def __post_init__(self) -> None:
        for name in ("providers", "gpus", "regions"):
            object.__setattr__(self, name, several(getattr(self, name)))
        check_declared(self)

    @property
    def most(self) -> int:
        """Most GPUs, resolved."""
        return MOST if self.max_gpus is None else self.max_gpus

    def over_budget(self, usd: float) -> bool:
        """Whether a bill is above the budget; a rounding of its sum is not."""
        return self.budget_usd is not None and usd > self.budget_usd * (1 + ROUNDING)

    def too_late(self, hours: float) -> bool:
        """Whether a run ends after the deadline."""
        return self.deadline_hours is not None and hours > self.deadline_hours * (1 + ROUNDING)

    def matching(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """The offers of the asked providers, accelerators and regions.

        Raises:
            UsageError: a name that is not among the offers, or nothing left of them.
        """
        all_offers = tuple(offers)
        if not all_offers:
            raise UsageError("There are no offers to plan with. Give offers, or a price file.")
        from workbench.describe.prices import provider_name  # noqa: PLC0415 (reads price tables)

        sellers = {offer.provider.lower() for offer in all_offers}
        providers = {provider_name(name, sellers) for name in self.providers}
        regions = {offer.region for offer in all_offers if offer.region}
        for word in self.regions:
            if not any(word.lower() in region.lower() for region in regions):
                raise UnknownNameError.near("region", word, regions)
        gpus = {gpu for name in self.gpus for gpu in card_forms(name)}
        left = tuple(
            offer
            for offer in all_offers
            if (not providers or offer.provider.lower() in providers)
            and (not gpus or offer.gpu in gpus)
            and self._in_region(offer.region)
        )
        if not left:
            raise UsageError(self._nothing_left(all_offers, providers, gpus))
        return left

    def _in_region(self, region: str) -> bool:
        """Whether an offer's region has one of the words; an unknown region is in none of them."""
        return not self.regions or any(word.lower() in region.lower() for word in self.regions)

    def _nothing_left(
        self, all_offers: Sequence[Offer], providers: set[str], gpus: set[str]
    ) -> str:
        conditions = [
            f"{word} {', '.join(sorted(names))}"
            for word, names in (("at", providers), ("of", gpus), ("in", set(self.regions)))
            if names
        ]
        available = {
            offer.gpu
            for offer in all_offers
            if not providers or offer.provider.lower() in providers
        }
        return f"No offer {' '.join(conditions)}. There is: {', '.join(sorted(available))}."


def card_forms(name: str) -> set[str]:
    """Ids of the accelerator called `name`, with all its form factors unless one is named."""
    identifier = find(name).id
    word = name.strip().lower()
    if identifier == word:
        return {identifier}
    return {identifier} | {gpu.id for gpu in accelerators() if gpu.id.startswith(f"{word}-")}


@dataclass(frozen=True, slots=True)
class RuledOutOffer:
    """One offer with a number of nodes that is out as a whole."""

    kind: str
    """One of the kinds above."""
    offer: Offer
    nodes: int
    spot: bool
    reason: str
    """One sentence."""

    @property
    def where(self) -> str:
        """The machines in one line."""
        return where_text(self.offer, self.nodes, spot=self.spot)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One offer with a number of nodes and a kind of price."""

    offer: Offer
    nodes: int
    run: RunPlan
    terms: Terms
    cluster: Cluster

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.offer.gpus * self.nodes

    @property
    def spot(self) -> bool:
        """Interruptible."""
        return self.run.spot

    @property
    def where(self) -> str:
        """The machines in one line."""
        return where_text(self.offer, self.nodes, spot=self.spot)

    def cost(self, step: StepTime, run: RunPlan | None = None, price: float = 1.0) -> RunCost:
        """The finished run at that step time, the price scaled by a factor.

        Raises:
            UsageError: interruptions so frequent that it never ends.
        """
        offer = self.offer
        if price != 1.0:
            scaled = {
                name: value * price
                for name in ("usd_per_hour", "spot_usd_per_hour")
                if (value := getattr(offer, name)) is not None
            }
            offer = replace(offer, **scaled)
        return run_cost(step, offer, self.nodes, self.terms, run or self.run)


def where_text(offer: Offer, nodes: int, *, spot: bool) -> str:
    """An offer in one line, as every face names it."""
    machines = f"{nodes} x {offer.gpus}" if nodes > 1 else f"{offer.gpus}"
    place = ", ".join(part for part in (offer.name, offer.region, "spot" if spot else "") if part)
    return f"{offer.provider} {machines} x {offer.gpu}" + (f" ({place})" if place else "")


@dataclass
class Market:
    """Sorts offers into candidates and those that are out as a whole."""

    workload: Workload
    limits: Limits
    run: RunPlan
    terms: Callable[[str], Terms]
    conditions: Conditions

    def __post_init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.ruled: list[RuledOutOffer] = []
        self._clusters: dict[tuple[object, ...], Cluster] = {}
        self._terms: dict[str, Terms] = {}
        self._lacks: dict[str, tuple[str, str]] = {}

    def add(self, offer: Offer) -> None:
        """Look at one offer with every number of nodes."""
        kinds = (False, True) if self.limits.spot else (False,)
        for spot in kinds:
            reason = self._reason_against(offer, spot=spot)
            if reason is not None:
                self.ruled.append(RuledOutOffer(reason[0], offer, 1, spot, reason[1]))
                continue
            counts, end = self._node_counts(offer)
            for nodes in counts:
                self._add(offer, nodes, spot=spot)
            if end is not None:
                nodes = 2 * counts[-1]
                self.ruled.append(RuledOutOffer(end[0], offer, nodes, spot, end[1]))

    def _reason_against(self, offer: Offer, *, spot: bool) -> tuple[str, str] | None:
        """Why no number of nodes of this offer comes into question."""
        lacks = self._lack(offer.gpu)
        if lacks[0]:
            return lacks
        if offer.gpus > self.limits.most:
            return GPUS, f"{offer.gpus} GPUs; at most {self.limits.most} are allowed"
        if offer.memory_bytes is not None and offer.memory_bytes < offer.gpus * RANK_HOST_BYTES:
            return SMALL_HOST, (
                f"{format_bytes(offer.memory_bytes / offer.gpus)} of host memory per GPU; a "
                f"rank's process, loaders and pinned buffers take {format_bytes(RANK_HOST_BYTES)}"
            )
        if spot and offer.spot_usd_per_hour is None:
            return SPOT, f"{offer.provider} has no spot price for it, or none is known"
        if not spot and offer.usd_per_hour is None:
            return PRICE, "its price is unknown"
        return None

    def _lack(self, gpu: str) -> tuple[str, str]:
        """What the accelerator cannot do; empty strings = nothing."""
        if gpu not in self._lacks:
            accelerator, reason = find(gpu), ("", "")
            work = self.workload
            try:
                machine(accelerator, work.precision, work.kernels.flash_version, self.conditions)
            except UsageError as error:
                reason = PRECISION, str(error)
            if accelerator.vendor not in STARTABLE:
                names = " or ".join(STARTABLE)
                reason = VENDOR, f"{accelerator.name}: the launcher starts ranks on {names} only"
            self._lacks[gpu] = reason
        return self._lacks[gpu]

    def _node_counts(self, offer: Offer) -> tuple[list[int], tuple[str, str] | None]:
        """Numbers of nodes: powers of two and the most there is; and why there are no more."""
        most = self.limits.most // offer.gpus
        joined = offer.max_nodes or 1
        if joined > 1 and offer.network is None:
            joined = 1
        allowed = min(most, joined)
        counts = [1 << power for power in range(allowed.bit_length()) if 1 << power <= allowed]
        if counts[-1] != allowed:
            counts.append(allowed)
        if most <= allowed:
            return counts, None
        if offer.max_nodes is None:
            return counts, (FABRIC, f"not known whether {offer.provider} joins them by a fabric")
        if offer.max_nodes > 1 and offer.network is None:
            return counts, (FABRIC, f"the fabric between {offer.provider}'s nodes is unknown")
        if offer.max_nodes == 1:
            return counts, (FABRIC, f"{offer.provider} has no fabric between them")
        return counts, (NODES, f"{offer.provider} joins at most {offer.max_nodes} nodes")

    def _add(self, offer: Offer, nodes: int, *, spot: bool) -> None:
        network = offer.network if nodes > 1 else None
        key = (offer.gpu, offer.gpus, nodes, network)
        if key not in self._clusters:
            self._clusters[key] = Cluster.rented(offer.gpu, offer.gpus, nodes, network=network)
        if offer.provider not in self._terms:
            self._terms[offer.provider] = self.terms(offer.provider)
        run = replace(self.run, spot=spot) if spot else self.run
        terms, cluster = self._terms[offer.provider], self._clusters[key]
        self.candidates.append(Candidate(offer, nodes, run, terms, cluster))

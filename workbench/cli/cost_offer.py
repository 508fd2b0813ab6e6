"""The offer that ``workbench cost`` prices a run at: yours, a named one, or the cheapest offer."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from workbench.cli.quantities import read_range
from workbench.describe import Cluster, prices
from workbench.describe.detection import host_price
from workbench.describe.price import Offer, Terms
from workbench.errors import UnknownNameError, UsageError
from workbench.planning.market import RANK_HOST_BYTES
from workbench.units import UNKNOWN, format_bytes

if TYPE_CHECKING:
    from workbench.cli.cost_values import CostOptions

OWN = "own"
_DOUBTS = {"odd", "unverified", "form unknown"}  # chosen only where nothing better is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOffer:
    """The offer that a run is priced at."""

    offer: Offer
    """Machines and price."""
    terms: Terms
    """The provider's other terms."""
    notes: tuple[str, ...] = ()
    """Why this one."""
    price_range: tuple[float, float] = (1.0, 1.0)
    """Lower and upper price over the offer's."""
    problem: str = ""
    """Why the job cannot run on these machines; empty = nothing is known against it."""


def priced_offer(options: CostOptions, cluster: Cluster, host_bytes: int = 0) -> PricedOffer:
    """Your own price, the named offer, or the cheapest of the table that can run it.

    `host_bytes`: what the job keeps in the host memory of a node, 0 = nothing.
    """
    if options.usd_per_hour is not None or options.spot_usd_per_hour is not None:
        return _own(options, cluster)
    if options.gpu is None and host_price() and cluster.usd_per_hour:
        text = str(cluster.usd_per_hour)
        return _own(replace(options, usd_per_hour=text), cluster, "$WORKBENCH_USD_PER_HOUR")
    return _from_table(options, cluster, host_bytes)


def _own(options: CostOptions, cluster: Cluster, source: str = "given by you") -> PricedOffer:
    if options.offer is not None:
        raise UsageError("Give --offer or --usd-per-hour, not both.")
    price_text = options.usd_per_hour
    ends = None if price_text is None else read_range(price_text, "--usd-per-hour")
    price = None if ends is None else sum(ends) / 2
    spot = options.spot_usd_per_hour
    only_spot = options.spot and spot is None  # then the one price is what is paid
    gpu = cluster.accelerator
    assert gpu is not None
    name = _provider(options.provider)
    offer = Offer(
        provider=name,
        name=f"{len(cluster.gpus)} x {gpu.id}",
        gpu=gpu.id,
        gpus=len(cluster.gpus),
        usd_per_hour=None if only_spot else price,
        spot_usd_per_hour=price if only_spot else spot,
        network=cluster.network,
        source=source,
        date=dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        confidence=OWN,
    )
    ranged = (1.0, 1.0)
    if ends is not None and price is not None and not (options.spot and spot is not None):
        ranged = ends[0] / price, ends[1] / price
    terms = Terms(provider=OWN) if name == OWN else prices.terms(name)
    return PricedOffer(offer=offer, terms=terms, price_range=ranged)


def _provider(name: str | None) -> str:
    """Whose terms hold beside a price of one's own: nobody's, or a known provider's.

    Raises:
        UnknownNameError: nobody knows it; says where one of one's own is named.
    """
    if name is None or name.strip().lower() == OWN:
        return OWN
    try:
        return prices.provider_name(name, prices.providers())
    except UnknownNameError as unknown:
        raise UnknownNameError(
            f"{unknown} For machines of another one leave the provider out, or list it in your "
            f"price file ({prices.own_file()}; see workbench prices --help)."
        ) from None


def named_offer(options: CostOptions) -> Offer:
    """The cheapest region of the offer that --offer names.

    Raises:
        UnknownNameError: no such provider or offer; near ones are named.
    """
    offers = prices.offers(providers=_providers(options))
    matching = [offer for offer in offers if offer.name.lower() == str(options.offer).lower()]
    if not matching:
        raise UnknownNameError.near("offer", str(options.offer), {offer.name for offer in offers})
    return _cheapest(matching, spot=options.spot)


def _from_table(options: CostOptions, cluster: Cluster, host_bytes: int) -> PricedOffer:
    """The cheapest known machine with enough of these GPUs, or the one that was named."""
    gpu, needed = cluster.accelerator, len(cluster.gpus)
    assert gpu is not None
    all_offers = [offer for offer in prices.offers(gpu=gpu.id) if offer.gpus >= needed]
    from_providers = prices.offers(providers=_providers(options), gpu=gpu.id)
    matching = [offer for offer in from_providers if offer.gpus >= needed]
    if options.offer is not None:
        name = named_offer(options).name
        matching = [offer for offer in matching if offer.name == name]
    if not matching and (options.offer or options.provider):
        at = ", ".join(sorted({offer.provider for offer in all_offers})) or "no provider"
        raise UsageError(
            f"{options.offer or options.provider} does not list {needed} x {gpu.id} in the price "
            f"table. Listed at: {at}. Choose one of them, or give --usd-per-hour X."
        )
    if not matching:
        note = _none_so_large(gpu.id, needed)
        unknown_offer = Offer(provider=UNKNOWN, name="", gpu=gpu.id, gpus=needed, usd_per_hour=None)
        return PricedOffer(offer=unknown_offer, terms=Terms(provider=UNKNOWN), notes=(note,))
    room = [offer for offer in matching if not _lacks_host_memory(offer, cluster, host_bytes)]
    able = _joinable(room or matching, cluster.nodes, spot=options.spot)
    best = _cheapest(able, spot=options.spot)
    notes: list[str] = []
    if options.provider is None and options.offer is None:
        small = len(matching) - len(room or matching)
        notes.append(_chosen(best, able, small=small, spot=options.spot))
    if (best.max_nodes or 1) < cluster.nodes:
        notes.append(
            f"{best.provider} is not known to connect {cluster.nodes} of them: ask before renting."
        )
    if host_bytes and best.memory_bytes is None:
        notes.append(
            f"Offload keeps {format_bytes(host_bytes)} in the host memory of a node; how much "
            f"{best.name or best.provider} has is not known: ask before renting."
        )
    return PricedOffer(
        offer=best,
        terms=prices.terms(best.provider),
        notes=tuple(notes),
        problem=_lacks_host_memory(best, cluster, host_bytes),
    )


def _lacks_host_memory(offer: Offer, cluster: Cluster, host_bytes: int) -> str:
    """That a node's host memory is too small for its ranks or their offload; "" where it is not.

    As a plan sees it, which leaves such machines out; an unknown memory is assumed as there.
    """
    ranks, known = len(cluster.gpus), offer.memory_bytes
    usual = ranks * RANK_HOST_BYTES if known is not None else 0
    most = replace(cluster, memory_bytes=known).host_bytes_per_gpu * ranks
    if max(host_bytes, usual) <= most:
        return ""
    has = f"{offer.name} at {offer.provider} has {format_bytes(most)} of host memory"
    has += ", as is assumed where it is not known" if known is None else ""
    if host_bytes > most:
        return (
            f"{has}, and offload keeps {format_bytes(host_bytes)} there: it does not fit. Offload "
            "less, use more nodes, or choose another offer (workbench prices)."
        )
    return (
        f"{has}, and a rank's process, loaders and pinned buffers take "
        f"{format_bytes(RANK_HOST_BYTES)}: {format_bytes(usual)} here. Choose another offer "
        "(workbench prices)."
    )


def _none_so_large(gpu: str, needed: int) -> str:
    """That no machine has so many GPUs; the job's notes say what would have as many together."""
    largest = max((offer.gpus for offer in prices.offers(gpu=gpu)), default=0)
    has = f" (the largest has {largest})" if largest else ""
    return f"No machine with {needed} x {gpu} in the table{has}: give --usd-per-hour X."


def _joinable(offers: list[Offer], nodes: int, *, spot: bool) -> list[Offer]:
    """Offers that join so many nodes; where none of them has a price, those that may do so."""
    joined = [offer for offer in offers if (offer.max_nodes or 1) >= nodes]
    unknown = [offer for offer in offers if offer.max_nodes is None]
    for able in (joined, unknown):
        if any(_price(offer, spot=spot) is not None for offer in able):
            return able
    return joined or offers


def _providers(options: CostOptions) -> tuple[str, ...] | None:
    return None if options.provider is None else (options.provider,)


def _chosen(best: Offer, offers: list[Offer], *, small: int, spot: bool) -> str:
    """Why this one; cheaper prices that were passed over are named.

    `small`: offers left out for their host memory.
    """
    count = sum(_price(offer, spot=spot) is not None for offer in offers)
    text = f"{best.provider} has the only priced offer (workbench prices)"
    if count > 1:
        text = f"{best.provider} is the cheapest of {count} priced offers (workbench prices)"
    usual = _price(best, spot=spot)
    if usual is None:
        kinds = ("spot", "on-demand") if spot else ("on-demand", "spot")
        other = sum(_price(offer, spot=not spot) is not None for offer in offers)
        return (
            f"No suitable offer has a known {kinds[0]} price ({other} of {len(offers)} have a "
            f"known {kinds[1]} price): give --usd-per-hour X."
        )
    passed = [offer for offer in offers if (_price(offer, spot=spot) or usual) < usual]
    if passed:
        text += f", {len(passed)} cheaper offers with doubtful prices excluded"
    if small:
        text += f", {small} with too little host memory excluded"
    return text + "."


def _price(offer: Offer, *, spot: bool) -> float | None:
    return offer.spot_usd_per_hour if spot else offer.usd_per_hour


def _cheapest(offers: list[Offer], *, spot: bool) -> Offer:
    """The lowest known price; doubtful ones and those without a price last."""

    def order(offer: Offer) -> tuple[bool, bool, float]:
        price = _price(offer, spot=spot)
        return price is None, bool(_DOUBTS & set(offer.marks)), price or 0.0

    return min(offers, key=order)

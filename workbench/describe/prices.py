"""What machines cost: the embedded dated table, cached live answers over it, own prices on top.

    from workbench.describe import prices

    prices.offers(gpu="h100", providers=["runpod", "lambda"])
    prices.terms("runpod").billing_seconds
    live_prices.refresh()          # asks the providers now (workbench.describe.live_prices)

Own prices come from `own_offer` or from a CSV file: ``$WORKBENCH_PRICES``, else
``~/.config/training-workbench/prices.csv`` with the columns provider, gpu, gpus, usd_per_hour and,
optionally, name, spot_usd_per_hour, region, network, max_nodes, cpu_cores, memory_gib, disk_gb,
date, notes.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from workbench.describe import price_files
from workbench.describe.accelerators import find
from workbench.describe.hardware import Network
from workbench.describe.live_prices import WITH_KEY, WITHOUT_KEY, cached
from workbench.describe.option import several
from workbench.describe.price import Offer, Terms, marked, medians
from workbench.describe.price_files import PriceFile, read_prices
from workbench.errors import UnknownNameError, UsageError

FILE = Path(__file__).parent / "data" / "prices.csv"
# Names that people and libraries use -> ours.
ALIASES = {
    "vast": "vastai",
    "vast.ai": "vastai",
    "lambdalabs": "lambda",
    "lambda labs": "lambda",
    "ovh": "ovhcloud",
    "google": "gcp",
    "amazon": "aws",
    "microsoft": "azure",
    "datacrunch": "verda",
    "cudo compute": "cudo",
}


def offers(
    *,
    providers: Iterable[str] | None = None,
    gpu: str | None = None,
    region: str | None = None,
    today: dt.date | None = None,
    live: bool = True,
    own: bool = True,
) -> tuple[Offer, ...]:
    """Every known offer, own prices before live answers before the embedded table.

    Prices are marked, never hidden: stale, undated, odd, unverified, form unknown. Rows of the own
    file that cannot be read are left out with a warning, see `own_problems`.

    Args:
        providers: short names, or a text with commas; None = all.
        gpu: any usual name of an accelerator; None = all.
        region: the provider's name of it; offers that name no region are kept.
        today: the day on which staleness is judged; None = today.
        live: lay the kept answers of `live_prices.refresh` over the table (nothing is fetched).
        own: lay the user's own prices over both.

    Raises:
        UnknownNameError: an unknown provider or accelerator; similar names are suggested.
    """
    table = _table().offers
    listed = list(table)
    if live:
        listed = _over([offer for answer in cached() for offer in answer.offers], listed)
    if own:
        read = _own_file()
        for problem in read.problems:
            warnings.warn(f"Own prices: {problem}", stacklevel=2)
        listed = _over(read.offers, listed)
    if providers is not None:
        all_providers = _known_providers()
        chosen = {provider_name(name, all_providers) for name in several(providers)}
        listed = [offer for offer in listed if offer.provider in chosen]
    if gpu is not None:
        identifier = find(gpu).id
        listed = [offer for offer in listed if offer.gpu == identifier]
    if region is not None:
        listed = [offer for offer in listed if offer.region.lower() in {"", region.lower()}]
    day = today or dt.date.today()  # noqa: DTZ011  (the user's own calendar)
    usual = _usual()
    return tuple(marked(offer, usual, day) for offer in listed)


def _over(upper: Sequence[Offer], lower: Sequence[Offer]) -> list[Offer]:
    """`upper` and what of `lower` it does not replace.

    An offer replaces one of the same provider, region and size whose machine has the same name or
    the same accelerator; a lower one without a region stands for all regions. Own prices without
    a region hold everywhere.
    """
    by_size: dict[tuple[str, int], list[Offer]] = {}
    for offer in upper:
        by_size.setdefault((offer.provider, offer.gpus), []).append(offer)
    remaining = [
        low
        for low in lower
        if not any(_replaces(offer, low) for offer in by_size.get((low.provider, low.gpus), ()))
    ]
    return [*upper, *remaining]


def _replaces(upper: Offer, lower: Offer) -> bool:
    if lower.name.startswith("Instant Cluster") != upper.name.startswith("Instant Cluster"):
        return False  # machines with a fabric are another product than the same ones without
    everywhere = upper.confidence == "own" and not upper.region
    if not everywhere and lower.region not in {"", upper.region}:
        return False
    is_named = upper.confidence == "own" and upper.name != "own price"
    return upper.name == lower.name or (upper.gpu == lower.gpu and not is_named)


def terms(provider: str) -> Terms:
    """Billing granularity, storage, egress and fabric of a provider; None where unknown.

    Raises:
        UnknownNameError: an unknown provider.

    >>> terms("runpod").stopped_storage_usd_per_gb_month, terms("cudo").egress_usd_per_gb
    (0.2, None)
    """
    return price_files.terms(provider_name(provider, _known_providers()))


def providers() -> tuple[str, ...]:
    """Short names of every provider with offers or terms, or that can be asked for them."""
    return tuple(sorted(_known_providers()))


def _known_providers() -> set[str]:
    providers = {offer.provider for offer in _table().offers} | set(price_files.described())
    providers |= {*WITHOUT_KEY, *WITH_KEY}
    return providers | {offer.provider for offer in _own_file().offers}


def short_provider(name: str) -> str:
    """The short name of a provider from any usual one, whether or not there is such a provider.

    >>> short_provider("Vast.ai"), short_provider("my-lab")
    ('vastai', 'my-lab')
    """
    text = str(name).strip().lower()
    return ALIASES.get(text, text)


def provider_name(name: str, providers: Iterable[str]) -> str:
    """The short name of a provider from any usual one.

    Raises:
        UnknownNameError: not among `providers`; where one's own prices could not all be read, it
            may be of one of those, and the message says why.
    """
    short, names = short_provider(name), set(providers)
    if short not in names:
        unknown = UnknownNameError.near("provider", str(name), names)
        unread = next(iter(own_problems()), None)
        if unread is None:
            raise unknown
        raise UnknownNameError(f"{unknown} Own prices that could not be read: {unread}")
    return short


def quotes() -> tuple[Offer, ...]:
    """Prices kept for comparison alone: the source articles', older catalogs', other products.

    They never enter `offers`: each has a better row there.
    """
    return _table().quotes


def own_problems() -> tuple[str, ...]:
    """What in the user's price file could not be used: file, line, column and why."""
    return _own_file().problems


def own_file() -> Path:
    """Where own prices are read from, whether or not the file exists."""
    path_text = os.environ.get("WORKBENCH_PRICES")
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(path_text) if path_text else Path(base) / "training-workbench" / "prices.csv"


def own_offer(
    provider: str,
    gpu: str,
    gpus: int,
    usd_per_hour: float | None,
    *,
    spot_usd_per_hour: float | None = None,
    region: str = "",
    network: Network | str | None = None,
    max_nodes: int | None = None,
) -> Offer:
    """An offer from the user's own knowledge: a quote, a contract, a machine under the desk.

    Raises:
        UsageError: an unknown accelerator or fabric, a size below 1, a price that is not above 0.

    >>> own_offer("my-lab", "h100", 8, 12.0, network="8x400 infiniband").usd_per_gpu_hour
    1.5
    """
    return Offer(
        provider=provider,
        name="own price",
        gpu=find(gpu).id,
        gpus=gpus,
        usd_per_hour=usd_per_hour,
        spot_usd_per_hour=spot_usd_per_hour,
        region=region,
        network=Network.parse(network) if isinstance(network, str) else network,
        max_nodes=max_nodes,
        source="entered by the user",
        date=dt.date.today().isoformat(),  # noqa: DTZ011  (the user's own calendar)
        confidence="own",
    )


def spread(
    gpu: str, gpus: int, *, today: dt.date | None = None, live: bool = True
) -> tuple[Offer, Offer, float]:
    """Cheapest and dearest provider of one kind of machine on demand, and how far they are apart.

    Each provider counts with its cheapest offer; odd and unverified ones and those of unknown form
    do not count. The machines differ in host, disk and fabric: the gap is not all margin.

    Raises:
        UsageError: fewer than two providers have a price.
    """
    best: dict[str, tuple[float, Offer]] = {}
    for offer in offers(gpu=gpu, today=today, live=live, own=False):
        if offer.gpus == gpus and offer.usd_per_hour is not None and not _doubtful(offer):
            previous = best.get(offer.provider)
            if previous is None or offer.usd_per_hour < previous[0]:
                best[offer.provider] = (offer.usd_per_hour, offer)
    if len(best) < 2:
        raise UsageError(f"Fewer than two providers have a price for {gpus} x {gpu}.")
    ranked = sorted(best.values(), key=lambda pair: pair[0])
    (least, cheapest), (most, dearest) = ranked[0], ranked[-1]
    return cheapest, dearest, most / least


def _doubtful(offer: Offer) -> bool:
    return bool({"odd", "unverified", "form unknown"} & set(offer.marks))


@functools.cache
def _table() -> PriceFile:
    """The embedded table; a row of ours that cannot be read is our own mistake."""
    read = read_prices(FILE, own=False)
    assert not read.problems, read.problems
    return read


@functools.cache
def _usual() -> dict[str, float]:
    return medians(_table().offers)


def _own_file() -> PriceFile:
    path = own_file()
    if not path.exists() and not os.environ.get("WORKBENCH_PRICES"):
        return PriceFile()
    return read_prices(path, own=True)

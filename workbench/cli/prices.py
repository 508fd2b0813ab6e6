"""``workbench prices``: what machines cost, where, since when, and how far to trust it."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer
from rich.table import Table

from workbench.cli.describing import with_options
from workbench.cli.memory import plain_console, show
from workbench.cli.tables import JsonOption, print_json
from workbench.cli.text_console import TextConsole
from workbench.describe import Offer, catalog, prices
from workbench.describe.gpuhunt_items import RENTABLE
from workbench.describe.live_prices import WITH_KEY, WITHOUT_KEY, ProviderAnswer, refresh
from workbench.describe.option import Option
from workbench.describe.price import STALE_DAYS
from workbench.units import UNKNOWN

_HELP = """List prices of machines, cheapest per GPU first; doubtful prices are marked.

The embedded table is dated; --refresh queries the providers now and caches their answers; your own
prices ($WORKBENCH_PRICES, a CSV file) come on top. No data is fetched without --refresh.

With --json an array of offers; with --refresh --json an object {"offers": [...], "providers":
[{"provider", "offers", "error", "fetched_at"}]}. A provider that fails is a row, and the
exit code stays 0: its cached prices are shown.
"""
_COLUMNS = ("GPUs", "provider", "machine", "$/h", "$/GPU", "spot $", "region", "date", "marks")
_MONEY = ("$/h", "$/GPU", "spot $")
_NARROW = 96
# These wrap, but not below; figures and dates are never cut.
_LEAST = {"GPUs": 9, "provider": 8, "machine": 10, "region": 6, "marks": 9}


@with_options
def prices_command(
    *,
    gpu: Annotated[
        str | None, typer.Option(help="One GPU, by any common name.", metavar="G")
    ] = None,
    provider: Annotated[
        list[str] | None, typer.Option(help="One provider; may be repeated.", metavar="P")
    ] = None,
    spot: Annotated[
        bool, typer.Option("--spot", help="Show only interruptible machines, cheapest first.")
    ] = False,
    ask: Annotated[bool, typer.Option("--refresh", help="Query the providers now.")] = False,
    seconds: Annotated[
        float, Option(help="With --refresh: time limit per provider, in seconds.", above=0)
    ] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """List prices of machines."""
    names = [prices.provider_name(name, prices.providers()) for name in provider or ()]
    answers = _ask_providers(names, seconds) if ask else ()
    stderr = TextConsole(stderr=True, highlight=False)
    for problem in prices.own_problems():
        stderr.print("own prices:", style="bold red", end=" ")
        stderr.print(problem, markup=False, soft_wrap=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # just printed
        offers = prices.offers(gpu=gpu, providers=names or None)
    offers = ranked(offers, spot=spot)
    if as_json:
        documents = [document(offer) for offer in offers]
        providers = [answer.document() for answer in answers]
        print_json({"offers": documents, "providers": providers} if ask else documents)
        return
    _print(offers, answers)


prices_command.__doc__ = _HELP


def _ask_providers(names: list[str], seconds: float) -> tuple[ProviderAnswer, ...]:
    """Ask the providers, telling each answer on stderr as it comes."""
    stderr = TextConsole(stderr=True, highlight=False)
    live = [name for name in names if name in (*WITHOUT_KEY, *WITH_KEY)]
    without_live = [
        ProviderAnswer(provider=name, error="does not have live prices: gpuhunt does not list it")
        for name in names
        if name not in live
    ]

    def on_answer(answer: ProviderAnswer) -> None:
        stderr.print(_sentence(answer), markup=False, soft_wrap=True)

    for answer in without_live:
        on_answer(answer)
    if names and not live:
        return tuple(without_live)
    return (*refresh(live or None, seconds=seconds, on_answer=on_answer), *without_live)


def _sentence(answer: ProviderAnswer) -> str:
    if answer.error is None:
        return f"{answer.provider}: {len(answer.offers)} offers"
    cached_note = (
        (f"; using its {len(answer.offers)} offers of {answer.fetched_at}") if answer.offers else ""
    )
    return f"{answer.provider}: {answer.error}{cached_note}"


def ranked(offers: tuple[Offer, ...], *, spot: bool = False) -> tuple[Offer, ...]:
    """Offers by GPU in the catalog's order, cheapest per GPU first; unknown prices last."""
    order = {accelerator.id: index for index, accelerator in enumerate(catalog.gpus())}

    def price(offer: Offer) -> float:
        on_demand = float("inf") if offer.usd_per_hour is None else offer.usd_per_hour
        value = offer.spot_usd_per_hour if spot else on_demand
        return float("inf") if value is None else value / offer.gpus

    priced = [offer for offer in offers if not spot or offer.spot_usd_per_hour is not None]
    return tuple(sorted(priced, key=lambda offer: (order[offer.gpu], price(offer), -offer.gpus)))


def document(offer: Offer) -> dict[str, Any]:
    """The JSON form of an offer; keys are a contract."""
    return {
        "provider": offer.provider,
        "name": offer.name,
        "gpu": offer.gpu,
        "gpus": offer.gpus,
        "usd_per_hour": offer.usd_per_hour,
        "usd_per_gpu_hour": offer.usd_per_gpu_hour,
        "spot_usd_per_hour": offer.spot_usd_per_hour,
        "region": offer.region,
        "date": offer.date,
        "source": offer.source,
        "confidence": offer.confidence,
        "marks": list(offer.marks),
        "available": offer.available,
        "max_nodes": offer.max_nodes,
        "network": offer.network.name if offer.network else None,
        "notes": offer.notes,
    }


def _print(offers: tuple[Offer, ...], answers: tuple[ProviderAnswer, ...]) -> None:
    console = plain_console()
    if offers:
        show(console, _table(_condensed(offers), console.width))
        console.print(
            "\nUSD per hour, of a machine and of one of its GPUs; n/a = unknown. stale = older "
            f"than {STALE_DAYS} days, odd = far from the usual or spot above on demand; +7 = in "
            "seven more regions, none cheaper. All, with sources: --json."
        )
    else:
        console.print("No matching offers. List other GPUs and providers: workbench prices")
    failed = [answer for answer in answers if answer.error is not None]
    if answers:
        console.print(f"\n{len(answers) - len(failed)} of {len(answers)} providers answered.")
    for answer in failed:
        console.print(f"  {_sentence(answer)}")


def _condensed(offers: tuple[Offer, ...]) -> list[tuple[Offer, int]]:
    """One row per kind of machine: its cheapest region, and how many others there are.

    A marketplace's machines have numbers for names: there the kind is the GPUs alone.
    """
    kinds: dict[tuple[str, ...], list[Offer]] = {}
    for offer in offers:
        name = "" if offer.provider in RENTABLE else offer.name
        kinds.setdefault((offer.provider, offer.gpu, str(offer.gpus), name), []).append(offer)
    return [(same[0], len(same) - 1) for same in kinds.values()]


def _table(rows: list[tuple[Offer, int]], width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    narrow = width < _NARROW  # then the region stands below the machine's name
    for name in _COLUMNS:
        if name == "region" and narrow:
            continue
        table.add_column(
            name,
            justify="right" if name in _MONEY else "left",
            no_wrap=name not in _LEAST,
            overflow="fold",
            min_width=_LEAST.get(name),
        )
    for offer, other_regions in rows:
        region = f"{offer.region} +{other_regions}".strip() if other_regions else offer.region
        machine = f"{offer.name} {region}" if narrow else offer.name
        table.add_row(
            *(f"{offer.gpus} x {offer.gpu}", offer.provider, machine),
            _usd(offer.usd_per_hour),
            _usd(offer.usd_per_gpu_hour),
            _usd(offer.spot_usd_per_hour),
            *(() if narrow else (region,)),
            *(offer.date or UNKNOWN, ", ".join(offer.marks)),
        )
    return table


def _usd(value: float | None) -> str:
    """Two decimals, which align in a column; dollars stand in the header."""
    return UNKNOWN if value is None else f"{value:.2f}"

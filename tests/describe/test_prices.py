"""The price table, what lies over it, and what is said against a price."""

from __future__ import annotations

import csv
import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.describe import catalog, price_files, prices
from workbench.describe.hardware import Cluster, Network
from workbench.describe.live_prices import ProviderAnswer
from workbench.describe.price import MARKS, ODD_ABOVE, Offer, last_day, marked, medians
from workbench.errors import UnknownNameError, UsageError

TODAY = dt.date(2026, 11, 21)
ARTICLES = (
    *("cudo", "lambda", "aws", "runpod", "vastai", "coreweave", "gcp", "azure", "vultr"),
    *("ovhcloud", "akash", "salad"),
)
ROWS = list(csv.DictReader(prices.FILE.read_text("utf-8").splitlines()))
FACTS = list(csv.DictReader(price_files.PROVIDERS.read_text("utf-8").splitlines()))


@pytest.fixture(autouse=True)
def nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cache and no own prices of whoever runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WORKBENCH_PRICES", raising=False)
    return tmp_path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write an own price file."""

    def write(text: str, encoding: str = "utf-8") -> Path:
        path = tmp_path / "mine.csv"
        path.write_text(text, encoding=encoding)
        monkeypatch.setenv("WORKBENCH_PRICES", str(path))
        return path

    return write


def find(found, provider: str, name: str, region: str = "") -> Offer:
    (one,) = [
        one
        for one in found
        if (one.provider, one.name) == (provider, name) and region in {"", one.region}
    ]
    return one


def test_every_row_is_sourced_dated_and_of_a_known_gpu() -> None:
    known = {one.id for one in catalog.gpus()}
    table = (*prices.offers(today=TODAY), *prices.quotes())
    assert len(table) == len(ROWS) >= 240
    for one in table:
        assert one.gpu in known
        assert one.source
        assert one.confidence in {"high", "medium", "low"}
        assert set(one.marks) <= set(MARKS)
        assert one.date or "date: " in one.notes
        assert last_day(one.date) or "undated" in one.marks or one in prices.quotes()
        for price in (one.usd_per_hour, one.spot_usd_per_hour):
            assert price is None or price > 0
    for row in ROWS:
        assert row["date_basis"]
        assert row["kind"] in {"offer", "quote"}
    keys = [(row["kind"], row["provider"], row["name"], row["gpus"], row["region"]) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_every_provider_of_the_articles_is_there_and_unknown_is_none() -> None:
    found = prices.offers(today=TODAY)
    assert set(ARTICLES) <= {one.provider for one in found} <= set(prices.providers())
    assert "runpod-serverless" not in prices.providers()  # per-second workers: another product
    for provider in ("akash", "salad"):
        of_it = [one for one in found if one.provider == provider]
        assert of_it
        assert all(one.usd_per_hour is None and one.usd_per_gpu_hour is None for one in of_it)
        assert all("price unknown" in one.notes for one in of_it)
    for provider in set(ARTICLES) - {"akash", "salad"}:
        assert any(one.usd_per_hour for one in found if one.provider == provider), provider


def test_the_articles_prices_are_kept_beside_the_ones_that_hold_today() -> None:
    """Corrections C20 and C21: what the articles say, and what the lists say now."""
    quotes, found = prices.quotes(), prices.offers(today=TODAY)
    pairs = [
        ("aws", "p5.48xlarge", 67.68, find(found, "aws", "p5.48xlarge", "us-east-1"), 55.04),
        ("aws", "p4d.24xlarge", 32.77, find(found, "aws", "p4d.24xlarge", "us-east-1"), 21.957642),
        ("lambda", "8x H100", 19.92, find(found, "lambda", "gpu_8x_h100_sxm5"), 31.92),
        ("cudo", "8x H100", 14.96, None, 15.3248),
    ]
    eight = [one for one in found if one.provider == "cudo" and one.gpu == "h100-sxm"]
    for provider, name, said, offer, now in pairs:
        quoted = [
            one.usd_per_hour for one in quotes if (one.provider, one.name) == (provider, name)
        ]
        assert said in quoted
        today = offer or max(eight, key=lambda one: one.gpus)
        assert today.usd_per_hour == pytest.approx(now)
        assert said not in {one.usd_per_hour for one in found if one.provider == provider}
    assert find(found, "aws", "p4d.24xlarge", "us-east-1").gpu == "a100-sxm-40"


def test_marks_tell_why_a_price_is_doubtful() -> None:
    found = prices.offers(today=TODAY)
    assert find(found, "aws", "p5.48xlarge", "us-east-1").marks == ()
    assert "undated" in find(found, "aws", "p5.48xlarge", "us-west-2").marks  # a year is no day
    assert "stale" in find(found, "gcp", "a3-highgpu-8g").marks
    assert "form unknown" in find(found, "vastai", "2x H100").marks
    assert "odd" in find(found, "gcp", "tpu-v4 chip").marks  # its spot is above on demand
    assert "unverified" in find(found, "crusoe", "b200-sxm (per GPU)").marks
    assert {mark for one in found for mark in one.marks} == set(MARKS)


def test_staleness_follows_the_day() -> None:
    for days, stale in ((0, False), (30, False), (31, True)):
        day = dt.date(2026, 11, 9) + dt.timedelta(days=days)
        one = find(prices.offers(today=day), "aws", "p5.48xlarge", "us-east-1")
        assert ("stale" in one.marks) is stale
    # a year is stale once even its last day is
    for day, stale in ((dt.date(2027, 1, 30), False), (dt.date(2027, 1, 31), True)):
        one = find(prices.offers(today=day), "aws", "p5.48xlarge", "us-west-2")
        assert ("stale" in one.marks) is stale


def test_odd_is_three_times_the_usual_or_less_than_a_third_or_spot_above() -> None:
    def offer(price: float | None, spot: float | None = None, gpus: int = 8) -> Offer:
        return Offer(
            provider="x", name="x", gpu="l4", gpus=gpus, usd_per_hour=price,
            spot_usd_per_hour=spot, date="2026-11-20",
        )  # fmt: skip

    usual = medians([offer(8.0), offer(16.0), offer(2.0, gpus=1)])
    assert usual == {"l4": 2.0}
    for price, spot, odd in [
        (16.0, None, False),
        (16.0 * 2.9, None, False),
        (16.0 * 3.1, None, True),
        (16.0 * 0.29, None, True),
        (16.0, 16.0, False),
        (16.0, 16.01, True),
        (16.0, 0.8, False),  # spot at 95 % off is real
        (None, 16.0 * (ODD_ABOVE + 0.1), True),
        (None, None, False),
    ]:
        assert ("odd" in marked(offer(price, spot), usual, TODAY).marks) is odd, (price, spot)
    assert marked(offer(1e5), {}, TODAY).marks == ()  # no usual price, no judgement


def test_filters_take_usual_names() -> None:
    assert {one.gpu for one in prices.offers(gpu="H100")} == {"h100-sxm"}
    assert {one.provider for one in prices.offers(providers=["Vast.ai", "OVH"])} == {
        "vastai",
        "ovhcloud",
    }
    west = prices.offers(providers=["aws"], gpu="h100", region="US-West-2")
    assert {one.region for one in west} == {"us-west-2"}
    assert prices.offers(providers=["oci"]) == ()  # can be asked live; the table has nothing
    with pytest.raises(UnknownNameError, match="runpod"):
        prices.offers(providers=["runpodd"])
    with pytest.raises(UnknownNameError, match="accelerator"):
        prices.offers(gpu="h1000")


def test_unknown_host_memory_is_what_the_offers_have_at_least() -> None:
    whole = [one for one in prices.offers() if one.gpus == 8 and one.provider != "cudo"]
    known = {(one.provider, one.gpu): one.memory_bytes / 8 for one in whole if one.memory_bytes}
    assert len(known) > 10
    for (provider, gpu), each in known.items():
        assert each >= Cluster.rented(gpu, gpus=8).host_bytes_per_gpu, (provider, gpu)


def test_the_gap_between_providers_today() -> None:
    """Article 0 has 4.5x between 14.96 and 67.68: the list prices of today are further apart."""
    cheapest, dearest, ratio = prices.spread("h100", 8, today=TODAY)
    assert (cheapest.provider, dearest.provider) == ("cudo", "azure")
    assert ratio == pytest.approx(98.32 / 15.3248)
    assert cheapest.network is None  # what makes it not the same machine (C22)
    assert dearest.network is not None
    assert cheapest.memory_bytes is not None
    assert dearest.memory_bytes is not None
    assert dearest.memory_bytes > 10 * cheapest.memory_bytes
    with pytest.raises(UsageError, match="Fewer than two"):
        prices.spread("tpu-v4", 1)


def test_terms_are_sourced_cell_by_cell_and_the_rest_is_none() -> None:
    for row in FACTS:
        assert row["source"]
        assert last_day(row["date"]), row
    runpod = prices.terms("runpod")
    assert (runpod.billing_seconds, runpod.minimum_seconds) == (1, None)
    assert runpod.storage_usd_per_gb_month == 0.10
    assert runpod.stopped_storage_usd_per_gb_month == 0.20
    assert (runpod.egress_usd_per_gb, runpod.max_nodes) == (0, 8)
    for provider in prices.providers():
        terms = prices.terms(provider)
        for name in ("billing_seconds", "storage_usd_per_gb_month", "egress_usd_per_gb"):
            if getattr(terms, name) is not None:
                assert f"{name}: " in terms.source
        assert terms.interruption_hours is None  # no one publishes it
    assert prices.terms("akash") == prices.Terms(provider="akash")
    assert prices.terms("Lambda Labs").billing_seconds == 60
    with pytest.raises(UnknownNameError):
        prices.terms("nobody")


@pytest.mark.parametrize(
    ("provider", "name", "gigabits", "kind", "nodes"),
    [
        ("aws", "p5.48xlarge", 3200, "efa", 2500),
        ("aws", "p4d.24xlarge", 400, "efa", 500),
        ("gcp", "a3-highgpu-8g", 800, "tcpx", 3250),
        ("gcp", "a3-megagpu-8g", 1600, "tcpx", 3250),
        ("azure", "Standard_ND96isr_H100_v5", 3200, "infiniband", 125),
        ("coreweave", "HGX H100", 3200, "infiniband", 125),
        ("runpod", "Instant Cluster A100", 1600, "roce", 8),
        ("runpod", "Instant Cluster B200", 3200, "roce", 8),
        ("runpod", "NVIDIA H100 80GB HBM3", None, None, 1),
        ("lambda", "gpu_8x_h100_sxm5", None, None, None),
        ("aws", "p5.4xlarge", None, None, None),
        ("gcp", "a3-highgpu-1g", None, None, None),
    ],
)
def test_fabrics(provider, name, gigabits, kind, nodes) -> None:
    network, joined = price_files.fabric(provider, name)
    assert joined == nodes
    if gigabits is None:
        assert network is None
    else:
        assert network is not None
        assert (network.bytes_per_second, network.kind) == (gigabits * 1e9 / 8, kind)


def test_facts_are_of_known_fields_and_parse() -> None:
    ids = {one.id for one in catalog.gpus()}
    fields = set(prices.Terms.__slots__)
    for row in FACTS:
        fact, value = row["fact"], row["value"]
        if fact == "network":
            Network.parse(value)
        elif fact == "gpu":
            assert value in ids
        else:
            assert fact in fields
            assert float(value) >= 0


HEADER = "provider,gpu,gpus,usd_per_hour,name,spot_usd_per_hour,region,network,max_nodes\n"


def test_own_prices_lie_on_top(own, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(
        HEADER
        + "aws,h100,8,30,p5.48xlarge,,,,\n"  # a contract, in every region
        + "runpod,H100,8,25.5,,11,,,\n"
        + 'my-lab,NVIDIA H100 80GB HBM3,8,"1,5",,,,,\n'
        + "my-lab,a100-sxm-80,8,$12,,,attic,8x200 infiniband,4\n"
    )
    with pytest.warns(UserWarning, match="line 4, column usd_per_hour"):
        found = prices.offers(today=TODAY)
    p5 = [one for one in found if one.name == "p5.48xlarge"]
    assert [(one.usd_per_hour, one.confidence) for one in p5] == [(30.0, "own")]
    assert p5[0].network is not None  # the machine's fabric is known from its name
    assert f"{path}, line 2" in p5[0].source
    pods = [one for one in found if one.provider == "runpod" and one.gpus == 8]
    h100 = [one for one in pods if one.gpu == "h100-sxm"]
    assert {(one.name, one.usd_per_hour) for one in h100} == {
        ("own price", 25.5),
        ("Instant Cluster H100", None),
    }
    attic = find(found, "my-lab", "own price")
    assert (attic.usd_per_hour, attic.region, attic.max_nodes) == (12.0, "attic", 4)
    assert attic.network is not None
    assert "my-lab" in prices.providers()
    assert prices.terms("my-lab").billing_seconds is None
    assert len(prices.offers(own=False)) == len([row for row in ROWS if row["kind"] == "offer"])
    live = ProviderAnswer(provider="runpod", offers=(h100[0],))
    monkeypatch.setattr(prices, "cached", lambda: (live,))  # own before live
    with pytest.warns(UserWarning, match="line 4"):
        again = prices.offers(providers=["runpod"], gpu="h100", today=TODAY)
    assert [one.confidence for one in again if one.name == "own price"] == ["own"]


@pytest.mark.parametrize(
    ("line", "column", "sentence"),
    [
        ("aws,h100,8,0,,,,,", "usd_per_hour", "above 0. Leave it empty"),
        ("aws,h100,8,-3,,,,,", "usd_per_hour", "above 0"),
        ("aws,h100,8,nan,,,,,", "usd_per_hour", "above 0"),
        ("aws,h100,8,free,,,,,", "usd_per_hour", "'free' is not a number"),
        ("aws,h100,8,1e9,,,,,", "usd_per_hour", "above 0"),
        ("aws,h100,8,3,,0,,,", "spot_usd_per_hour", "above 0"),
        ("aws,h1000,8,3,,,,,", "gpu", "Did you mean"),
        ("aws,,8,3,,,,,", "gpu", "empty"),
        (",h100,8,3,,,,,", "provider", "empty"),
        ("aws,h100,,3,,,,,", "gpus", "empty"),
        ("aws,h100,2.5,3,,,,,", "gpus", "whole number"),
        ("aws,h100,8,3,,,,fast,", "network", "8x400"),
        ("aws,h100,8,1,234,,,,,,", "", "Put a cell that holds a comma in quotes"),
    ],
)
def test_a_bad_own_row_names_file_line_and_column_and_costs_only_itself(
    own, line: str, column: str, sentence: str
) -> None:
    path = own(f"{HEADER}lab,l4,1,0.5,,,,,\n\n{line}\nlab,t4,1,,,0.1,,,\n")
    with pytest.warns(UserWarning, match="line 4"):
        found = prices.offers()
    (problem,) = prices.own_problems()
    assert f"{path}, line 4" in problem
    assert not column or f"column {column}:" in problem
    assert sentence in problem
    mine = [one for one in found if one.confidence == "own"]
    assert [(one.gpu, one.usd_per_hour) for one in mine] == [("l4", 0.5), ("t4", None)]
    assert len(found) >= len([row for row in ROWS if row["kind"] == "offer"])


@pytest.mark.filterwarnings("ignore:Own prices")
@pytest.mark.parametrize(
    "ask", [prices.terms, lambda name: prices.offers(providers=[name])], ids=["terms", "offers"]
)
def test_a_provider_of_a_row_that_cannot_be_read_says_why_it_is_unknown(own, ask) -> None:
    own(f"{HEADER}lab,l4,1,-3,,,,,\n")
    with pytest.raises(UnknownNameError, match=r"Unknown provider 'lab'.*line 2, column usd_per"):
        ask("lab")
    own(f"{HEADER}lab,l4,1,3,,,,,\n")
    with pytest.raises(UnknownNameError) as error:
        ask("labb")
    assert "Own prices" not in str(error.value)


def test_a_file_that_cannot_be_read_costs_no_other_price(
    own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "": "no column provider, gpu, gpus, usd_per_hour",
        "provider,gpu,gpus\n": "no column usd_per_hour. Needed: provider",
        "provider,gpu,gpus,usd_per_hour,price\n": "unknown column 'price'",
        "provider;gpu;gpus;usd_per_hour\n": "no column provider",
    }
    for text, sentence in texts.items():
        own(text)
        (problem,) = prices.own_problems()
        assert sentence in problem
        with pytest.warns(UserWarning, match="Own prices"):
            assert len(prices.offers()) >= 200
    own("provider,gpu,gpus,usd_per_hour\nlab,l4,1,0.5\n", "utf-16")
    assert "cannot be read" in prices.own_problems()[0]
    own("provider,gpu,gpus,usd_per_hour\nlab,l4,1,0.5\n", "utf-8-sig")  # as Excel saves
    assert prices.own_problems() == ()
    monkeypatch.setenv("WORKBENCH_PRICES", str(tmp_path / "nothing.csv"))
    assert "nothing.csv: cannot be read" in prices.own_problems()[0]
    monkeypatch.delenv("WORKBENCH_PRICES")
    assert prices.own_problems() == ()  # having no file is no problem
    default = tmp_path / "config" / "training-workbench" / "prices.csv"
    default.parent.mkdir(parents=True)
    default.write_text("provider,gpu,gpus,usd_per_hour\nlab,l4,1,0.5\n")
    assert [one.usd_per_hour for one in prices.offers(providers=["lab"])] == [0.5]


def test_own_offers_in_python() -> None:
    one = prices.own_offer("lab", "A100 40GB", 4, 6.0, network="2x200 roce", max_nodes=3)
    assert (one.gpu, one.usd_per_gpu_hour, one.confidence) == ("a100-sxm-40", 1.5, "own")
    assert one.cluster(2).world_size == 8
    assert one.cluster(2).network == one.network
    for bad in ({"usd_per_hour": 0}, {"gpu": "h1000"}, {"gpus": 0}, {"network": "quick"}):
        given = {"provider": "lab", "gpu": "h100", "gpus": 8, "usd_per_hour": 1.0} | bad
        with pytest.raises(UsageError):
            prices.own_offer(**given)


def test_every_offer_becomes_a_cluster() -> None:
    for one in prices.offers():
        cluster = one.cluster(2, spot=one.usd_per_hour is None)
        assert cluster.world_size == 2 * one.gpus
        assert cluster.usd_per_hour == (one.usd_per_hour or one.spot_usd_per_hour)


def test_the_table_is_read_when_it_is_asked_for() -> None:
    code = "import sys, workbench; print('workbench.describe.prices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

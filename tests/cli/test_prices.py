"""``workbench prices``: the table, its JSON, and --refresh with and without anyone answering."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.describe.price_catalogue import item, publish, serving

KEYS = {
    *("provider", "name", "gpu", "gpus", "usd_per_hour", "usd_per_gpu_hour", "spot_usd_per_hour"),
    *("region", "date", "source", "confidence", "marks", "available", "max_nodes", "network"),
}


@pytest.fixture
def run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in an environment without anyone's cache or own prices."""
    for name in [name for name in os.environ if name.startswith(("WORKBENCH_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # No provider is reached by mistake.
    for name in ("HTTPS_PROXY", "GPUHUNT_CATALOG_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    return functools.partial(command, "prices")


def test_json_is_an_array_with_the_contract_s_keys(run) -> None:
    done = run("--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert len(found) > 200
    for one in found:
        assert one.keys() >= KEYS
        for price in (one["usd_per_hour"], one["spot_usd_per_hour"], one["usd_per_gpu_hour"]):
            assert price is None or price > 0
    by_gpu: dict[str, list[float | None]] = {}
    for one in found:
        by_gpu.setdefault(one["gpu"], []).append(one["usd_per_gpu_hour"])
    for prices in by_gpu.values():  # cheapest per GPU first, unknown last
        numbers = [float("inf") if price is None else price for price in prices]
        assert numbers == sorted(numbers)


def test_filters_and_spot(run) -> None:
    found = json.loads(run("--gpu", "H100", "--provider", "aws", "--spot", "--json").out)
    assert {(one["gpu"], one["provider"]) for one in found} == {("h100-sxm", "aws")}
    spots = [one["spot_usd_per_hour"] / one["gpus"] for one in found]
    assert spots == sorted(spots)
    two = run("--provider", "cudo", "--provider", "Vast.ai", "--json")
    assert {one["provider"] for one in json.loads(two.out)} == {"cudo", "vastai"}


def test_the_table_keeps_figures_whole_and_shows_doubts(run) -> None:
    done = run("--gpu", "h100")
    assert done.code == 0
    lines = done.out.splitlines()
    assert re.match(
        r"GPUs +provider +machine +\$/h +\$/GPU +spot \$ +region +date +marks", lines[0]
    )
    (azure,) = [line for line in lines if "98.32" in line]
    assert re.search(r"8 x h100-sxm +azure +.* 98\.32 +12\.29 +n/a +eastus +2026-11-09", azure)
    (p5,) = [line for line in lines if " 55.04 " in line]  # its eight regions are one row
    assert re.search(r"p5.48xlarge +55\.04 +6\.88 +n/a +us-east-1 +\+7 +2026-11-09", p5)
    narrow = run("--gpu", "h100", columns=80).out.splitlines()
    assert re.search(r"azure +.* 98\.32 +12\.29 +n/a +2026-11-09", "\n".join(narrow))
    assert narrow[0].endswith("marks")
    assert max(map(len, narrow)) <= 80
    assert "undated" in done.out
    assert "stale" in done.out
    unknown = run("--provider", "salad").out
    assert "n/a" in unknown
    assert "0.00" not in unknown
    assert "No matching offers" in run("--provider", "salad", "--gpu", "h100").out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--gpu", "h1000"), "Did you mean"),
        (("--provider", "runpodd"), "Did you mean runpod"),
        (("--refresh", "--seconds", "0"), "seconds must be above 0"),
    ],
)
def test_bad_input_is_exit_code_2(run, arguments, sentence) -> None:
    done = run(*arguments, "--json")
    assert done.code == 2
    assert sentence in json.loads(done.out)["error"]
    assert "Traceback" not in done.err


def test_without_a_network_refresh_shows_the_table_and_says_who_did_not_answer(run) -> None:
    done = run("--refresh", "--provider", "aws", "--provider", "vastai", "--provider", "cudo")
    assert done.code == 0
    assert "0 of 3 providers answered" in done.out
    assert re.search(r"aws: cannot be reached", done.out)
    assert re.search(r"vastai: cannot be reached", done.out)
    assert "cudo: does not have live prices" in done.out
    assert "p5.48xlarge" in done.out  # the embedded table
    assert "vastai: cannot be reached" in done.err  # told as it came


def test_refresh_asks_keeps_and_survives_the_next_failure(run, tmp_path: Path) -> None:
    root = tmp_path / "catalogue"
    publish(root, "aws", [item("aws", "p5.48xlarge", 50.0, region="us-east-1")])
    publish(root, "verda", [item("verda", "8H100.80S.176V", 17.0, region="FIN-01")])
    asked = ("--refresh", "--json", "--provider", "aws", "--provider", "verda")
    with serving(root, {"verda": 503}) as url:
        first = json.loads(run(*asked, GPUHUNT_CATALOG_URL=url).out)
    assert first.keys() == {"offers", "providers"}
    aws, verda = first["providers"]
    assert aws.keys() == {"provider", "offers", "error", "fetched_at"}
    assert (aws["provider"], aws["offers"], aws["error"]) == ("aws", 1, None)
    assert (verda["offers"], verda["error"], verda["fetched_at"]) == (0, "answered HTTP 503", None)
    assert 50.0 in {one["usd_per_hour"] for one in first["offers"]}
    second = json.loads(run(*asked, GPUHUNT_CATALOG_URL=(root / "gone").as_uri()).out)
    aws = second["providers"][0]
    assert aws["error"]
    assert aws["offers"] == 1
    assert aws["fetched_at"] == first["providers"][0]["fetched_at"]
    kept = json.loads(run("--json", "--provider", "aws").out)  # no network at all
    east = [one for one in kept if (one["name"], one["region"]) == ("p5.48xlarge", "us-east-1")]
    assert [one["usd_per_hour"] for one in east] == [50.0]
    assert "gpuhunt" in east[0]["source"]


def test_own_prices_and_their_mistakes(run, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("provider,gpu,gpus,usd_per_hour\nlab,h100,8,9\nlab,h100,8,nothing\n")
    done = run("--json", "--provider", "lab", WORKBENCH_PRICES=str(path))
    assert done.code == 0
    assert [one["usd_per_hour"] for one in json.loads(done.out)] == [9.0]
    assert "mine.csv, line 3, column usd_per_hour: 'nothing'" in done.err
    assert "Warning" not in done.err

"""gpuhunt behind its adapter, through the library itself: one provider's failure costs no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import allowed
from tests.describe.price_catalogue import VERSION, item, publish, serving, timed
from workbench.describe import live_prices, prices
from workbench.describe.gpuhunt_items import offers_of, recognised
from workbench.describe.live_prices import refresh
from workbench.errors import UnknownNameError, UsageError
from workbench.units import GIB

GOOD = {
    "aws": [
        item("aws", "p5.48xlarge", 55.04, region="us-east-1"),
        item("aws", "p5.48xlarge", 17.5, region="us-east-1", spot=True),
        item("aws", "m5.large", 0.1, gpu=None, count=0, memory=None),
    ],
    "runpod": [
        item("runpod", "NVIDIA H100 80GB HBM3", 31.9, region="CA-1"),
        item("runpod", "NVIDIA H100 PCIe", 2.9, count=1, region="CA-1"),
        item(
            "runpod", "NVIDIA H100 80GB HBM3", 36.0, region="CA-1",
            flags=["runpod-cluster"], provider_data={"pod_counts": [2, 3, 8]},
        ),
    ],
    "lambdalabs": [item("lambdalabs", "gpu_8x_h100_sxm5", 31.92, region="us-east-1")],
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No user's cache or prices; providers that are asked directly meet a closed local door."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("WORKBENCH_PRICES", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "catalogue"
    for provider, items in GOOD.items():
        publish(root, provider, items)
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", root.as_uri())
    return root


def test_answers_are_offers_with_region_spot_form_fabric_source_and_date(catalogue: Path) -> None:
    seen: list[str] = []
    answers = refresh(
        ["aws", "runpod", "lambda"], on_answer=lambda answer: seen.append(answer.provider)
    )
    assert sorted(seen) == ["aws", "lambda", "runpod"]
    assert [one.error for one in answers] == [None, None, None]
    aws, runpod, labs = (one.offers for one in answers)
    (p5,) = aws  # spot and on demand are one offer; machines without a GPU are none
    assert (p5.gpu, p5.usd_per_hour, p5.spot_usd_per_hour) == ("h100-sxm", 55.04, 17.5)
    assert (p5.region, p5.cpu_cores, p5.memory_bytes) == ("us-east-1", 192, 2048 * GIB)
    assert p5.network is not None
    assert p5.network.bytes_per_second == 400e9
    assert p5.date == "2026-11-20"  # the day of the catalogue, not of the download
    assert VERSION in p5.source
    by_name = {one.name: one for one in runpod}
    assert by_name["NVIDIA H100 80GB HBM3"].gpu == "h100-sxm"
    assert by_name["NVIDIA H100 80GB HBM3"].max_nodes == 1
    assert by_name["NVIDIA H100 PCIe"].gpu == "h100-pcie"
    cluster = by_name["Instant Cluster H100"]
    assert (cluster.usd_per_hour, cluster.max_nodes) == (36.0, 8)
    assert cluster.network is not None
    assert labs[0].provider == "lambda"


def test_one_down_one_silent_one_broken_and_the_rest_answer(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(catalogue, "oci", GOOD["aws"], extra_line="half a row,here\n,,not a price,,,,,,,\n")
    publish(catalogue, "nebius", [])
    (catalogue / "gcp").mkdir()
    (catalogue / "gcp" / "version").write_text("20261120-7")
    asked = ["aws", "azure", "verda", "cloudrift", "oci", "nebius", "gcp", "vastai"]
    # azure: not in the catalogue at all; gcp: its version without its file
    with serving(catalogue, {"verda": 500, "cloudrift": "hang"}) as url:
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", url)
        limit = round(allowed(3.0))
        answers, seconds = timed(lambda: refresh(asked, seconds=float(limit)))
    found = {one.provider: one for one in answers}
    assert list(found) == asked
    assert {name for name, one in found.items() if one.error is None} == {"aws", "oci"}
    assert len(found["oci"].offers) == 1  # a malformed row costs itself alone
    assert found["verda"].error == "answered HTTP 500"
    assert found["cloudrift"].error == f"no answer in {limit} s"
    assert found["azure"].error == "answered HTTP 404"
    assert found["gcp"].error == "answered HTTP 404"
    assert found["nebius"].error == "answered without one usable offer"
    assert "cannot be reached" in (found["vastai"].error or "")
    assert seconds < limit + allowed(10)  # all at once; the rest is the start of eight processes


def test_an_answer_that_never_ends_is_ended(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_prices, "_STARTING", 1.0)
    with serving(catalogue, {"verda": "drip"}) as url:
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", url)
        (answer,), seconds = timed(lambda: refresh(["verda"], seconds=1.0))
    assert answer.error == "no answer in 1 s"
    assert seconds < allowed(5)


def test_a_failing_provider_keeps_its_older_answer_with_its_date(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = refresh(["aws", "lambda"])
    fetched = {one.provider: one.fetched_at for one in first}
    assert all(fetched.values())
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", (catalogue / "nowhere").as_uri())
    (again,) = refresh(["aws"])
    assert again.error is not None
    assert "cannot be reached" in again.error
    assert [one.usd_per_hour for one in again.offers] == [55.04]
    assert again.fetched_at == fetched["aws"]
    kept = {one.provider: one for one in live_prices.cached()}
    assert {name: one.fetched_at for name, one in kept.items()} == fetched
    assert kept["lambda"].offers == first[1].offers  # through the file and back, field by field
    assert kept["aws"].offers[0].network == first[0].offers[0].network


def test_a_damaged_cache_costs_what_is_damaged(catalogue: Path) -> None:
    refresh(["aws"])
    path = live_prices.cache_file()
    document = json.loads(path.read_text())
    rows = document["providers"]["aws"]["offers"]
    free, other = rows[0] | {"usd_per_hour": 0}, rows[0] | {"colour": "red"}
    document["providers"]["aws"]["offers"] = [free, other, {}, rows[0]]
    path.write_text(json.dumps(document))
    (answer,) = live_prices.cached()
    assert [one.usd_per_hour for one in answer.offers] == [55.04]
    for text in ("", "{", "[]", '{"format": 99, "providers": {"aws": 1}}', '{"format": 1}'):
        path.write_text(text)
        assert live_prices.cached() == ()
        assert prices.offers(gpu="h100")


def test_a_cache_that_cannot_be_written_is_no_error(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (answer,) = refresh(["aws"])
    assert answer.error is None
    assert answer.offers
    assert live_prices.cached() == ()


def test_live_answers_lie_over_the_table(catalogue: Path) -> None:
    before = prices.offers(providers=["lambda", "runpod", "aws"], gpu="h100-sxm")
    refresh(["aws", "runpod", "lambda"])
    after = prices.offers(providers=["lambda", "runpod", "aws"], gpu="h100-sxm")
    assert before != after
    assert (
        prices.offers(providers=["lambda", "runpod", "aws"], gpu="h100-sxm", live=False) == before
    )

    def eight(found, provider, region=""):
        return [
            (one.name, one.usd_per_hour, one.region)
            for one in found
            if one.provider == provider and one.gpus == 8 and one.region in {"", region}
        ]

    # the table's row names no region: one live region is enough to replace it
    assert eight(before, "lambda") == [("gpu_8x_h100_sxm5", 31.92, "")]
    assert eight(after, "lambda", "us-east-1") == [("gpu_8x_h100_sxm5", 31.92, "us-east-1")]
    assert {name for name, *_ in eight(after, "runpod", "CA-1")} == {
        "NVIDIA H100 80GB HBM3",
        "Instant Cluster H100",
    }
    assert [one.usd_per_hour for one in after if one.name == "Instant Cluster H100"] == [36.0]
    # other regions of the table stay
    regions = {one.region for one in after if one.provider == "aws"}
    assert {"us-east-1", "us-west-2"} <= regions


@pytest.mark.parametrize(
    ("provider", "instance", "gpu_name", "memory", "expected"),
    [
        ("runpod", "NVIDIA A100-SXM4-80GB", "A100", 80, ("a100-sxm-80", True)),
        ("runpod", "NVIDIA A100 80GB PCIe", "A100", 80, ("a100-pcie-80", True)),
        ("runpod", "NVIDIA H200", "H200", 141, ("h200-sxm", True)),
        ("lambda", "gpu_1x_h100_pcie", "H100", 80, ("h100-pcie", True)),
        ("nebius", "gpu-h100-sxm 8gpu-128vcpu-1600gb", "H100", 80, ("h100-sxm", True)),
        ("gcp", "a3-ultragpu-8g", "H200", 141, ("h200-sxm", True)),
        ("gcp", "a3-highgpu-8g", "H100", 80, ("h100-sxm", True)),
        ("gcp", "a2-ultragpu-1g", "A100", 80, ("a100-pcie-80", False)),
        ("azure", "Standard_NC40ads_H100_v5", "H100", 94, ("h100-nvl", True)),
        ("vastai", "12345", "H100", 80, ("h100-pcie", False)),
        ("vastai", "12345", "A100", 40, ("a100-pcie-40", False)),
        ("vastai", "12345", "V100", 16, ("v100-pcie-16", False)),
        ("vastai", "12345", "H100NVL", 94, ("h100-nvl", True)),
        ("vastai", "12345", "A5000", 24, ("rtx-a5000", True)),
        ("vultr", "vbm-256c-3072gb-8-b200-gpu", "B200", 192, ("b200-sxm", True)),
        ("vultr", "vcg-a100-6c-60g-40vram", "A100", 40, None),  # half of an 80 GB card
        ("azure", "Standard_NV6ads_A10_v5", "A10", 4, None),  # a sixth
        ("vastai", "12345", "RTX3060", 12, ("rtx-3060", True)),
        ("vastai", "12345", "RTX3060", 8, None),  # the catalog has the one of 12 GB
        ("vastai", "12345", "RTX4070Ti", 12, ("rtx-4070ti", True)),
        ("vastai", "12345", "GTX1080Ti", 11, None),  # not in the catalog
    ],
)
def test_form_factors(provider, instance, gpu_name, memory, expected) -> None:
    assert recognised(provider, instance, gpu_name, memory) == expected


def test_what_is_no_price_is_no_offer() -> None:
    good = {
        "instance_name": "x", "location": "here", "cpu": 8, "memory": 64.0, "gpu_count": 1,
        "gpu_name": "L4", "gpu_memory": 24.0, "spot": False, "disk_size": None, "provider_data": {},
    }  # fmt: skip
    for price in (0.0, -1.0, float("nan"), float("inf"), 1e7, None, "3"):
        assert offers_of("vastai", [good | {"price": price}], date="", source="x") == ()
    (offer,) = offers_of("vastai", [good | {"price": 0.5}], date="2026-01-01", source="x")
    assert (offer.usd_per_hour, offer.spot_usd_per_hour) == (0.5, None)
    assert offer.available is True


def test_names_and_limits_are_checked_before_anything_starts() -> None:
    with pytest.raises(UnknownNameError, match="runpod"):
        refresh(["runpot"])
    for seconds in (0, -1, float("nan"), 1e9):
        with pytest.raises(UsageError, match="time limit"):
            refresh(["aws"], seconds=seconds)


def test_the_library_is_loaded_in_the_child_alone() -> None:
    code = (
        "import sys, workbench.describe.prices as p, workbench.describe.live_prices;"
        "p.offers(); print('gpuhunt' in sys.modules, 'requests' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]

"""The battery's own rules, and each of its cases at a tiny size on the CPU."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import time
from pathlib import Path
from typing import NoReturn

import pytest

from tests.accuracy.own_rows import own_rows
from tests.gpu.battery import __main__, runner
from tests.gpu.battery.catalog import CASES
from tests.gpu.battery.libraries import trace_event_fault
from tests.gpu.battery.low_precision import TINY_SIZES, fp8_products
from tests.gpu.battery.runner import remaining, results, run_battery
from tests.gpu.battery.values import Case, Check, NotAvailable, Report, Setup
from tests.gpu.results import FOLDER

ROOT = Path(__file__).parents[2]


def case(name: str, function: object, seconds: float = 30.0, **more: object) -> Case:
    return Case(name=name, group="test", run=function, limit_seconds=seconds, **more)  # pyright: ignore[reportArgumentType]


def fine(_setup: Setup) -> Report:
    return Report(measured={"value": 2.0}, checks=(Check(name="value", value=2.0, high=3.0),))


def wrong(_setup: Setup) -> Report:
    print("what the case printed")
    return Report(measured={}, checks=(Check(name="value", value=4.0, high=3.0),))


def absent(_setup: Setup) -> Report:
    raise NotAvailable("there is no card")


def raising(_setup: Setup) -> Report:
    raise ValueError("boom")


def crashing(_setup: Setup) -> NoReturn:
    faulthandler.disable()  # its trace would stand in the report of all tests
    os.abort()


def hanging(setup: Setup) -> NoReturn:
    subprocess.Popen(["sleep", "1000"])
    (setup.out / "hung").touch()
    time.sleep(1000)
    raise AssertionError


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(device="cpu", out=tmp_path / "out")


def outcomes(setup: Setup) -> dict[str, str]:
    return {row["case"]: row["outcome"] for row in results(setup.results)}


def test_every_end_is_a_row_and_none_takes_the_next_case_along(setup: Setup) -> None:
    cases = [
        case("crash", crashing),
        case("raise", raising),
        case("wrong", wrong),
        case("absent", absent),
        case("missing", fine, packages=("there_is_no_such_package",)),
        case("hang", hanging, seconds=2.0),
        case("beside", fine, lane="cpu"),
        case("fine", fine),
    ]
    run_battery(cases, setup, seconds=120, preload=())
    assert outcomes(setup) == {
        "crash": "error",
        "raise": "error",
        "wrong": "failed",
        "absent": "skipped",
        "missing": "skipped",
        "hang": "timeout",
        "beside": "passed",
        "fine": "passed",
    }
    rows = {row["case"]: row for row in results(setup.results)}
    assert "there_is_no_such_package" in rows["missing"]["reason"]
    assert "what the case printed" in rows["wrong"]["tail"]
    assert "boom" in rows["raise"]["reason"]
    assert rows["fine"]["checks"][0]["ok"]
    assert {"card", "versions", "date"} <= rows["fine"].keys()
    assert (setup.out / "hung").exists()


def test_it_goes_on_where_it_was_cut_off_and_a_torn_line_costs_one_case(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_LEAST_SECONDS", 0.2)  # a busy machine takes long to get there
    cases = [case("first", fine), case("second", hanging, seconds=600.0), case("third", fine)]
    run_battery(cases[:1], setup, seconds=60, preload=())
    with setup.results.open("a") as file:
        file.write('{"case": "third", "outco')
    assert [one.name for one in remaining(cases, setup.results)] == ["second", "third"]
    run_battery(cases, setup, seconds=6.5, preload=())  # less than the second needs
    assert outcomes(setup) == {"first": "passed", "second": "cut"}
    assert [one.name for one in remaining(cases, setup.results)] == ["second", "third"]
    run_battery([case("second", fine), cases[2]], setup, seconds=60, preload=())
    assert outcomes(setup) == {"first": "passed", "second": "passed", "third": "passed"}


@pytest.mark.parametrize(
    ("check", "ok"),
    [
        (Check(name="x", value=None, high=1.0), False),
        (Check(name="x", value=float("nan"), high=1.0), False),
        (Check(name="x", value=1.0, low=1.0, high=1.0), True),
        (Check(name="x", value=1.1, low=1.0, high=1.0), False),
        (Check(name="x", value="cuda", equals="cuda"), True),
        (Check(name="x", value="cpu", equals="cuda"), False),
        (Check(name="x", value="cpu", low=0.0), False),
    ],
)
def test_a_value_that_is_missing_or_outside_fails(*, check: Check, ok: bool) -> None:
    assert check.ok is ok


def test_the_cases_cover_the_groups_and_have_names_of_their_own() -> None:
    names = [one.name for one in CASES]
    assert len(set(names)) == len(names)
    groups = {one.group for one in CASES}
    assert groups >= {
        *("environment", "recipe", "memory", "simulation", "time", "ranks", "faults"),
        *("inference", "profile", "libraries"),
    }
    assert sum(one.group == "memory" for one in CASES) == 15


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ({"ph": "X", "pid": 1, "ts": 1.5, "dur": 0}, None),
        ({"ph": "M", "pid": 1, "name": "process_name", "args": {}}, None),
        ({"ph": "X", "pid": 1, "ts": 1.5}, "no dur"),
        ({"ph": "X", "pid": 1, "ts": "1", "dur": 1}, "no ts"),
        ({"ph": "s", "pid": 1, "ts": 1}, "flow without id"),
        ({"ph": "?", "pid": 1, "ts": 1}, "phase '?'"),
        ({"ph": "i", "ts": 1}, "no pid"),
    ],
)
def test_trace_events_are_held_against_the_format(event: dict, fault: str | None) -> None:
    assert trace_event_fault(event) == fault


def test_kept_measurements_are_compared_with_todays_prediction(tmp_path: Path) -> None:
    row = {
        "case": "memory-gpt2-autocast",
        "group": "memory",
        "card": {"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559.0},
        "measured": {"allocated_bytes": 10 * 2**30, "reserved_bytes": None},
    }
    kept = tmp_path / "battery-h100-2026-01-01.jsonl"
    kept.write_text(json.dumps(row) + "\n")
    (found,) = own_rows(tmp_path)
    assert found.what == "allocated_bytes"
    assert found.error == pytest.approx(found.predicted / (10 * 2**30) - 1)
    kept.write_text(json.dumps(row | {"simulated": True}) + "\n")
    with pytest.raises(ValueError, match="memory-gpt2-autocast is of a simulated GPU"):
        own_rows(tmp_path)
    kept.write_text(json.dumps(row | {"requested_device": "cpu"}) + "\n")
    with pytest.raises(ValueError, match="is of a CPU, no measurement"):
        own_rows(tmp_path)


def test_only_measurements_of_a_gpu_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(__main__, "FOLDER", tmp_path / "results")
    row = {
        "case": "nvml",
        "outcome": "passed",
        "date": "2026-01-01",
        "card": {"name": "NVIDIA H100"},
    }
    cpu, gpu = (row | {"requested_device": device} for device in ("cpu", "cuda"))
    (tmp_path / "simulated.jsonl").write_text(json.dumps(gpu | {"simulated": True}) + "\n")
    with pytest.raises(SystemExit, match=r"results.jsonl has no result of a GPU"):
        __main__.keep(tmp_path)
    lines = [json.dumps(one) for one in (cpu, gpu, gpu | {"case": "cut-off", "outcome": "cut"})]
    (tmp_path / "results.jsonl").write_text("\n".join([*lines, '{"case": "to']))
    path = __main__.keep(tmp_path)
    assert path.name == "battery-nvidia-h100-2026-01-01.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [gpu]
    (tmp_path / "results.jsonl").write_text(json.dumps(gpu | {"simulated": True}) + "\n")
    with pytest.raises(SystemExit, match=r"has no result of a GPU"):
        __main__.keep(tmp_path)


def test_the_readme_claims_no_measurement_that_is_not_kept() -> None:
    kept = list(FOLDER.glob("battery-*.jsonl"))
    says_none = "not yet measured on a GPU of ours" in (ROOT / "README.md").read_text()
    assert says_none == (not kept)


@pytest.mark.slow
def test_fp8_products_are_right_on_a_cpu_too(setup: Setup) -> None:
    report = fp8_products(setup)
    assert [row["size"] for row in report.measured["rows"]] == list(TINY_SIZES)
    assert [(one.name, one.ok) for one in report.checks] == [("error", True)]

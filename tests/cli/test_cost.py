"""``workbench cost``: keys, arithmetic that adds up, offers, refusals, how it reads."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command as Run
from workbench.cli.quantities import read_count, read_range
from workbench.describe import prices
from workbench.errors import UsageError
from workbench.units import GIB

CONTRACT = {
    *("terms", "usd", "usd_low", "usd_high", "hours", "wall_hours", "gpu_hours", "usd_per_step"),
    *("usd_per_million_tokens", "usd_per_month", "hours_per_month", "tokens_per_second", "mfu"),
    *("step", "spot", "offer", "assumptions"),
}
BASE = ("--model", "llama-3.2-1b", "--gpu", "h100", "--gpus", "8")
OWN = ("--usd-per-hour", "20")


pytestmark = pytest.mark.usefixtures("no_prices_of_this_machine")


@pytest.fixture
def run(command: Run) -> Run:
    """``workbench cost`` with arguments."""
    return functools.partial(command, "cost")


def answer(run: Run, *arguments: str) -> dict[str, Any]:
    result = run(*BASE, *arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def named(document: dict[str, Any]) -> dict[str, Any]:
    return {term["name"]: term["usd"] for term in document["terms"]}


def test_json_is_one_object_on_stdout_and_nothing_else() -> None:
    command = [sys.executable, "-m", "workbench.cli", "cost", *BASE, "--tokens", "10B", *OWN]
    result = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=240, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document.keys() >= CONTRACT
    assert all(
        term.keys() == {"name", "usd", "how", "source", "date"} for term in document["terms"]
    )
    assert document["usd"] == pytest.approx(sum(named(document).values()))
    assert document["usd_low"] < document["usd"] < document["usd_high"]
    assert document["gpu_hours"] == pytest.approx(8 * document["hours"])
    assert document["hours"] * 3600 * document["tokens_per_second"] == pytest.approx(1e10, rel=1e-3)
    assert document["usd_per_million_tokens"] == pytest.approx(document["usd"] / 1e4)
    assert document["usd_per_month"] == 20 * 720
    assert document["step"]["mfu"] == document["mfu"]
    assert document["offer"]["usd_per_hour"] == 20
    assert document["offer"]["date"]


def test_lengths_in_tokens_steps_and_epochs(run: Run) -> None:
    tokens = 8 * 2048 * 1000
    by_tokens = answer(run, "--tokens", str(tokens), *OWN)
    by_steps = answer(run, "--steps", "1k", *OWN)
    by_epochs = answer(run, "--epochs", "2", "--dataset-tokens", str(tokens // 2), *OWN)
    assert by_tokens["steps"] == 1000
    assert by_tokens["usd"] == by_steps["usd"] == by_epochs["usd"]


def test_without_a_price_the_hours_are_given_and_the_dollars_are_null(run: Run) -> None:
    document = answer(run, "--tokens", "1B", "--gpus", "1", "--provider", "akash")
    assert document["usd"] is document["usd_low"] is document["usd_per_month"] is None
    assert document["hours"] > 0
    assert document["offer"]["provider"] == "akash"
    text = run(*BASE, "--tokens", "1B", "--gpus", "1", "--provider", "akash").out
    assert "n/a (terms priced" in text
    assert "$0" not in text


def test_more_gpus_than_a_machine_has_are_said_to_be_several_machines(run: Run) -> None:
    result = run(*BASE, "--tokens", "1B", "--gpus", "64", "--strategy", "ddp")
    text = " ".join(result.out.split())
    assert "h100-sxm, 64 GPUs each: not in the price table" in text
    assert "For 8 such machines: --nodes 8 --gpus 8." in text
    assert answer(run, "--tokens", "1B", "--nodes", "8", "--strategy", "ddp")["usd"] > 0


def test_the_cheapest_offer_of_the_table_is_chosen_and_said(run: Run) -> None:
    document = answer(run, "--tokens", "1B")
    best, _, _ = prices.spread("h100-sxm", 8)
    assert document["offer"]["provider"] == best.provider
    assert document["offer"]["usd_per_hour"] == best.usd_per_hour
    assert any("is the cheapest of" in note for note in document["notes"])
    assert document["offer"]["source"]


def test_a_named_offer_describes_the_machine(run: Run) -> None:
    result = run("--model", "llama-3.2-1b", "--offer", "p5.48xlarge", "--tokens", "1B", "--json")
    document = json.loads(result.out)
    assert (document["gpu"], document["step"]["gpus"]) == ("h100-sxm", 8)
    assert document["offer"]["provider"] == "aws"
    assert document["offer"]["usd_per_hour"] == pytest.approx(55.04)


def test_several_nodes_take_an_offer_with_a_fabric_and_pay_for_each(run: Run) -> None:
    document = answer(run, "--tokens", "10B", "--nodes", "4")
    assert document["offer"]["max_nodes"] >= 4
    assert document["offer"]["network"] is not None
    assert document["offer"]["nodes"] == 4
    hourly = 4 * document["offer"]["usd_per_hour"]
    assert document["idle_usd_per_hour"] == pytest.approx(hourly)
    assert named(document)["useful work"] == pytest.approx(hourly * document["hours"])


def test_machines_that_nobody_is_known_to_join_are_priced_with_a_warning(run: Run) -> None:
    given = ("--model", "llama-3.2-1b", "--gpu", "a100-sxm-80", "--gpus", "8", "--nodes", "8")
    document = json.loads(run(*given, "--tokens", "1B", "--json").out)
    known = [one for one in prices.offers(gpu="a100-sxm-80") if (one.max_nodes or 1) >= 8]
    warned = any("is not known to connect 8" in note for note in document["notes"])
    assert document["usd"] > 0
    assert warned is not any(one.usd_per_hour for one in known if one.gpus >= 8)


def test_an_offer_without_spot_price_is_said(run: Run) -> None:
    given = ("--tokens", "1B", "--provider", "lambda", "--spot")
    document = answer(run, *given)
    assert document["usd"] is None
    assert document["spot"]["verdict"] == "No spot price known here."
    assert document["spot"]["usd_on_demand"] > 0


def test_spot_stands_against_on_demand(run: Run) -> None:
    prices_given = ("--usd-per-hour", "20", "--spot-usd-per-hour", "8")
    spot = answer(run, "--tokens", "100B", *prices_given, "--spot", "--interruption-hours", "8")
    demand = answer(run, "--tokens", "100B", *prices_given, "--interruption-hours", "8")
    assert spot["spot"]["chosen"] is True
    assert demand["spot"]["chosen"] is False
    assert spot["usd"] < demand["usd"]
    assert spot["wall_hours"] > demand["wall_hours"]
    assert 0 < spot["spot"]["break_even_hours"] < 8
    assert spot["spot"]["usd"] == pytest.approx(spot["usd"])
    assert spot["spot"]["usd_on_demand"] == pytest.approx(demand["usd"])
    alone = answer(run, "--tokens", "100B", "--usd-per-hour", "8", "--spot")
    assert alone["offer"]["spot_usd_per_hour"] == 8
    assert alone["spot"]["usd_on_demand"] is None


def test_options_reach_the_bill(run: Run) -> None:
    plain = answer(run, "--tokens", "10B", *OWN, "--provider", "runpod")
    for term, options in {
        "start-up": ("--start-minutes", "60"),
        "evaluation": ("--evaluation", "0.1"),
        "failed attempts": ("--failed", "0.1"),
        "checkpoints written": ("--checkpoint-minutes", "5"),
        "lost work and restarts": ("--failure-gpu-hours", "100"),
        "idle": ("--idle-hours", "5"),
        "storage while running": ("--storage-gb", "500"),
        "storage while stopped": ("--keep-checkpoints", "2", "--stopped-days", "30"),
    }.items():
        changed = answer(run, "--tokens", "10B", *OWN, "--provider", "runpod", *options)
        assert named(changed)[term] > named(plain)[term], term
        assert changed["usd"] > plain["usd"], term
    month = answer(run, "--tokens", "10B", *OWN, "--hours-per-month", "730")
    assert month["usd_per_month"] == 20 * 730
    wide = answer(run, "--tokens", "10B", "--usd-per-hour", "18-22")
    assert wide["usd_low"] < plain["usd_low"]
    assert wide["usd_high"] > plain["usd_high"]


def test_storage_has_its_own_source_and_unknown_prices_stay_unknown(run: Run) -> None:
    given = ("--tokens", "1B", *OWN, "--storage-gb", "100", "--stopped-days", "10")
    document = answer(run, *given, "--provider", "runpod")
    terms = {term["name"]: term for term in document["terms"]}
    stopped = prices.terms("runpod").stopped_storage_usd_per_gb_month
    assert stopped is not None
    assert terms["storage while stopped"]["usd"] == pytest.approx(100 * stopped / 3)
    assert terms["useful work"]["source"] == "given by you"
    assert terms["storage while stopped"]["source"] not in {"", "given by you"}
    assert terms["storage while stopped"]["date"]
    unknown = answer(run, *given)
    assert named(unknown)["storage while running"] is None
    assert unknown["usd"] is None
    assert unknown["usd_known"] > 0


def test_a_provider_that_nobody_knows_is_refused_beside_a_price_of_ones_own(
    run: Run, tmp_path: Path
) -> None:
    given = (*BASE, "--tokens", "1B", *OWN, "--provider")
    refused = run(*given, "runpood")
    assert refused.code == 2
    assert "Unknown provider 'runpood'. Did you mean runpod?" in refused.err
    refused = run(*given, "my-lab", "--spot")
    assert refused.code == 2
    assert "price file" in refused.err
    file = tmp_path / "own.csv"
    file.write_text("provider,gpu,gpus,usd_per_hour\nMy-Lab,h100,8,12\n", encoding="utf-8")
    known = run(*given, "my-lab", "--json", WORKBENCH_PRICES=str(file))
    assert json.loads(known.out)["offer"]["provider"] == "my-lab", known.err
    other_name = run(*given, "Vast.ai", "--json")
    assert json.loads(other_name.out)["offer"]["provider"] == "vastai"
    assert run(*given, "own").code == 0


TOKENS = ("--tokens", "1B")


def test_a_layout_that_does_not_fit_is_said(run: Run) -> None:
    given = ("--model", "llama-3.1-405b", "--gpu", "h100", "--gpus", "8", *TOKENS)
    result = run(*given)
    assert result.code == 0
    assert "This layout does not fit" in result.out.splitlines()[0]
    found = re.search(r"(\d+) such GPUs hold it: (.+?)\.", " ".join(result.out.split()))
    assert found is not None
    more = ("--nodes", str(int(found[1]) // 8), *found[2].split())
    assert answer(run, *given, *more)["fits"]


def test_switches_come_before_more_gpus(run: Run) -> None:
    """No layout of two GPUs holds it as it is asked for, but one with recompute does."""
    given = ("--model", "llama-3.2-3b", "--gpu", "a100-40", "--gpus", "2", "--micro-batch", "4")
    note = answer(run, *given, "--strategy", "zero3", *TOKENS)["notes"][0]
    found = re.search(r"It fits with [^:]+: (.+)\.", note)
    assert found is not None, note
    assert answer(run, *given, "--strategy", "zero3", *found[1].split(), *TOKENS)["fits"]


@pytest.mark.parametrize(("model", "gpu"), [("llama-3-8b", "h100"), ("llama-2-13b", "a100-80")])
def test_layouts_that_it_names_do_fit(run: Run, model: str, gpu: str) -> None:
    given = ("--model", model, "--gpu", gpu, "--gpus", "8", "--tokens", "1B")
    note = answer(run, *given)["notes"][0]
    names = re.search(r"These do: (.*)\. Name one with --strategy\.", note)
    assert names is not None, note
    for name in names[1].split(", "):
        assert answer(run, *given, "--strategy", name)["fits"], name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the length of the run exactly once"),
        (("--tokens", "1B", "--steps", "5"), "the length of the run exactly once"),
        (("--epochs", "3"), "the length of the run exactly once"),
        (("--tokens", "0"), "--tokens must be a number of at least 1 and below 1e30, not '0'"),
        (("--tokens", "many"), "Write it as 300B"),
        (("--tokens", "1B", "--usd-per-hour", "0"), "--usd-per-hour must be above 0"),
        (("--tokens", "1B", "--usd-per-hour", "20", "--offer", "x"), "not both"),
        (("--tokens", "1B", "--provider", "runpd"), "Did you mean runpod?"),
        (("--tokens", "1B", "--offer", "p5.48xlarg"), "p5.48xlarge"),
        (("--tokens", "1B", "--offer", "gpu_1x_a10"), "Listed at:"),
        (("--tokens", "1B", "--hours-per-month", "700"), "720 or 730"),
        (("--tokens", "1B", "--spot", "--interruption-hours", "0"), "above 0"),
        (("--tokens", "1B", *OWN, "--spot", "--interruption-hours", "0.001"), "never gets"),
        (("--tokens", "1B", "--idle-hours", "-1"), "idle_hours must be at least 0, not -1."),
        (("--tokens", "1B", "--keep-checkpoints", "-1"), "keep_checkpoints must be at least 0"),
        (("--tokens", "1B", "--storage-gb", "nan"), "at least 0, not nan"),
        (
            ("--tokens", "1B", "--checkpoint-minutes", "0"),
            "checkpoint_minutes must be above 0, not 0.",
        ),
        (("--tokens", "1B", "--start-minutes", "-1"), "start_minutes must be at least 0, not -1."),
        (("--tokens", "1B", "--restart-minutes", "inf"), "below 1e30, not inf"),
        (("--tokens", "1B", "--storage-gb-per-second", "0"), "storage_gb_per_second must be abo"),
        (("--tokens", "1B", "--evaluation", "-0.1"), "evaluation must be at least 0"),
        (("--tokens", "1B", "--failed", "nan"), "failed must be at least 0, not nan"),
        (("--epochs", "0", "--dataset-tokens", "1B"), "epochs must be above 0"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    result = run(*BASE, *arguments)
    assert result.code == 2
    assert said in " ".join(result.err.split())
    assert "Traceback" not in result.err
    assert result.out == ""


def test_without_a_gpu_it_asks_for_one(run: Run) -> None:
    result = run("--model", "gpt2", "--cpu", "--tokens", "1B")
    assert result.code == 2
    assert "Add --gpu" in result.err


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_it_reads_at_any_width(run: Run, columns: int) -> None:
    result = run(*BASE, "--tokens", "10B", "--provider", "runpod", columns=columns)
    assert result.code == 0
    lines = result.out.splitlines()
    assert max(len(line) for line in lines) <= columns
    assert not [line for line in lines if line != line.rstrip()]
    text = " ".join(result.out.split())
    for words in ("useful work", "finished run", "per 1M tokens", "a month of 720 h", "spot"):
        assert words in text
    assert "[1] " in text


def test_what_is_trained_is_said_whole(run: Run) -> None:
    text = run(*BASE, "--tokens", "1B", "--lora-rank", "16", "--quantization", "nf4").out
    assert "bf16, adamw, LoRA r16 on nf4" in " ".join(text.split())


def test_options_that_change_the_bill_stand_in_its_layout(run: Run) -> None:
    options = ("--strategy", "fsdp", "--recompute", "full", "--no-reshard-after-forward")
    text = " ".join(run(*BASE, "--tokens", "1B", *options).out.split())
    assert "fsdp on 8 x h100-sxm, recompute full, no reshard after forward" in text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("300B", 3e11),
        ("1.5T", 1.5e12),
        ("2e9", 2e9),
        ("1_000_000", 1e6),
        ("20,000", 2e4),
        ("7k", 7000),
    ],
)
def test_counts_as_people_write_them(text: str, count: float) -> None:
    assert read_count(text) == count


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "nan", "inf", "1e400", "1e30", "1,5", "B", "3x", "1.2.3"]
)
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(UsageError, match="at least 1 and below 1e30, not"):
        read_count(text)


@pytest.mark.parametrize("text", ["1.5", "1.0005k", "999.9"])
def test_a_count_is_not_rounded_in_silence(text: str) -> None:
    with pytest.raises(UsageError, match="--steps must be a whole number"):
        read_count(text, "--steps")
    assert read_count("1.1B") == 1_100_000_000
    assert read_count("0.07T") == 70_000_000_000


@pytest.mark.parametrize("text", ["", "0", "-1", "3-2", "x", "1.2.3", "1e9", "1-2-3"])
def test_what_is_no_price(text: str) -> None:
    with pytest.raises(UsageError, match="above 0, one number or a range"):
        read_range(text, "price")


OFFLOADED = ("--model", "llama-3-70b", "--gpu", "h100", "--gpus", "8", "--strategy", "zero3")
OFFLOADED = (*OFFLOADED, "--offload", "optimizer,parameters", "--recompute", "full", *TOKENS)


def test_the_machines_hold_what_is_offloaded_to_them(run: Run) -> None:
    document = answer(run, *OFFLOADED)
    offer, needed = document["offer"], 16 * 70.6e9  # fp32 weights, gradients and AdamW's moments
    unknown = any("Offload keeps 1.03 TiB in" in note for note in document["notes"])
    assert unknown if offer["memory_bytes"] is None else offer["memory_bytes"] >= needed
    assert document["fits"]
    assert any("too little host memory excluded" in note for note in document["notes"])


def test_a_named_machine_that_cannot_hold_the_offload_is_said(run: Run) -> None:
    document = answer(run, *OFFLOADED, "--provider", "cudo")
    assert not document["fits"]
    assert "128 GiB of host memory, and offload keeps" in document["notes"][0]


def test_the_cheapest_machine_has_host_memory_for_its_ranks(run: Run) -> None:
    """cudo lists one with 4 GiB beside an H100, which every plan leaves out too."""
    offer = answer(run, "--gpus", "1", *TOKENS)["offer"]
    assert offer["memory_bytes"] is None or offer["memory_bytes"] >= 8 * GIB
    named = answer(run, "--gpus", "1", "--offer", "h100-sxm 1x2v4gb", *TOKENS)
    assert "4 GiB of host memory, and a rank's process" in named["notes"][0]
    assert not named["fits"]

"""``workbench plan``: keys, exit codes, refusals, how it reads."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

from tests.cli.conftest import Command as Run
from workbench.describe import Cluster, Strategy

BASE = ("--model", "llama-3.2-1b", "--tokens", "1B")
FEW = (*BASE, "--gpu", "h100", "--max-gpus", "8", "--providers", "runpod,lambda")
PLAN = {
    *("provider", "gpu", "gpus", "nodes", "strategy", "hours", "usd", "tokens_per_second", "mfu"),
    *("memory", "range", "why", "offer", "spot", "micro_batch", "accumulate", "recompute"),
}
KEYS = {"plans", "pareto", "rejected", "rejected_total", "combinations", "sensitivity", "seconds"}


pytestmark = pytest.mark.usefixtures("no_prices_of_this_machine")


@pytest.fixture
def run(command: Run) -> Run:
    """``workbench plan`` with arguments."""
    return functools.partial(command, "plan")


def answer(run: Run, *arguments: str, code: int = 0) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.code == code, result.err
    return json.loads(result.out)


def test_json_keeps_the_contract(run: Run) -> None:
    document = answer(run, *FEW, "--spot")
    assert document.keys() >= KEYS
    first = document["plans"][0]
    assert first.keys() >= PLAN
    assert first["memory"]["fits"] is True
    assert first["usd"] == min(one["usd"] for one in document["plans"])
    assert {one["provider"] for one in document["plans"]} <= {"runpod", "lambda"}
    assert all(one["gpu"].startswith("h100") for one in document["plans"])
    assert all(0 <= index < len(document["plans"]) for index in document["pareto"])
    assert all(one.keys() == {"layout", "offer", "reason"} for one in document["rejected"])
    assert len(document["rejected"]) <= 200 < document["rejected_total"]
    total = document["rejected_total"] + len(document["plans"])
    assert document["combinations"] == total
    assert sum(document["rejected_by_reason"].values()) == document["rejected_total"]


def test_options_reach_the_search(run: Run) -> None:
    document = answer(run, *FEW, "--global-batch", "32", "--rejections", "3", "--no-offload")
    assert document["global_batch"] == 32
    assert len(document["rejected"]) == 3
    assert not any(one["offload"] for one in document["plans"])
    lora = answer(run, *FEW, "--lora-rank", "8", "--seq-len", "1024", "--precision", "fp16")
    assert lora["plans"][0]["usd"] < document["plans"][0]["usd"]
    epochs = ("--epochs", "2", "--dataset-tokens", "500M")
    same = answer(run, "--model", "llama-3.2-1b", *epochs, *FEW[4:], "--global-batch", "32")
    assert same["plans"][0]["usd"] == pytest.approx(document["plans"][0]["usd"])


@pytest.mark.parametrize("columns", [80, 140])
def test_it_reads_well(run: Run, columns: int) -> None:
    result = run(*FEW, "--deadline-hours", "100", columns=columns)
    assert result.code == 0, result.err
    assert max(map(len, result.out.splitlines())) <= columns
    times = re.findall(r"\$[\d,.]+ +\d+ (\w+) \d\d (\w+)", result.out.partition("Pareto")[0])
    assert len(times) > 1
    assert len(set(times)) == 1, "one unit in the column"
    text = " ".join(result.out.split())
    for piece in ("Why", "What if", "Why not", "Pareto front", "naive choice", "runner-up", "$"):
        assert piece in text, piece


def test_nothing_fits_is_exit_1_with_the_nearest_miss(run: Run) -> None:
    few = ("--model", "llama-3-70b", "--tokens", "1T", "--gpu", "rtx-4090", "--max-gpus", "1")
    document = answer(run, *few, code=1)
    assert document["plans"] == []
    assert "would fit" in document["misses"][0]
    result = run(*FEW, "--budget-usd", "0.5")
    assert result.code == 1
    assert "A budget of $" in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "gpt2"), "needs the run length"),
        (("--model", "gpt2", "--tokens", "0"), "tokens must be"),
        (("--model", "gpt2", "--tokens", "many"), "tokens must be"),
        (("--model", "gpt2", "--epochs", "2"), "belong together"),
        ((*BASE, "--providers", "runpood"), "runpod"),
        ((*BASE, "--gpu", "h1000"), "Unknown accelerator"),
        ((*BASE, "--max-gpus", "0"), "max_gpus must be at least 1"),
        ((*BASE, "--budget-usd", "-3"), "budget_usd must be above 0"),
        ((*BASE, "--deadline-hours", "nan"), "deadline_hours must be above 0"),
        ((*BASE, "--global-batch", "1.5M"), "not '1.5M'. Write it in full: 1500000."),
        ((*BASE, "--global-batch", "0"), "global_batch must be at least 1"),
        ((*BASE, "--providers", "lambda", "--gpu", "mi300x"), "No offer at lambda of mi300x"),
        ((*BASE, "--strategy", "fsdp"), "--strategy fsdp is decided by the plan"),
        ((*BASE, "--micro-batch", "4"), "--micro-batch 4 is decided by the plan"),
        ((*BASE, "--tokens", "1B", "--epochs", "1", "--dataset-tokens", "1M"), "given once"),
        ((*BASE, "--gpus", "8"), "Say which: --gpu h100 --gpus 8"),
        ((*BASE, "--gpus", "8", "--gpu", "h100,a100"), "Say which: --gpu h100 --gpus 8"),
        ((*BASE, "--gpu", "h100", "--nodes", "2"), "--nodes describes machines that you have"),
        ((*BASE, "--network", "100 ethernet"), "--network describes machines that you have"),
        ((*BASE, "--gpu", "h100", "--gpus", "0"), "gpus must be at least 1"),
        ((*BASE, "--gpu", "h100", "--gpus", "1", "--usd-per-hour", "0"), "must be above 0"),
        ((*BASE, "--gpu", "h100", "--gpus", "8", "--spot"), "--spot chooses among rented machines"),
        ((*BASE, "--here", "--providers", "runpod"), "--providers chooses among rented machines"),
        ((*BASE, "--here", "--gpu", "h100"), "--gpu describes others"),
        ((*BASE, "--here", "--gpus", "8"), "--gpus describes others"),
    ],
)
def test_bad_input_is_exit_2_and_one_sentence(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert said in " ".join(result.err.split())
    assert "Traceback" not in result.err


def test_here_plans_on_this_hosts_gpus(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.rented("a100-sxm-80", 2, usd_per_hour=3.0)
    monkeypatch.setattr("workbench.cli.plan.detect_host", lambda: cluster)
    document = answer(run, *BASE, "--here")
    assert {one["gpus"] for one in document["plans"]} == {1, 2}
    assert document["plans"][0]["usd"] > 0
    monkeypatch.setattr("workbench.cli.plan.detect_host", lambda: Cluster(name="laptop"))
    result = run(*BASE, "--here")
    assert result.code == 2
    assert "laptop has no accelerator" in " ".join(result.err.split())


def test_machines_one_has_are_described(run: Run) -> None:
    document = answer(run, *BASE, "--gpu", "h100", "--gpus", "8", "--nodes", "2")
    assert {(one["gpus"], one["nodes"]) for one in document["plans"]} <= {(16, 2), (1, 1)}
    hours = [one["hours"] for one in document["plans"]]
    assert hours == sorted(hours)
    assert {one["usd"] for one in document["plans"]} == {None}
    few = (*BASE, "--gpu", "h100", "--gpus", "8")
    priced = answer(run, *few, "--usd-per-hour", "20")["plans"]
    assert priced[0]["usd"] == pytest.approx(20 * priced[0]["hours"], rel=0.01)
    slow = answer(run, *few, "--nodes", "2", "--network", "10 ethernet")["plans"]
    assert slow[0]["hours"] > hours[0]
    text = run(*few).out
    assert "give --usd-per-hour" in text
    assert "cheaper" not in text


def test_this_host_may_have_a_price(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.rented("a100-sxm-80", 2)
    monkeypatch.setattr("workbench.cli.plan.detect_host", lambda: cluster)
    first = answer(run, *BASE, "--here", "--usd-per-hour", "4")["plans"][0]
    assert first["usd"] == pytest.approx(4 * first["hours"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("zero1", {}, ("pip install deepspeed", "--engine torch")),
        ("zero1", {"offload": ("optimizer",)}, ("pip install deepspeed",)),
        ("zero3", {}, ("pip install deepspeed",)),
        ("fsdp", {}, ()),
    ],
)
def test_what_must_be_installed_is_said_beside_the_launch_line(
    name: str, options: dict[str, Any], said: tuple[str, ...]
) -> None:
    from workbench.cli.plan_view import to_know

    strategy = Strategy.parse(name, 8).with_options(**options)
    text = " ".join(to_know(strategy, micro_batch=2, accumulate=4))
    for piece in ("pip install deepspeed", "--engine torch"):
        assert (piece in text) is (piece in said)


@pytest.mark.parametrize(("trainer", "times"), [("trl", 1), ("nanotron", 0)])
def test_a_plan_without_its_trainers_recomputation_says_so(
    run: Run, trainer: str, times: int
) -> None:
    own = ("--model", "gpt2", "--tokens", "1B", "--gpu", "l4", "--gpus", "2")
    text = " ".join(run(*own, "--trainer", trainer).out.split())
    assert "workbench launch SCRIPT" in text
    told = "recomputes by default (full): switch that off there"
    assert text.count(told) == times
    first = json.loads(run(*own, "--trainer", trainer, "--json").out)["plans"][0]
    assert " ".join(first["notes"]).count(told) == times


def test_any_script_offers_what_the_launcher_starts(run: Run) -> None:
    """Each plan's layout passes the launcher's own check, and the plain ones are all there."""
    from workbench.describe import Model, Workload
    from workbench.launching.prepare.accelerate_config import check_supported
    from workbench.planning import plan
    from workbench.planning.space import ANY_SCRIPT

    work = Workload(
        model=Model.catalog("llama-3-8b"), seq_len=4096, micro_batch=1, precision="bf16"
    )
    found = plan(work, tokens=1e9, space=ANY_SCRIPT)
    for one in found.plans:
        check_supported(one.strategy)
    assert {one.strategy.dp_shard > 1 for one in found.plans} >= {True}
    document = answer(run, *FEW, "--any-script")
    assert all(plan["launch"].startswith("workbench launch") for plan in document["plans"])
    assert document["plans"]
    assert not any("tp" in one["strategy"] for one in document["plans"])


def test_cards_without_bf16_are_planned_in_fp16_as_memory_and_cost_do(run: Run) -> None:
    small = ("--model", "gpt2", "--tokens", "10M")
    for where in (("--gpu", "v100", "--gpus", "2"), ("--gpu", "t4,v100", "--max-gpus", "1")):
        document = answer(run, *small, *where)
        assert {plan["precision"] for plan in document["plans"]} == {"fp16"}, where
        assert any("fp16 is assumed" in note for note in document["notes"]), where


def test_a_chosen_precision_stays_and_mixed_cards_keep_the_usual(run: Run) -> None:
    small = ("--model", "gpt2", "--tokens", "10M")
    chosen = run(*small, "--gpu", "v100", "--gpus", "2", "--precision", "bf16")
    assert "has no bf16 matmuls" in chosen.err
    mixed = answer(run, *small, "--gpu", "t4,h100-sxm", "--max-gpus", "1")
    found = {(plan["gpu"], plan["precision"]) for plan in mixed["plans"]}
    assert found == {("h100-sxm", "bf16")}
    assert "precision" in mixed["rejected_by_reason"]


def test_recomputation_that_only_the_script_can_do_is_not_told_to_the_recipe(run: Run) -> None:
    """The recipe gpt does not fine-tune Qwen; a script that recomputes does."""
    own = ("--model", "qwen2.5-7b", "--tokens", "10M", "--lora-rank", "16", "--gpu", "rtx-4090")
    first = answer(run, *own, "--gpus", "1")["plans"][0]
    assert (first["strategy"], first["recompute"]) == ("single", "full")
    assert first["launch"] == "workbench launch SCRIPT --strategy single --nproc 1"
    text = " ".join(run(*own, "--gpus", "1").out.split())
    assert "The script also recomputes: full (transformers: model.gradient_chec" in text

"""The planner without a browser: filters, searches, selection, handover, refresh, messages."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Launcher, Planner, Workbench
from workbench_widgets.planner import search as search_module
from workbench_widgets.planner.choice import PlannerChoice
from workbench_widgets.planner.search import Answer, PlanSearch
from workbench_widgets.planner.view import points

import workbench as wb
from tests.cpu_budget import over_budget
from tests.describe.price_catalogue import item, publish
from tests.widgets.calculators import move, until
from workbench.cli.plan_values import Question
from workbench.describe import live_prices
from workbench.launching.prepare import accelerate_config
from workbench.planning import plan_on

OPTIONS = {"model": "llama-3.2-1b", "tokens": "5B"}
SPLITS = wb.recipes.find("gpt").splits
FEW = ["runpod", "lambda", "cudo", "vultr"]  # a search of them takes a fraction of the time


pytestmark = pytest.mark.usefixtures("embedded_prices")


@pytest.fixture
def planner() -> Iterator[Planner]:
    made = Planner(**OPTIONS, max_gpus=16, providers=FEW)
    assert made.wait()
    until(lambda: made.story, "the story")
    yield made
    made.close()


def test_the_first_answer_is_the_engines(planner: Planner) -> None:
    plans = planner.plans
    assert plans is not None
    assert planner.figure["kept"] == list(range(len(plans)))
    assert tuple(planner.figure["front"]) == plans.pareto
    assert planner.plan == plans.best
    assert planner.points["rows"] == points(plans)
    assert planner.story["explain"] == list(plans.explain())
    assert [one["says"] for one in planner.story["sensitivity"]] == [
        one.sentence for one in plans.sensitivity()
    ]
    assert planner.rejected["total"] == plans.rejected.total
    assert {one["kind"]: one["count"] for one in planner.rejected["groups"]} == dict(
        plans.rejected.by_kind
    )


def test_limits_that_nothing_keeps_say_what_would_do(planner: Planner) -> None:
    move(planner, budget_usd=0.5)
    assert planner.figure["kept"] == []
    assert planner.figure["fits"] is False
    assert "would do" in planner.figure["headline"]
    assert planner.detail == {}
    assert planner.plan is None
    assert "No plan meets these limits" in repr(planner)
    planner._on_message(planner, {"type": "use"}, [])
    assert planner.handed == {}
    with pytest.raises(wb.UsageError, match="budget"):
        planner.use()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"budget": 100}, TypeError, "Did you mean 'budget_usd'"),
        ({"model": "lama-3-8b"}, wb.UnknownNameError, "llama-3-8b"),
        ({"tokens": "many"}, wb.UsageError, "300B"),
        ({"budget_usd": -1}, wb.UsageError, "above 0"),
        ({"max_gpus": 0}, wb.UsageError, "at least 1"),
        ({"precision": "bf17"}, wb.UnknownNameError, "bf16"),
    ],
)
def test_the_constructor_refuses_in_words(given: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Planner(**given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": "zero"}, "300B"),
        ({"budget_usd": -5}, "above 0"),
        ({"max_gpus": None}, "max_gpus is empty. Enter a whole number."),
        ({"model": "nothing-like-it"}, "Unknown model"),
        ({"deadline_hours": 0}, "above 0"),
        ({"providers": 2}, "Unknown provider '2'"),
    ],
)
def test_every_bad_value_is_said_in_its_control(
    planner: Planner, changes: dict, words: str
) -> None:
    good = planner.figure["headline"]
    move(planner, **changes)
    assert words in planner.problem["message"]
    assert planner.problem["field"] == next(iter(changes))
    assert planner.figure["headline"] == good


def test_a_name_that_only_the_search_knows_is_said_too(planner: Planner) -> None:
    planner.set(providers=["runpood"])
    planner.wait()
    until(lambda: planner.problem, "the problem")
    assert "runpod" in planner.problem["message"]
    planner.set(providers=[])
    until(lambda: planner.problem == {}, "good again")


def test_what_goes_with_lora_waits_while_there_is_none() -> None:
    plain = PlannerChoice.from_options(OPTIONS)
    tuned = plain.changed({"lora_rank": 16, "lora_targets": ["q"], "adapter_bytes": 2})
    without = tuned.changed({"lora_rank": 0})
    assert {"lora_targets", "adapter_bytes"} <= {*without.hidden()}
    assert without.question() == plain.question() != tuned.question()
    with pytest.raises(wb.UsageError, match="lora_rank"):  # shown, so it can be put right
        plain.changed({"quantization": "nf4"}).question()


def test_a_failed_search_of_other_settings_says_nothing(planner: Planner) -> None:
    other = PlannerChoice.from_options({**OPTIONS, "tokens": "6B"}).question()
    failed = Answer(question=other, problem="no prices")
    planner._on_answer(failed)
    assert planner.problem == {}
    move(planner, max_gpus=0)
    own = planner.problem
    planner._on_answer(failed)
    assert planner.problem == own


def test_new_prices_wait_for_controls_that_can_be(planner: Planner) -> None:
    move(planner, max_gpus=0)
    planner._new_prices()
    before = planner.points["set"]
    move(planner, max_gpus=16)
    until(lambda: planner.points["set"] > before, "a search at the new prices")


def test_other_questions_search_and_the_latest_wins(planner: Planner) -> None:
    before = planner.points["set"]
    move(planner, max_gpus=8)
    assert planner.figure["exact"] is False  # at once: what is known of it
    assert all(planner.points["rows"][at]["gpus"] <= 8 for at in planner.figure["kept"])
    move(planner, tokens="6B")
    move(planner, tokens="7B")
    assert planner.figure["headline"].startswith("Searching")
    planner.wait()
    until(lambda: planner.figure["exact"], "the exact answer")
    assert "7 B tokens" in planner.figure["setting"]
    assert planner.points["set"] == before + 1  # 8 GPUs and 6 B tokens were overtaken
    move(planner, tokens="5B", max_gpus=16)
    assert planner.figure["exact"] is True  # it was asked before


def test_a_pick_stays_until_it_breaks_a_limit(planner: Planner) -> None:
    plans = planner.plans
    assert plans is not None
    last = len(plans) - 1
    planner._on_message(planner, {"type": "pick", "at": last, "set": planner.points["set"]}, [])
    assert planner.detail["at"] == last
    assert planner.plan == plans.plans[last]
    move(planner, deadline_hours=1e6)
    assert planner.detail["at"] == last
    move(planner, budget_usd=math.ceil(plans.plans[0].usd or 0))
    assert planner.detail["at"] == 0
    stale = {"type": "pick", "at": last, "set": -1}
    planner._on_message(planner, stale, [])
    assert planner.detail["at"] == 0
    with pytest.raises(wb.UsageError, match="Plan 10000 does not exist"):
        planner.pick(10_000)


def test_details_agree_with_the_plan(planner: Planner) -> None:
    chosen = planner.plan
    assert chosen is not None
    shown = planner.detail
    assert shown["bill"]["total"] == chosen.cost.total_text
    assert sum(part["bytes"] for part in shown["memory"]["parts"]) == chosen.memory.on_card_bytes
    assert shown["offer"]["date"]
    assert f'strategy="{chosen.strategy.name}"' in shown["launch"]["settings"][0]
    assert f"micro_batch = {chosen.workload.micro_batch}" in shown["launch"]["settings"]


def test_use_sets_the_launch_form_and_says_what_this_host_lacks(tmp_path: Path) -> None:
    launcher = Launcher(store=tmp_path, cpu=True)
    planner = Planner(**OPTIONS, launcher=launcher, max_gpus=4, gpu="rtx-4090")
    plans = planner.wait()
    assert plans is not None
    launchable = [
        at
        for at, one in enumerate(plans)
        if one.nodes == 1 and not accelerate_config.why_not(one.strategy, splits=SPLITS)
    ]
    planner.pick(launchable[0])
    used = planner.use()
    choice = launcher.picker.choice
    assert choice.strategy().with_options(name=used.strategy.name) == used.strategy.with_options(
        recompute_parts=choice.strategy().recompute_parts
    )
    assert f"--micro-batch {used.workload.micro_batch} " in launcher.fields.arguments.value
    assert f"--seq-len {used.workload.seq_len}" in launcher.fields.arguments.value
    assert "The launch form is set to" in planner.handed["says"]
    if not wb.detect_host().gpus:
        assert "This host has no GPU" in planner.handed["says"]
        assert used.offer.provider in planner.handed["says"]
    launcher.fields.arguments.value = "--steps '3"
    planner._on_message(planner, {"type": "use"}, [])
    assert "The recipe's arguments are unchanged." in planner.handed["says"]
    assert "No closing quotation" in planner.handed["says"]
    launcher.close()
    planner.close()


def test_a_split_plan_is_handed_over_with_its_options(planner: Planner, tmp_path: Path) -> None:
    launcher = Launcher(store=tmp_path, cpu=True)
    planner.launcher = launcher
    planner.set(model="llama-2-13b", gpu=["a100-sxm-40"], providers=[])
    plans = planner.wait()
    until(lambda: planner.figure["exact"], "the plans")
    assert plans is not None
    split = {
        bool(accelerate_config.why_not(one.strategy, one.nodes, SPLITS)): at
        for at, one in enumerate(plans)
        if one.strategy.pp * one.strategy.tp > 1
    }
    assert split
    for refused, at in split.items():
        planner.pick(at)
        used = planner.use()
        assert ("The launch form is unchanged." in planner.handed["says"]) is refused
        said = launcher.picker.choice.strategy()
        same = (said.pp, said.tp, said.dp_shard, said.recompute, said.offload) == (
            *(used.strategy.pp, used.strategy.tp, used.strategy.dp_shard),
            *(used.strategy.recompute, used.strategy.offload),
        )
        assert same is not refused
    launcher.close()


def test_a_move_of_a_limit_is_one_small_quick_message(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = planner.controls["marks"]["budget_usd"]
    sent: list[dict] = []
    monkeypatch.setattr(planner, "_send", lambda message, buffers=None: sent.append(message))
    times = []
    for step, budget in enumerate(budgets):
        begun = time.thread_time()
        move(planner, f"page:{step}", budget_usd=budget)
        times.append(1000 * (time.thread_time() - begun))
    moves = [one for one in sent if "answered" in one.get("state", {})]
    assert len(moves) == len(budgets)
    largest = max(len(json.dumps(message)) for message in moves)
    median = sorted(times)[len(times) // 2]
    print(
        f"planner: {median:.1f} CPU ms a move, worst {max(times):.1f}, {largest / 1000:.1f} kB at most"
    )
    assert largest < 16_000
    assert not over_budget(median / 1000, 0.1)


def test_a_full_plan_set_stays_small(planner: Planner) -> None:
    names = ("figure", "points", "detail", "story", "rejected", "controls", "config")
    sizes = {name: len(json.dumps(getattr(planner, name))) for name in names}
    print(sizes)
    assert sum(sizes.values()) < 200_000
    per_plan = sizes["points"] / len(planner.points["rows"])
    assert per_plan < 700  # 250 plans stay below 200 kB


def test_rejections_are_grouped_and_complete(planner: Planner) -> None:
    move(planner, budget_usd=planner.controls["marks"]["budget_usd"][2])
    until(lambda: planner.story["moves"] == planner.figure["moves"], "the story follows")
    lost = {one["kind"]: one for one in planner.story["lost"]}
    groups = {one["kind"]: one for one in planner.rejected["groups"]}
    assert lost["over budget"]["count"] == len(planner.plans or ()) - len(planner.figure["kept"])
    assert sum(one["count"] for one in groups.values()) == planner.rejected["total"]
    assert planner.rejected["total"] + len(planner.plans or ()) == planner.rejected["combinations"]
    for group in (*lost.values(), *groups.values()):
        assert 0 < len(group["examples"]) <= group["count"]
        assert all(one["offer"] and one["reason"] for one in group["examples"])


@pytest.mark.slow
def test_refresh_asks_every_provider_and_searches_again(
    planner: Planner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through the price library: one provider in a local catalogue, all others out of reach."""
    publish(tmp_path / "new", "runpod", [item("runpod", "NVIDIA H100 80GB HBM3", 4.0, region="X")])
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", (tmp_path / "new").as_uri())
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setattr("workbench_widgets.planner.prices.SECONDS", 240.0)  # none is slow alone
    states: list[dict] = []
    planner.observe(lambda change: states.append(change["new"]), names="refreshed")
    before = planner.points["set"]
    planner._on_message(planner, {"type": "refresh"}, [])
    planner._on_message(planner, {"type": "refresh"}, [])  # a double click is one
    until(lambda: planner.refreshed.get("state") == "done", "the end", 120)
    rows = {row["provider"]: row for row in planner.refreshed["rows"]}
    assert set(rows) == set(live_prices.WITHOUT_KEY)
    assert [name for name, row in rows.items() if row["state"] == "good"] == ["runpod"]
    assert rows["runpod"]["says"] == "1 offer"
    assert all(row["says"] for row in rows.values())
    shares = [state["share"] for state in states]
    assert shares == sorted(shares)
    assert len(states) == len(rows) + 2  # begun, one answer after the other, done
    until(lambda: planner.points["set"] > before, "another search")
    best = planner.plan
    assert best is not None
    assert (best.provider, best.offer.usd_per_hour) == ("runpod", 4.0)


def test_nonsense_messages_are_left_alone(planner: Planner) -> None:
    before = planner.figure["kept"]
    for message in ("text", None, {"type": "pick"}, {"type": "pick", "at": "0"}, {"type": "what"}):
        planner._on_message(planner, message, [])
    for position in (-1, 10**9, 2.5, None):
        message = {"type": "pick", "at": position, "set": planner.points["set"]}
        planner._on_message(planner, message, [])
    move(planner, unknown=3, __class__="x")
    assert planner.figure["kept"] == before


def test_text_for_pages_without_javascript(planner: Planner) -> None:
    text = repr(planner)
    for words in (
        "meet the limits",
        "cost",
        "The runner-up",
        "Rejected layouts",
        "* no other plan",
    ):
        assert words in text


def test_the_workbench_has_one_that_sets_its_form(tmp_path: Path) -> None:
    bench = Workbench(store=tmp_path, open=None)
    (made,) = bench.open_tab("Plan")
    assert isinstance(made, Planner)
    assert made.launcher is bench.launcher
    bench.close()
    assert made.comm is None
    made.wait()
    until(lambda: not [one for one in threading.enumerate() if one.name == "workbench-plan"], "end")


def test_the_selected_plan_gets_advice(planner: Planner) -> None:
    plans = planner.plans
    assert plans is not None
    until(lambda: planner.advice.get("at") == planner.detail["at"], "advice follows the figure")
    rules = {one["rule"]: one for one in planner.advice["rules"]}
    assert {"more-gpus", "batch-limits", "instance-sanity"} <= rules.keys()
    planner.pick(len(plans) - 1)
    until(lambda: planner.advice["at"] == len(plans) - 1, "advice follows the pick")
    asked = [one for one in planner.advice["rules"] if one["holds"] is False]
    assert all(f"Advice: {one['verdict']}" in repr(planner) for one in asked)


def test_machines_one_has_are_planned_for() -> None:
    """Every layout on them, by time; limits of the market neither count nor are shown."""
    planner = Planner(**OPTIONS, gpu="h100", gpus=8, providers=FEW, spot=True, budget_usd=1.0)
    try:
        assert planner.wait()
        until(lambda: planner.story.get("explain"), "the story")
        cluster = wb.Cluster.rented("h100", 8)
        plans = plan_on(cluster, wb.Job.of(OPTIONS["model"], gpu="h100", seq_len=2048), tokens=5e9)
        assert [plan.layout for plan in planner.plans or ()] == [plan.layout for plan in plans]
        assert planner.figure["kept"] == list(range(len(plans)))
        assert planner.figure["headline"].endswith(
            f"own machines 8 x h100-sxm, {plans.plans[0].layout}."
        )
        assert planner.figure["why"]["0"].startswith("fastest; ")
        assert {"providers", "spot", "max_gpus"} <= set(planner.controls["hidden"])
        lacks = " ".join(planner.detail["launch"]["lacks"])
        assert "Open the workbench there." in lacks
        assert "Rent" not in lacks
        planner.pick(2)
        move(planner, usd_per_hour=20)
        until(lambda: planner.plan and planner.plan.usd, "a price")
        assert planner.plan is not None
        assert planner.plan.strategy == plans.plans[2].strategy, "the picked layout stays"
        move(planner, gpus=None)
        until(lambda: planner.figure.get("exact") and not planner.figure["own"], "the market")
        assert {plan.provider for plan in planner.plans or ()} <= {*FEW}
        assert planner.figure["kept"] == [], "the budget counts again"
        assert "nodes" in planner.controls["hidden"]
    finally:
        planner.close()


def test_this_host_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    host = wb.Cluster.rented("a100-sxm-80", 2, usd_per_hour=3.0)
    monkeypatch.setattr("workbench.cli.plan.detect_host", lambda: host)
    planner = Planner(**OPTIONS, here=True, gpu="h100")
    try:
        plans = planner.wait()
        assert plans is not None
        assert {plan.gpus for plan in plans} == {1, 2}
        assert {plan.gpu for plan in plans} == {"a100-sxm-80"}
        monkeypatch.setattr("workbench.cli.plan.detect_host", lambda: wb.Cluster(name="my laptop"))
        move(planner, here=False)
        move(planner, here=True)
        until(lambda: planner.problem, "the reason")
        assert "my laptop has no accelerator" in planner.problem["message"]
    finally:
        planner.close()


def test_a_plan_of_other_settings_is_not_handed_over(planner: Planner) -> None:
    """While the plans of another model are searched, the card of the one before is gone."""
    assert planner.detail["title"]
    held = threading.Event()
    planner._search.ask = lambda *_, **__: held.set()  # type: ignore[method-assign]
    move(planner, model="llama-3-70b")
    assert held.is_set()
    assert planner.detail == {}
    assert planner.plan is None
    with pytest.raises(wb.UsageError, match="are being searched"):
        planner.use()
    move(planner, model=OPTIONS["model"])
    assert planner.detail["title"]
    assert planner.plans is not None
    assert planner.plan == planner.plans.best


def test_an_answer_on_old_prices_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that began before the prices changed ends after it: the same question is new."""
    begun, go_on, searches, shown = (
        threading.Event(),
        threading.Event(),
        list[str](),
        list[Answer](),
    )

    def slow(question: Question) -> Answer:
        searches.append("old" if not go_on.is_set() else "new")
        begun.set()
        until(go_on.is_set, "the new prices")
        return Answer(question=question, plans=wb.plan(question.workload, tokens=1e9))

    monkeypatch.setattr(search_module, "_search", slow)
    question = PlannerChoice.from_options({**OPTIONS, "providers": FEW}).question()
    search = PlanSearch(shown.append)
    search.ask(question)
    until(begun.is_set, "the search")
    search.forget()
    search.ask(question)
    go_on.set()
    until(lambda: not search.busy, "the end")
    assert searches == ["old", "new"]
    assert len(shown) == 1
    assert search.remembered(question) is shown[0]

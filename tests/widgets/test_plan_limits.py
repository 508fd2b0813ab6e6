"""What the planner's limits keep of a search, beside what the engine itself finds with them."""

from __future__ import annotations

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets.planner.choice import FIELDS, PlannerChoice
from workbench_widgets.planner.fields import fields
from workbench_widgets.planner.view import keep, marks

from workbench.describe import prices
from workbench.planning import Limits, Plans, plan

OPTIONS = {"model": "llama-3.2-1b", "tokens": "5B"}
pytestmark = pytest.mark.usefixtures("embedded_prices")


@pytest.fixture(scope="module")
def found() -> Plans:
    """One search over the embedded table, shared by the tests that only filter."""
    choice = PlannerChoice.from_options(OPTIONS)
    asked = choice.question()
    return plan(
        asked.workload,
        tokens=asked.tokens,
        limits=asked.limits,
        offers=prices.offers(live=False, own=False),
    )


@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
def test_budget_and_deadline_filter_as_the_engine_does(found: Plans, share: float) -> None:
    usd = sorted(one.usd for one in found if one.usd)
    hours = sorted(one.hours for one in found)
    budget, deadline = usd[int(share * len(usd))], hours[int(0.7 * len(hours))]
    choice = PlannerChoice.from_options(
        {**OPTIONS, "budget_usd": budget, "deadline_hours": deadline}
    )
    kept = keep(found, choice)
    asked = choice.question()
    exact = plan(
        asked.workload,
        tokens=asked.tokens,
        limits=choice.limits(),
        offers=prices.offers(live=False, own=False),
    )
    mine = [found.plans[at] for at in kept.positions]
    # Behind the first the engine lists more: `found` hides what ten cheaper plans leave no hope.
    assert [one.where for one in mine[:1]] == [one.where for one in exact.plans[:1]]
    assert [(found.plans[at].usd, found.plans[at].hours) for at in kept.front] == [
        (exact.plans[at].usd, exact.plans[at].hours) for at in exact.pareto
    ]
    assert sum(kept.lost.values()) + len(kept.positions) == len(found)


def test_every_limit_takes_its_plans_away(found: Plans) -> None:
    most = sorted(one.gpus for one in found)[len(found) // 2]
    provider, gpu = found.plans[0].provider, found.plans[0].gpu
    for limit, holds in (
        ({"max_gpus": most}, lambda one: one.gpus <= most),
        ({"providers": provider}, lambda one: one.provider == provider),
        ({"gpu": [gpu]}, lambda one: one.gpu == gpu),
    ):
        kept = keep(found, PlannerChoice.from_options({**OPTIONS, **limit}))
        assert [found.plans[at] for at in kept.positions] == [one for one in found if holds(one)]
        assert set(kept.lost) <= {"too many GPUs", "other provider", "other GPU"}


def test_slider_marks_let_one_more_plan_in(found: Plans) -> None:
    found_marks = marks(found)
    for name, values in found_marks.items():
        assert values == sorted(set(values))
        least = PlannerChoice.from_options({**OPTIONS, name: values[0]})
        most = PlannerChoice.from_options({**OPTIONS, name: values[-1]})
        assert keep(found, least).positions
        assert len(keep(found, most).positions) == len(found)


def test_every_control_is_an_option() -> None:
    shown = [field["name"] for group in fields() for field in group["fields"]]
    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(FIELDS)


def test_limits_of_the_engine_and_of_the_face_agree() -> None:
    given = {"budget_usd": 10.0, "deadline_hours": 5.0, "max_gpus": 4, "spot": True}
    choice = PlannerChoice.from_options({**OPTIONS, **given, "providers": "runpod", "gpu": "h100"})
    assert choice.limits() == Limits(**given, providers=("runpod",), gpus=("h100-sxm",))
    assert choice.changed({"providers": ["Vast.ai"]})["providers"] == ("vastai",)

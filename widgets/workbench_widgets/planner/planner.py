"""``Planner``: which machines and which layout finish a run, for how much, how soon, and why."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import traitlets

import workbench as wb
from workbench.cli.plan_values import Question
from workbench.describe import prices
from workbench.planning import Plan, Plans
from workbench.planning.advice import RunFacts
from workbench.planning.plans import OWN
from workbench.units import format_count
from workbench_widgets.calculator import Calculator
from workbench_widgets.debounce import Debouncer
from workbench_widgets.launch.launcher import Launcher
from workbench_widgets.planner.choice import PlannerChoice
from workbench_widgets.planner.detail import detail
from workbench_widgets.planner.fields import fields
from workbench_widgets.planner.handover import hand_over
from workbench_widgets.planner.prices import PriceRefresh
from workbench_widgets.planner.search import Answer, PlanSearch
from workbench_widgets.planner.story import rejected, story
from workbench_widgets.planner.view import (
    PlansWithinLimits,
    as_text,
    keep,
    marks,
    points,
    sooner_text,
    view,
)
from workbench_widgets.strategy.advice import advice, advice_lines

STORY_SECONDS = 0.12  # without a move; then explanation, sensitivity and rejections follow
SEARCH_SECONDS = 0.4  # without a move; then a search starts
_NONE = {"kept": [], "front": [], "why": {}, "lost": {}, "assumptions": [], "sources": []}


class Planner(Calculator):
    """Budget and deadline sliders over every plan; the best ones, what else there is, why not.

    Args:
        launcher: The launch form that "Use this plan" sets; None = there is none.
        **options: A control's first value: ``model``, ``tokens`` (``300e9`` or ``"300B"``),
            ``budget_usd``, ``deadline_hours``, ``max_gpus``, ``spot``, ``providers`` and ``gpu`` (a
            name or several, none = all), ``here`` (plan for this host), ``gpus``, ``nodes``,
            ``network`` and ``usd_per_hour`` (of machines that you have), ``global_batch``,
            ``seq_len``, ``precision``, ``optimizer``, ``lora_rank``, ``lora_targets``,
            ``quantization``, ``attention``, ``loss``, ``kernels``.

    ``plan`` is the selected plan with its ``workload``, ``strategy`` and ``cluster``; ``plans`` all
    of the last search. The search runs in a thread: `wait` returns when it is done.

    Raises:
        TypeError: an unknown option.
        UsageError: a value that cannot be.
    """

    points = traitlets.Dict().tag(sync=True)
    detail = traitlets.Dict().tag(sync=True)
    story = traitlets.Dict().tag(sync=True)
    rejected = traitlets.Dict().tag(sync=True)
    refreshed = traitlets.Dict().tag(sync=True)
    handed = traitlets.Dict().tag(sync=True)
    advice = traitlets.Dict().tag(sync=True)
    _answer: Answer | None = None
    _picked: Plan | None = None
    _marks: dict[str, list[float]] | None = None
    _sets = 0
    _is_of_another_run = False
    """Whether the last answer is on other settings than the controls show: no plan of it counts."""

    def __init__(self, *, launcher: Launcher | None = None, **options: Any) -> None:
        self.launcher = launcher
        self._search = PlanSearch(self._on_answer)
        self._later = Debouncer("workbench-story")
        self._prices = PriceRefresh(self._show_prices, self._new_prices)
        choice = PlannerChoice.from_options(options)
        choice.limits()
        super().__init__(choice, face="planner.js", groups=fields())
        self._search.ask(choice.question())

    @property
    def plans(self) -> Plans | None:
        """Every plan of the last search, budget and deadline aside; None before the first."""
        return self._answer.plans if self._answer else None

    @property
    def plan(self) -> Plan | None:
        """The selected plan: the one that was picked, else the cheapest within the limits."""
        plans = self.plans
        if plans is None or self._is_of_another_run:
            return None
        if self._picked is not None:
            return self._picked
        best = keep(plans, self.choice).best
        return None if best is None else plans.plans[best]

    def wait(self, seconds: float = 60.0) -> Plans | None:
        """Every plan, once no search is under way; whatever is known after so many seconds."""
        deadline = time.monotonic() + seconds
        while self._search.busy and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.plans

    def pick(self, position: int) -> None:
        """Select a plan by its position in `plans`.

        Raises:
            UsageError: there is no such plan.
        """
        plans = self.plans
        if plans is None or not 0 <= position < len(plans):
            raise wb.UsageError(
                f"Plan {position} does not exist; number of plans: {len(plans or ())}."
            )
        with self._changing, self.hold_sync():
            self._picked = plans.plans[position]
            self._show_detail(plans, position)
        self._later.after(0.0, self._update_story)

    def use(self) -> Plan:
        """Hand the selected plan to the launch form; what was done stands in `handed`.

        Raises:
            UsageError: no plan is selected.
        """
        plan = self.plan
        if plan is None and self._is_of_another_run:
            raise wb.UsageError("The plans of these settings are being searched. Wait for them.")
        if plan is None:
            raise wb.UsageError("No plan meets the limits. Raise the budget or the deadline.")
        self.handed = {"says": hand_over(plan, self.launcher), "title": plan.where}
        return plan

    def _controls(self) -> dict[str, Any]:
        return {**super()._controls(), "marks": self._marks or {}}

    def _figure(self) -> dict[str, Any]:
        """The known plans within the current limits; a search follows if they are too few."""
        question = self.choice.question()
        remembered = self._search.remembered(question)
        if remembered is not None and remembered is not self._answer:
            self._take(remembered)
        answer, plans = self._answer, self.plans
        state = {"set": self._sets, "moves": self._moves}
        self._is_of_another_run = answer is not None and not _comparable(answer, question)
        if answer is None or plans is None or self._is_of_another_run:
            self.choice.limits()
            self.detail = {}
            over = "your machines" if self.choice.is_own else f"{len(prices.offers()):,} offers"
            headline = f"Searching plans over {over} …"
            return {**_NONE, **state, "headline": headline, "setting": "", "exact": False}
        matches = keep(plans, self.choice)
        self._select(plans, matches)
        exact = answer.question == question
        return {
            **view(plans, self.choice, matches),
            **state,
            "setting": self._setting(answer, plans, matches),
            "exact": exact,
        }

    def _setting(self, answer: Answer, plans: Plans, matches: PlansWithinLimits) -> str:
        model = self.choice.model().name
        tokens = format_count(answer.question.tokens)
        met = f"{len(matches.positions)} of {len(plans)} plans meet the limits; "
        return (
            f"{sooner_text(plans, matches)}{model}, {tokens} tokens. "
            f"{'' if self.choice.is_own else met}{plans.combinations:,} "
            f"combinations of layout and offer searched in {answer.seconds:.1f} s."
        )

    def _take(self, answer: Answer) -> None:
        """A search's answer becomes what is filtered from now on."""
        assert answer.plans is not None
        self._answer = answer
        self._sets += 1
        self._picked = self._again(answer.plans)
        self._marks = marks(answer.plans)
        self.points = {"set": self._sets, "rows": points(answer.plans)}
        self.controls = self._controls()

    def _again(self, plans: Plans) -> Plan | None:
        """The picked plan's machines in another search's answer."""
        before = self._picked
        return before and next((plan for plan in plans if _same(plan, before)), None)

    def _select(self, plans: Plans, matches: PlansWithinLimits) -> None:
        """The picked plan as long as it keeps the limits, else the cheapest that does."""
        picked = None if self._picked is None else plans.plans.index(self._picked)
        if picked not in matches.positions:
            self._picked, picked = None, matches.best
        self._show_detail(plans, picked)

    def _show_detail(self, plans: Plans, position: int | None) -> None:
        if position is None:
            self.detail = {}
        elif (self.detail.get("set"), self.detail.get("at")) != (self._sets, position):
            own = detail(plans.plans[position])
            self.detail = {**own, "set": self._sets, "at": position}

    def _moved(self, *, at_once: bool = False) -> None:
        """The story follows, and a search where the question is another one."""
        try:
            question = self.choice.question()
        except wb.UsageError:
            return self._search.drop()
        if self._answer is not None and self._search.remembered(question) is self._answer:
            self._search.drop()
        else:
            self._search.ask(question, after=0.0 if at_once else SEARCH_SECONDS)
        return self._later.after(0.0 if at_once else STORY_SECONDS, self._update_story)

    def _on_answer(self, answer: Answer) -> None:
        """A search is done: in its thread."""
        if self.comm is None:
            return
        with self._changing, self.hold_sync():
            if answer.plans is None:
                if self._asks(answer.question):
                    self.problem = {"field": "", "message": self.with_labels(answer.problem)}
                return
            if answer is not self._answer:
                self._take(answer)
            try:
                self.figure, self.problem = self._figure(), {}
            except wb.UsageError:
                return  # the control that was moved meanwhile says it
        self._update_story()

    def _asks(self, question: Question) -> bool:
        """Whether the controls, as they stand, ask this."""
        try:
            return self.choice.question() == question
        except wb.UsageError:  # the control that was moved meanwhile says it
            return False

    def _update_story(self) -> None:
        with self._changing:
            moves, plans, choice, number = self._moves, self.plans, self.choice, self._sets
            plan, answer = self.plan, self._answer
        if plans is None or self.comm is None:
            return
        try:
            document = story(plans, choice, keep(plans, choice))
        except wb.UsageError:
            return
        rules = self._advice(plan, answer)
        against = None if self.rejected.get("set") == number else rejected(plans)
        with self._changing, self.hold_sync():
            if (moves, number) == (self._moves, self._sets):
                self.story = {**document, "set": number, "moves": moves}
                self.advice = {"rules": rules, "set": number, "at": self.detail.get("at")}
                self.rejected = {**against, "set": number} if against else self.rejected

    @staticmethod
    def _advice(plan: Plan | None, answer: Answer | None) -> list[dict[str, Any]]:
        """The rules of thumb on the selected plan."""
        if plan is None or answer is None:
            return []
        facts = RunFacts(tokens=answer.question.tokens, offer=plan.offer)
        return advice(plan.workload, plan.strategy, plan.cluster, facts)

    def _show_prices(self, state: dict[str, Any]) -> None:
        with self._changing:
            if self.comm is not None:
                self.refreshed = state

    def _new_prices(self) -> None:
        self._search.forget()
        if self.comm is not None:
            self._moved(at_once=True)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        if kind == "pick":
            position = message.get("at")
            is_shown = message.get("set") == self._sets
            if is_shown and isinstance(position, int) and 0 <= position < len(self.plans or ()):
                self.pick(position)
        elif kind == "use" and self.plan is not None:
            self.use()
        elif kind == "refresh":
            self._prices.start()
        else:
            super()._receive(kind, message)

    def _text(self) -> str:
        text = as_text(self.figure, self.points, self.story, self.rejected)
        return "\n".join([text, *advice_lines(self.advice.get("rules", []))])

    def close(self) -> None:
        """End the widget; a search that is under way is not told any more."""
        self._search.close()
        self._later.cancel()
        super().close()


def _comparable(answer: Answer, question: Any) -> bool:
    """Whether filtering shows part of the truth: the same run under other limits."""
    return replace(answer.question, limits=question.limits) == question


def _same(plan: Plan, other: Plan) -> bool:
    """Whether they are on the same machines; of those one has, in the same layout too."""
    if plan.provider == OWN:
        return (plan.gpu, plan.gpus, plan.strategy) == (other.gpu, other.gpus, other.strategy)
    return (plan.offer, plan.nodes, plan.spot) == (other.offer, other.nodes, other.spot)

"""The planner's searches: in a thread of their own, the latest question wins, answers are kept."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from workbench.cli.plan import find_plans
from workbench.cli.plan_values import Question
from workbench.errors import sentence
from workbench.planning import Plans

_ANSWERS_MAX = 6  # answers; a planner goes back and forth between a few settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a search found, or the sentence that says why it could not search."""

    question: Question
    """What was asked."""
    plans: Plans | None = None
    """What was found."""
    problem: str = ""
    """Why nothing was."""
    seconds: float = 0.0
    """How long it took."""


class PlanSearch:
    """Asks the engine; ``on_answer`` gets each answer that is still current, in the thread."""

    def __init__(self, on_answer: Callable[[Answer], None]) -> None:
        self._on_answer = on_answer
        self._pending: tuple[Question, float] | None = None
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._answers: OrderedDict[Question, Answer] = OrderedDict()
        self._closed = False
        self._prices = 0  # how often they have changed

    def remembered(self, question: Question) -> Answer | None:
        """An answer that is there already."""
        return self._answers.get(question)

    @property
    def busy(self) -> bool:
        """Whether a question waits or is being answered."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def ask(self, question: Question, *, after: float = 0.0) -> None:
        """Search after so many seconds without another question."""
        with self._condition:
            self._pending = (question, time.monotonic() + after)
            if not self.busy:
                self._thread = threading.Thread(
                    target=self._run, name="workbench-plan", daemon=True
                )
                self._thread.start()
            self._condition.notify()

    def drop(self) -> None:
        """Nothing is wanted any more."""
        with self._condition:
            self._pending = None
            self._condition.notify()

    def forget(self) -> None:
        """Prices have changed: no answer holds, nor that of a search under way. Ask again."""
        with self._condition:
            self._prices += 1
            self._answers.clear()

    def close(self) -> None:
        """End; a search that is under way is not told any more."""
        self._closed = True
        self.drop()

    def _next(self) -> Question | None:
        """The latest question once it has settled; None = nothing is wanted: the thread ends."""
        with self._condition:
            while self._pending is not None:
                question, due = self._pending
                left = due - time.monotonic()
                if left <= 0:
                    self._pending = None
                    return question
                self._condition.wait(left)
            self._thread = None
            return None

    def _run(self) -> None:
        while (question := self._next()) is not None:
            prices = self._prices
            answer = self._answers.get(question) or _search(question)
            with self._condition:
                is_old = prices != self._prices
                if answer.plans is not None and not is_old:
                    self._answers[question] = answer
                    while len(self._answers) > _ANSWERS_MAX:
                        self._answers.popitem(last=False)
            if self._pending is None and not self._closed and not is_old:
                self._on_answer(answer)


def _search(question: Question) -> Answer:
    begun = time.perf_counter()
    try:
        plans = find_plans(question)
    except Exception as error:  # noqa: BLE001 - whatever it is, the page has to say it
        return Answer(question=question, problem=sentence(error))
    return Answer(question=question, plans=plans, seconds=time.perf_counter() - begun)

"""``CostCalculator``: hours and dollars of a finished run by term, while the controls move."""

from __future__ import annotations

from typing import Any

from workbench.estimate.cost import RunCost
from workbench_widgets.calculator import Calculator
from workbench_widgets.cost.choice import CostChoice
from workbench_widgets.cost.fields import fields
from workbench_widgets.cost.figure import as_text, figure


class CostCalculator(Calculator):
    """Controls for job, machines and terms; the bill, the step's time, spot against on demand.

    Args:
        **options: A control's first value: those of ``MemoryCalculator`` (``model``, ``gpu``,
            ``gpus``, ``strategy``, ``micro_batch`` …) and those of ``workbench cost``
            (``tokens``: ``300e9`` or ``"300B"``, ``provider``, ``usd_per_hour``: own price of a
            node, a range too, ``"18-24"``; ``spot`` …).

    ``cost`` is the ``RunCost`` of what the controls say, ``choice`` all their values.

    Raises:
        TypeError: an unknown option.
        UsageError: a value that cannot be.
    """

    def __init__(self, **options: Any) -> None:
        choice = CostChoice.from_options(options)
        super().__init__(choice, face="cost_calculator.js", groups=fields())

    @property
    def cost(self) -> RunCost:
        """The bill of what the controls say.

        Raises:
            UsageError: the controls say something that cannot be.
        """
        return self.choice.costed().cost

    def _figure(self) -> dict[str, Any]:
        return figure(self.choice)

    def _text(self) -> str:
        return as_text(self.figure)

"""What the predicted choice of a layout loses against the fastest measured one.

    python -m tests.accuracy.regret [--groups]

Published runs of one model on as many GPUs of one kind, at one length and precision, by one trainer,
that differ in their layout: the layout with the highest predicted rate is chosen. Its regret is what
it lacks of the highest measured rate, 1 - measured(chosen) / measured(best).
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.accuracy.rows import NotExpressedError, Row, trainer_of
from tests.accuracy.score import read
from tests.accuracy.score_speed import scorable
from tests.accuracy.speed_rows import speed_of
from workbench.errors import WorkbenchError
from workbench.estimate.step_time import step_time

ROWS = Path(__file__).parent / "data" / "throughput.csv"
SAME = ("model", "gpu", "n_gpus", "seq_len", "precision_class", "task", "lora_rank")
LARGE = 128
"""GPUs from which on a group counts as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One measured layout."""

    name: str
    """Strategy, micro-batch and what is recomputed."""
    measured: float
    """Tokens per second and GPU."""
    predicted: float
    """The same, predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layouts of one job on the same GPUs."""

    title: str
    """Model, GPUs, length, precision, trainer."""
    gpus: int
    """How many."""
    layouts: tuple[Layout, ...]
    """At least two different ones."""

    @property
    def chosen(self) -> Layout:
        """The one predicted to be the fastest."""
        return max(self.layouts, key=lambda layout: layout.predicted)

    @property
    def best(self) -> Layout:
        """The one measured to be the fastest."""
        return max(self.layouts, key=lambda layout: layout.measured)

    @property
    def regret(self) -> float:
        """Share of the best measured rate that the chosen one lacks."""
        return 1 - self.chosen.measured / self.best.measured


def groups(rows: Sequence[Row]) -> list[Group]:
    """Every group of at least two different layouts."""
    layouts: dict[tuple[str, ...], dict[str, list[Layout]]] = defaultdict(lambda: defaultdict(list))
    for row in scorable(list(rows)):
        try:
            speed = speed_of(row)
            case = speed.case
            step = step_time(case.workload, case.strategy, case.cluster)
        except (NotExpressedError, WorkbenchError):
            continue
        work, strategy = case.workload, case.strategy
        trainer = (trainer_of(row) or "any").partition("@")[0]
        parts = ",".join(strategy.recompute_parts) if strategy.recompute == "selective" else ""
        name = f"{strategy.name} mb{work.micro_batch} {strategy.recompute} {parts}".strip()
        layouts[(*(row[column] for column in SAME), trainer)][name].append(
            Layout(
                name=name,
                measured=speed.tokens_per_second_per_gpu,
                predicted=step.tokens_per_second_per_gpu,
            )
        )
    return [
        Group(
            title=" ".join(word for word in key if word),
            gpus=int(float(key[2])),
            layouts=tuple(max(same, key=lambda one: one.measured) for same in by_name.values()),
        )
        for key, by_name in layouts.items()
        if len(by_name) > 1
    ]


def median_regret(known: Iterable[Group]) -> float | None:
    """The groups' median; None without any."""
    values = [group.regret for group in known]
    return statistics.median(values) if values else None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, default=ROWS.parent)
    parser.add_argument("--groups", action="store_true", help="every group with its layouts")
    options = parser.parse_args(arguments)
    known = groups(read(options.truth / ROWS.name))
    for group in sorted(known, key=lambda group: -group.regret) if options.groups else ():
        print(f"{group.regret:6.1%}  {group.title}")
        for layout in sorted(group.layouts, key=lambda layout: -layout.measured):
            mark = "chosen" if layout is group.chosen else ""
            print(f"    {layout.measured:9.0f} {layout.predicted:9.0f} {layout.name:<40} {mark}")
    small = [group for group in known if group.gpus < LARGE]
    large = [group for group in known if group.gpus >= LARGE]
    for label, some in ((f"below {LARGE} GPUs", small), (f"from {LARGE} GPUs", large)):
        regret = median_regret(some)
        text = "n/a" if regret is None else f"{regret:.1%}"
        worst = max((group.regret for group in some), default=0.0)
        print(f"regret {label}: {len(some)} groups, median {text}, worst {worst:.1%}")


if __name__ == "__main__":
    main()

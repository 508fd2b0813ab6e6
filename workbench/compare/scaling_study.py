"""The scaling study: the same work on 1, 2, 4 … ranks, what each loses to what, and what follows.

Profile on a small allocation before you rent the cluster: what was measured here is fitted
(`studies.fit`) and goes on to more ranks, with a range. What a rented GPU would do is another
question, answered by the catalog's estimate of the same work (`rented`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import Any

from workbench.compare.studies.scaling_curves import Curve, CurvePoint, curve_of
from workbench.compare.studies.sizes import MODES, Sizes, trials, work_of
from workbench.compare.studies.step_split import Host, Measured
from workbench.compare.studies.study import Bench, OnProgress, Study
from workbench.compare.studies.trial import TrialResult
from workbench.describe.detection import detect_host
from workbench.describe.job import Job
from workbench.errors import UsageError
from workbench.store.runs import Store
from workbench.units import format_seconds

_MOST_EFFICIENT = 1.15  # caches and noise give a little; more is a base that was held up
FURTHEST = 64
"""Times the largest measured size, beyond which a range would say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingStudy:
    """What a scaling study found; ``scale()`` makes it."""

    study: str
    """Id: the file in ``<store>/studies``."""
    target: str
    """Script or recipe."""
    device: str
    """cpu or cuda."""
    cores: int | None
    """That the CPU ranks share; None on GPUs."""
    curves: tuple[Curve, ...]
    """One a mode; a mode with no size that ran has none."""
    results: tuple[TrialResult, ...]
    """Every trial, those that failed too."""
    notes: tuple[str, ...]
    """What a reader of the figures has to know."""

    def curve(self, mode: str) -> Curve:
        """The curve of that mode.

        Raises:
            UsageError: it was not measured.
        """
        for one in self.curves:
            if one.mode == mode:
                return one
        raise UsageError(f"No size of mode {mode!r} was measured in {self.study}.")

    def document(self) -> dict[str, Any]:
        """Plain JSON form: what ``workbench scale --json`` prints."""
        runs = {one.label: one.run for one in self.results}
        return {
            "study": self.study,
            "target": self.target,
            "device": self.device,
            "cores": self.cores,
            "curves": [
                {
                    "mode": curve.mode,
                    "points": [
                        {**asdict(one), "run": runs.get(f"{curve.mode} {one.ranks}")}
                        for one in curve.points
                    ],
                }
                for curve in self.curves
            ],
            "failed": [
                {"label": one.label, "run": one.run, "outcome": one.outcome, "why": one.problem}
                for one in self.results
                if not one.good
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines: list[str] = []
        for curve in self.curves:
            lines.append(f"{curve.mode} scaling of {self.target}")
            lines += [_line(point) for point in curve.points]
        lines += [
            f"{one.label}: {one.outcome}, {one.problem}" for one in self.results if not one.good
        ]
        return "\n".join([*lines, *self.notes])


def _line(point: CurvePoint) -> str:
    ends = f"{format_seconds(point.low_seconds)} to {format_seconds(point.high_seconds)}"
    kind = "measured" if point.measured else "predicted"
    return (
        f"{point.ranks:>6} ranks  {format_seconds(point.step_seconds):>9}  ({ends}, {kind})"
        f"  efficiency {point.efficiency:.0%}"
    )


def scale(  # noqa: PLR0913 - every argument by keyword
    target: str | os.PathLike[str] | Job,
    arguments: Sequence[str] = (),
    *,
    sizes: Sequence[int] = (1, 2),
    mode: str = "weak",
    steps: int = 30,
    strategy: str | None = None,
    to: Sequence[int] = (),
    global_batch: int | None = None,
    cpu: bool = False,
    store: str | os.PathLike[str] | None = None,
    resume: str | None = None,
    on_progress: OnProgress | None = None,
    stop: Event | None = None,
) -> ScalingStudy:
    """Run the same work on several numbers of ranks of this host, and fit what scaling costs.

    Args:
        target: A recipe's name, a script, or a `Job` that one of the recipes trains.
        arguments: Its arguments; see `Sizes.arguments` for the words of scripts.
        sizes: Numbers of ranks, rising.
        mode: weak, strong or both.
        steps: Of each run; the first ones are not measured.
        strategy: Of the sizes above one rank; None = the job's, else ddp.
        to: Numbers of ranks to extrapolate to.
        global_batch: For strong scaling of a script.
        cpu: Use CPU ranks even if there are GPUs.
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        resume: A study to go on with: its finished trials are not repeated.
        on_progress: Told how far it is.
        stop: Set it to end the study.

    Raises:
        UsageError: a size that cannot run here, a batch that cannot be divided.
        StudyStoppedError: `stop` was set.
    """
    modes = MODES if mode == "both" else (mode,)
    first = Sizes(
        **work_of(target, arguments, strategy, cpu=cpu),
        sizes=tuple(sizes),
        mode=modes[0],
        steps=steps,
        global_batch=global_batch,
    )
    _check_reach(sizes, to)
    todo = trials([replace(first, mode=each) for each in modes])
    bench = Bench(target=first.target, store=Store(store), cpu=first.cpu, resume=resume)
    bench = replace(bench, on_progress=on_progress, stop=stop)
    study = Study(bench, "scale", of=len(todo))
    done = [(each, study.run(trial)) for each, trial in todo]
    conclusion = conclude(study.id, first.target, done, to, cpu=first.cpu)
    study.save(found=conclusion.document())
    return conclusion


def _check_reach(sizes: Sequence[int], to: Sequence[int]) -> None:
    furthest = FURTHEST * max(sizes, default=1)
    wrong = [size for size in to if not 1 <= size <= furthest]
    if wrong:
        raise UsageError(
            f"{wrong[0]} ranks is too far from the {max(sizes, default=1)} measured. Extrapolate "
            f"to {furthest} at most, or measure more ranks."
        )


def conclude(
    study: str,
    target: str,
    done: Sequence[tuple[str, TrialResult]],
    to: Sequence[int],
    *,
    cpu: bool = False,
) -> ScalingStudy:
    """The curves of finished trials, measured and beyond."""
    here = detect_host()
    device = "cpu" if cpu or not here.gpus else "cuda"
    host = Host(cores=(here.cpu_cores or 1) if device == "cpu" else None)
    by_mode = {
        mode: [
            Measured(ranks=one.processes, splits=one.splits)
            for each, one in done
            if each == mode and one.good
        ]
        for mode in MODES
    }
    curves = [curve_of(mode, by_mode, host, to) for mode in MODES if by_mode[mode]]
    return ScalingStudy(
        study=study,
        target=target,
        device=device,
        cores=host.cores,
        curves=tuple(curves),
        results=tuple(one for _, one in done),
        notes=tuple(notes_on(host, curves, to)),
    )


def notes_on(host: Host, curves: Sequence[Curve], to: Sequence[int]) -> list[str]:
    """What to know of these curves, one sentence each."""
    notes: list[str] = []
    most = max((point.ranks for curve in curves for point in curve.points), default=1)
    if host.cores is not None and most > 1:
        notes.append(
            f"CPU ranks share {host.cores} cores: more ranks mean fewer threads per rank, and "
            "above one rank per core they take turns. Ranks with a GPU each are not "
            "affected."
        )
    if host.cores is None:
        notes.append(
            "On GPUs the exchange is the step time beyond that of the smallest size: Python runs "
            "ahead of the GPU, so the parts of a step cannot be measured separately."
        )
    short = [curve.mode for curve in curves if sum(one.measured for one in curve.points) < 2]
    odd = [
        one.ranks
        for curve in curves
        for one in curve.points
        if one.measured and one.efficiency > _MOST_EFFICIENT
    ]
    if odd:
        notes.append(
            f"More than 100 % at {', '.join(map(str, dict.fromkeys(odd)))} ranks means that other "
            "work on this host slowed the smallest size down, so it is not a valid baseline. "
            "Repeat the study on an idle host, without --resume."
        )
    if to and short:
        notes.append(f"One {short[0]} size alone cannot be extrapolated: measure two.")
    return notes

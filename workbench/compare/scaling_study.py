"""The scaling study: the same work on 1, 2, 4 … ranks, what each loses to what, and what follows.

Profile on a small allocation before you rent the cluster: what was measured here is fitted
(`studies.fit`) and goes on to more ranks, with a range. What a rented GPU would do is another
question, answered by the catalog's estimate of the same work (`rented`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any

from workbench.compare.studies.bench import LAUNCHED, Bench, OnProgress
from workbench.compare.studies.scaling_curves import Curve, CurvePoint, curve_of
from workbench.compare.studies.sizes import MODES, Sizes, trials
from workbench.compare.studies.step_split import Host, MeasuredSize
from workbench.compare.studies.study import Study
from workbench.compare.studies.trial import TrialResult
from workbench.describe.checks import require_instance
from workbench.describe.detection import detect_host
from workbench.describe.job import Job
from workbench.describe.option import declared
from workbench.describe.other_names import unknown_option
from workbench.errors import UsageError
from workbench.launching.prepare.options import LaunchOptions
from workbench.units import format_between, format_seconds

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
        for curve in self.curves:
            if curve.mode == mode:
                return curve
        raise UsageError(f"No size of mode {mode!r} was measured in {self.study}.")

    def document(self) -> dict[str, Any]:
        """Plain JSON form: what ``workbench scale --json`` prints."""
        runs = {result.label: result.run for result in self.results}
        return {
            "study": self.study,
            "target": self.target,
            "device": self.device,
            "cores": self.cores,
            "curves": [
                {
                    "mode": curve.mode,
                    "points": [
                        {**asdict(point), "run": runs.get(f"{curve.mode} {point.ranks}")}
                        for point in curve.points
                    ],
                }
                for curve in self.curves
            ],
            "failed": [
                {
                    "label": result.label,
                    "run": result.run,
                    "outcome": result.outcome,
                    "why": result.problem,
                }
                for result in self.results
                if not result.good
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines: list[str] = []
        for curve in self.curves:
            lines.append(f"{curve.mode} scaling of {self.target}")
            lines += [_line(point) for point in curve.points]
        lines += [
            f"{result.label}: {result.outcome}, {result.problem}"
            for result in self.results
            if not result.good
        ]
        return "\n".join([*lines, *self.notes])


def _line(point: CurvePoint) -> str:
    ends = format_between(point.low_seconds, point.high_seconds)
    kind = "measured" if point.measured else "predicted"
    return (
        f"{point.ranks:>6} ranks  {format_seconds(point.step_seconds):>9}  ({ends}, {kind})"
        f"  efficiency {point.efficiency:.0%}"
    )


def scale(
    target: str | os.PathLike[str] | Job,
    arguments: Sequence[str] = (),
    *,
    resume: str | None = None,
    on_progress: OnProgress | None = None,
    stop: Event | None = None,
    **options: Any,
) -> ScalingStudy:
    """Run the same work on several numbers of ranks of this host, and fit what scaling costs.

    Args:
        target: A recipe's name, a script, or a `Job` that one of the recipes trains.
        arguments: Its arguments. A script's may hold {ranks} and, for strong scaling,
            {micro_batch}.
        resume: A study to continue with: its finished trials are not repeated.
        on_progress: Told how far it is.
        stop: Set it to end the study.
        options: Those of `Sizes` (sizes, mode, steps, to, global_batch), and of each launch
            (strategy, options, wrap, cpu, warm, environment, store).

    Raises:
        UsageError: a size that cannot run here, a batch that cannot be divided.
        StudyStoppedError: `stop` was set.
    """
    example = "a recipe's name, the path of a script or a Job, as 'gpt'"
    require_instance("target", (str, os.PathLike, Job), target, example)
    own, launch = declared(Sizes), dict[str, Any]()
    sizes: dict[str, Any] = {}
    for name, value in options.items():
        if name in own:
            sizes[name] = own[name].read(value)
        elif name in LAUNCHED:
            launch[name] = value
        else:
            raise unknown_option("option of a scaling study", name, (*own, *LAUNCHED))
    controls = {"resume": resume, "on_progress": on_progress, "stop": stop}
    return measure(Bench.of(target, arguments, LaunchOptions(**launch), **controls), Sizes(**sizes))


def measure(bench: Bench, sizes: Sizes) -> ScalingStudy:
    """`scale` with its options as two values."""
    _check_reach(sizes.sizes, sizes.to)
    todo = trials(bench, sizes)
    study = Study(bench, "scale", of=len(todo))
    done = [(mode, study.run(trial)) for mode, trial in todo]
    conclusion = conclude(study.id, bench.target, done, sizes.to, cpu=bench.launch.cpu)
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
    fewer = [size for size in to if size < max(sizes, default=1) and size not in sizes]
    if fewer:
        every = ",".join(map(str, sorted({*sizes, *fewer})))
        raise UsageError(
            f"{fewer[0]} ranks are fewer than the {max(sizes)} that will be measured: only more "
            f"ranks are extrapolated to. Measure them too, with sizes {every}."
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
            MeasuredSize(ranks=result.processes, splits=result.splits)
            for each, result in done
            if each == mode and result.good
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
        results=tuple(result for _, result in done),
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
    short = [curve.mode for curve in curves if sum(point.measured for point in curve.points) < 2]
    odd = [
        point.ranks
        for curve in curves
        for point in curve.points
        if point.measured and point.efficiency > _MOST_EFFICIENT
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

"""Functions of a job: they take a `Job`, a model's name with options, or the job's three parts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from workbench.describe.hardware import Cluster
from workbench.describe.job import Job
from workbench.describe.model import Model
from workbench.describe.strategy import Strategy
from workbench.describe.workload import Workload
from workbench.errors import UsageError

_P = ParamSpec("_P")
_R_co = TypeVar("_R_co", covariant=True)
_R = TypeVar("_R")


class JobFunction(Protocol[_P, _R_co]):
    """A function of a job, of a model and options, or of workload, strategy and cluster."""

    @overload
    def __call__(self, job: Job, /, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...

    @overload
    def __call__(self, model: str | Path | Model, /, **options: Any) -> _R_co: ...

    @overload
    def __call__(
        self,
        workload: Workload,
        strategy: Strategy,
        cluster: Cluster | str = ...,
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R_co: ...


def takes_job(
    function: Callable[Concatenate[Workload, Strategy, Any, _P], _R],
) -> JobFunction[_P, _R]:
    """Let a function of workload, strategy and cluster take a `Job` in their place.

    Or a model's name and the options of `Job.of`: ``step_time("gpt2", gpu="h100", gpus=8)``. One
    that has a parameter `is_named` receives whether the job's trainer was named.
    """
    own = inspect.signature(function)
    _, strategy, cluster, *more = own.parameters.values()
    own_names = {parameter.name for parameter in more}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> _R:
        args = args or _named_first(kwargs)
        if args and isinstance(args[0], Workload):
            parts = {"strategy": strategy.name, "cluster": cluster.name}
            given = {part: kwargs.pop(name) for part, name in parts.items() if name in kwargs}
            job = as_job(*args[:3], **given)
            args = args[3:]
        else:
            job = _job(function.__name__, args[0] if args else None, kwargs, own_names)
            args = args[1:]
            if "is_named" in own_names:
                kwargs.setdefault("is_named", job.has_named_trainer)
        return function(job.workload, job.strategy, job.cluster, *args, **kwargs)

    open_parts = (part.replace(default=None) for part in (strategy, cluster))
    return _shown(called, own.replace(parameters=[_FIRST_PARAMETER, *open_parts, *more, _OPTIONS]))


def takes_whole_job(function: Callable[Concatenate[Job, _P], _R]) -> JobFunction[_P, _R]:
    """`takes_job` for a function of the whole `Job`: what was given counts, and who trains.

    Of workload, strategy and cluster it makes a job that no options describe.
    """
    own = inspect.signature(function)
    _, *more = own.parameters.values()
    own_names = {parameter.name for parameter in more}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> _R:
        args = args or _named_first(kwargs)
        if args and isinstance(args[0], Workload):
            parts = {name: kwargs.pop(name) for name in _PARTS if name in kwargs}
            args = (as_job(*args[:3], **parts), *args[3:])
        else:
            first = args[0] if args else None
            args = (_job(function.__name__, first, kwargs, own_names), *args[1:])
        return function(*args, **kwargs)

    _, *parts = inspect.signature(as_job).parameters.values()
    return _shown(called, own.replace(parameters=[_FIRST_PARAMETER, *parts, *more, _OPTIONS]))


_FIRST_PARAMETER = inspect.Parameter(
    "workload",
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    annotation="Workload | Job | Model | str | Path",
)
_OPTIONS = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD, annotation="Any")


def _shown(called: Callable[..., _R], signature: inspect.Signature) -> JobFunction[..., _R]:
    """With the signature and the sentence that `help` shows of what it takes."""
    title, _, rest = inspect.cleandoc(called.__doc__ or "").partition("\n\n")
    takes = "A `Job`, or a model's name with the options of `Job.of`, stands for the first three."
    called.__doc__ = f"{title}\n\n{takes}\n\n{rest}"
    called.__dict__["__signature__"] = signature
    return cast("JobFunction[..., _R]", called)


def as_job(
    workload: Workload | Job, strategy: Strategy | None = None, cluster: Cluster | str = "cuda"
) -> Job:
    """A job as it is, or of its three parts.

    Raises:
        UsageError: neither, or a workload without a strategy, or with what is none.
    """
    if isinstance(workload, Job):
        return workload
    if not isinstance(workload, Workload):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"Give a Job, such as wb.Job.of('llama-3-8b', gpu='h100'), or a Workload, not "
            f"{workload!r}."
        )
    if strategy is None:
        raise UsageError("A workload does not say how it is spread. Give a strategy, or a Job.")
    if not isinstance(strategy, Strategy):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"Beside a workload the strategy is a Strategy, as Strategy.parse('fsdp', 8), not "
            f"{strategy!r}."
        )
    return Job(workload=workload, strategy=strategy, cluster=cluster)


_PARTS = tuple(inspect.signature(as_job).parameters)
_FIRST = ("job", "model", "workload")
"""Names by which a call may give what comes first."""


def _named_first(kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What a call gives first, where it gives it by name; it is taken from `kwargs`."""
    name = next((name for name in _FIRST if name in kwargs), None)
    return () if name is None else (kwargs.pop(name),)


def _job(function: str, first: object, kwargs: dict[str, Any], own_names: set[str]) -> Job:
    """The job that a call names first; its options are taken from `kwargs`, except `own_names`."""
    options = {name: kwargs.pop(name) for name in [*kwargs] if name not in own_names}
    if isinstance(first, Job):
        if options:
            raise UsageError(
                f"{function} got {', '.join(options)} beside a Job, which has its own. Make "
                f"another one: job.changed({next(iter(options))}=...)."
            )
        return first
    if isinstance(first, str | Path | Model):
        return Job.of(first, **options)
    raise UsageError(
        f"{function} takes a Job, or a model's name with options, and not {first!r}. Write for "
        f'example {function}("llama-3-8b", gpu="h100", gpus=8).'
    )

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
    first, strategy, cluster, *more = own.parameters.values()
    own_names = {parameter.name for parameter in more}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> _R:
        if args and not isinstance(args[0], Workload):
            job = _job(function.__name__, args[0], kwargs, own_names)
            args = (job.workload, job.strategy, job.cluster, *args[1:])
            if "is_named" in own_names:
                kwargs.setdefault("is_named", job.has_named_trainer)
        return function(*args, **kwargs)

    parameters = [
        first,
        *(parameter.replace(default=None) for parameter in (strategy, cluster)),
        *more,
    ]
    called.__dict__["__signature__"] = own.replace(parameters=parameters)
    return cast("JobFunction[_P, _R]", called)


def takes_whole_job(function: Callable[Concatenate[Job, _P], _R]) -> JobFunction[_P, _R]:
    """`takes_job` for a function of the whole `Job`: what was given counts, and who trains.

    Of workload, strategy and cluster it makes a job that no options describe.
    """
    own = inspect.signature(function)
    _, *more = own.parameters.values()
    own_names = {parameter.name for parameter in more}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> _R:
        if not args or isinstance(args[0], Workload):
            parts = {name: kwargs.pop(name) for name in _PARTS if name in kwargs}
            args = (as_job(*args[:3], **parts), *args[3:])
        else:
            args = (_job(function.__name__, args[0], kwargs, own_names), *args[1:])
        return function(*args, **kwargs)

    parameters = [*inspect.signature(as_job).parameters.values(), *more]
    called.__dict__["__signature__"] = own.replace(parameters=parameters)
    return cast("JobFunction[_P, _R]", called)


def as_job(
    workload: Workload | Job, strategy: Strategy | None = None, cluster: Cluster | str = "cuda"
) -> Job:
    """A job as it is, or of its three parts.

    Raises:
        UsageError: a workload without a strategy.
    """
    if isinstance(workload, Job):
        return workload
    if strategy is None:
        raise UsageError("A workload does not say how it is spread. Give a strategy, or a Job.")
    return Job(workload=workload, strategy=strategy, cluster=cluster)


_PARTS = tuple(inspect.signature(as_job).parameters)


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

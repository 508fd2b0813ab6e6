"""What all observed backward passes share: only the outermost counts, and a stop happens before it.

Every call into the recorder is guarded: a defect here must not reach the user's script.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Generator
from typing import Any

from . import failures
from .graceful_stop import leave
from .losses import differentiated, returned
from .recorder import Recorder


class _Depth:
    """How many observed backward calls are on the stack: only the outermost one counts."""

    backward = 0


@contextlib.contextmanager
def outermost(recorder: Recorder) -> Generator[bool]:
    """Whether no observed backward is on the stack yet; if so, stop here when a stop is due."""
    first = _Depth.backward == 0 and os.getpid() == recorder.owner
    if first and not recorder.stops_itself and recorder.stop_due():
        leave(recorder)
    _Depth.backward += 1
    try:
        yield first
    finally:
        _Depth.backward -= 1


def observed(
    recorder: Recorder, function: Callable[..., Any], losses: Callable[..., list[Any]]
) -> Callable[..., Any]:
    """Wrap a backward function: record its entry, and stop before it when a stop is due.

    `losses` tells from the positional and the keyword arguments what is differentiated.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _Depth.backward or sys.modules["torch"].compiler.is_compiling():
            return function(*args, **kwargs)  # a compiled step stays one graph
        if os.getpid() != recorder.owner:
            return function(*args, **kwargs)
        if not recorder.stops_itself and recorder.stop_due():
            leave(recorder)
        _Depth.backward += 1
        try:  # as `outermost`, in one frame: its code is out of the cache at every step
            _record(recorder, losses, args, kwargs)
            result = function(*args, **kwargs)
            watched = recorder.turns.watched
            recorder.has_gradient = (
                watched is not None and getattr(watched(), "grad", None) is not None
            )
        except Exception as error:
            failures.note(recorder, "backward pass", error)
            raise
        else:
            return result
        finally:
            _Depth.backward -= 1

    return wrapper


def _record(recorder: Recorder, losses: Callable[..., list[Any]], args: Any, kwargs: Any) -> None:
    try:
        recorder.backward(*losses(args, kwargs))
    except Exception:
        return


def patch_backward(recorder: Recorder, torch: Any) -> None:
    """``loss.backward()``, ``torch.autograd``'s functions, and the transforms of ``torch.func``."""
    torch.Tensor.backward = observed(recorder, torch.Tensor.backward, differentiated)
    torch.autograd.backward = observed(recorder, torch.autograd.backward, differentiated)
    grad = torch.autograd.grad

    @functools.wraps(grad)
    def autograd_grad(*args: Any, **kwargs: Any) -> Any:
        # Gradients that the script assigns itself; it may be of any intermediate value.
        if not _Depth.backward and not torch.compiler.is_compiling():
            with contextlib.suppress(Exception):
                recorder.backward()
                recorder.returned(returned(args, kwargs, torch.nn.Parameter))
        return grad(*args, **kwargs)

    torch.autograd.grad = autograd_grad
    with contextlib.suppress(ImportError, AttributeError):  # of another torch
        _patch_transforms(recorder, torch)


def _patch_transforms(recorder: Recorder, torch: Any) -> None:
    """``torch.func.grad`` and ``grad_and_value``: both differentiate what one function returns.

    They call `torch.autograd.grad`, with a graph of its own. The value of a call inside another
    transform is none of the script's step.
    """
    transforms: Any = importlib.import_module("torch._functorch.eager_transforms")
    is_inside = importlib.import_module("torch._C._functorch").is_functorch_wrapped_tensor
    differentiate = transforms.grad_and_value_impl

    @functools.wraps(differentiate)
    def grad_and_value_impl(*args: Any, **kwargs: Any) -> Any:
        result = differentiate(*args, **kwargs)
        if not _Depth.backward and not torch.compiler.is_compiling():
            with contextlib.suppress(Exception):
                value = result[1][0] if isinstance(result[1], tuple) else result[1]
                if not is_inside(value):
                    recorder.returned(value)
        return result

    transforms.grad_and_value_impl = grad_and_value_impl

"""The loss that a backward pass differentiates, whatever was done to it before.

The loss of an optimizer step is what the script optimised in it: the sum of what its backward
passes differentiated, as divided by the script, by Accelerate or by an engine, less the factor of a
gradient scaler, which is taken off the gradients again. It is added up while gradients are: what
the script drops by ``zero_grad``, or a scaler by skipping a step, does not count.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

from .recorder import Recorder

_SCALE = "workbench_scale"  # in the metadata of the graph's node that a scaler made
_SUM = 2  # of torch's reductions
_GRAD_ARGUMENTS = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
_MAX_NODES = 16  # between what a scaler returned and what backward is called on
_SAME = {"_DDPSink", "ToCopy", "Clone", "Alias", "View", "UnsafeView", "Squeeze", "Unsqueeze"}
"""Steps of a graph whose values are those that they are given; DDP's takes several."""


class _Scaler:
    """Whether a gradient scaler is at work: else no graph is looked at."""

    used = False


def differentiated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The scalars of a call of ``Tensor.backward`` or ``autograd.backward``, each with its weight.

    A root with several elements is no loss: it is the output of a stage of a pipeline. But one with
    a single dimension has the losses of a batch's samples.
    """
    roots: Any = args[0] if args else kwargs.get("tensors")
    weights: Any = args[1] if len(args) > 1 else kwargs.get("gradient", kwargs.get("grad_tensors"))
    if not isinstance(roots, (tuple, list)):
        return [_weighted(unscaled(roots), weights)]
    many = list(cast("tuple[Any, ...]", roots))
    each = list(cast("tuple[Any, ...]", weights)) if weights is not None else [None] * len(many)
    return [_weighted(unscaled(loss), weight) for loss, weight in zip(many, each, strict=False)]


def _weighted(loss: Any, weight: Any) -> Any:
    """`loss` times the gradient that the backward pass begins with."""
    if weight is None:
        return loss
    if weight.numel() == 1:
        return loss.detach() * weight.detach()
    of_samples = loss.dim() == 1 and weight.shape == loss.shape
    return (loss.detach() * weight.detach()).sum() if of_samples else loss


def returned(args: tuple[Any, ...], kwargs: dict[str, Any], parameter: type[Any]) -> Any:
    """The loss of a call of ``autograd.grad`` for the gradients of parameters; None = no loss.

    What goes on in a graph of its own (a penalty, an inner step that is learnt) is not a loss.
    """
    arguments = {**dict(zip(_GRAD_ARGUMENTS, args, strict=False)), **kwargs}
    roots, leaves = _listed(arguments["outputs"]), _listed(arguments["inputs"])
    if (
        arguments.get("create_graph")
        or arguments.get("grad_outputs") is not None
        or len(roots) != 1
    ):
        return None
    return unscaled(roots[0]) if all(isinstance(leaf, parameter) for leaf in leaves) else None


def _listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, (tuple, list)) else [value]


def divided(loss: Any, count: float) -> Any:
    """`loss` as an engine divides it before its backward pass."""
    if count == 1 or loss is None:
        return loss
    return (loss.detach() if hasattr(loss, "detach") else loss) / count


def unscaled(loss: Any) -> Any:
    """`loss` without the factor of a gradient scaler, if it was made from a scaled one."""
    node = getattr(loss, "grad_fn", None)
    if not _Scaler.used or node is None:
        return loss
    waiting = [node]
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        node = waiting.pop(0)
        scale = node.metadata.get(_SCALE)
        if scale is not None:
            plain = loss.detach() / scale.to(loss.device)
            plain.workbench_root = loss.grad_fn  # for `factor`; it goes with this value
            return plain
        waiting += [before for before, _ in node.next_functions if before is not None]
    return loss


def factor(loss: Any) -> tuple[float, int] | None:
    """By how much `loss` is more than a mean over its batch, a scaler's factor aside.

    1/4 = the script, or Accelerate, divides by four micro-batches. The second number is how many
    elements were added up, where the script divides a sum by a count itself, else 0. Parts that are
    added up count together. None = unknown.
    """
    node = getattr(loss, "workbench_root", None) or getattr(loss, "grad_fn", None)
    if node is None:
        return None
    return _factor(node, loss.output_nr if node is loss.grad_fn else 0, _MAX_NODES)


def _factor(node: Any, output: int, depth: int) -> tuple[float, int]:
    """Of the `output`-th value that `node` made."""
    kind = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
    before: list[tuple[Any, int]] = list(node.next_functions)
    if depth and kind in _SAME and output < len(before) and before[output][0] is not None:
        return _factor(*before[output], depth - 1)
    trained = [edge for edge in before if edge[0] is not None]
    scales = kind in {"Mul", "Div"} and len(trained) == 1
    if not depth or not trained or not (scales or kind in {"Neg", "Add", "Sub"}):
        summed = _summed(node, kind)
        return float(summed or 1), summed
    parts = [_factor(*edge, depth - 1) for edge in trained]
    product, summed = sum(abs(part) for part, _ in parts), max(count for _, count in parts)
    if scales and node.metadata.get(_SCALE) is None:
        number = node._saved_other if node.next_functions[0][0] else node._saved_self  # noqa: SLF001
        size = abs(float(number))
        if kind == "Div":
            size = 1 / size if size else math.inf  # an empty batch's count
        product *= size
    return product, summed


def _summed(node: Any, kind: str) -> int:
    """Elements that `node` adds up; 0 where it does something else."""
    if kind == "Sum":
        return math.prod(node._saved_self_sym_sizes)  # noqa: SLF001
    if getattr(node, "_saved_reduction", None) != _SUM:
        return 0
    target = getattr(node, "_saved_target", None)
    return target.numel() if target is not None else 0


def patch_scaler(recorder: Recorder, owner: Any) -> None:
    """torch.amp.GradScaler and its kind: mark what it scaled; a skipped step drops its losses."""
    scale, step = owner.scale, owner.step

    @functools.wraps(scale)
    def mark(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        if result is not outputs:  # else it is switched off
            for item in _flat(result):
                if getattr(item, "grad_fn", None) is not None and self._scale is not None:
                    _Scaler.used = True
                    item.grad_fn.metadata[_SCALE] = self._scale
        return result

    owner.scale = mark
    owner.step = dropping(recorder, step)


def patch_sharded_scaler(recorder: Recorder, module: Any) -> None:
    """torch.distributed.fsdp.sharded_grad_scaler, which scales and steps in its own way."""
    owner = module.ShardedGradScaler
    if "scale" in vars(owner):
        patch_scaler(recorder, owner)


def dropping(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a step that may be skipped: its gradients are gone either way, and so are its losses."""

    @functools.wraps(function)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = recorder.steps
        result = function(self, *args, **kwargs)
        if recorder.steps == before:
            recorder.drop_losses()
        return result

    return step


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in cast("tuple[Any, ...]", value):
            yield from _flat(item)
    else:
        yield value


def patch_zero_grad(recorder: Recorder, torch: Any) -> None:
    """Optimizer and Module: gradients that are dropped before a step were never optimised."""
    optimizer, module = torch.optim.Optimizer, torch.nn.Module

    def of_optimizer(self: Any) -> bool:
        lead = recorder.lead()
        if lead is not None:  # or what it is wrapped in
            return lead is self or _first_parameter(lead) is _first_parameter(self)
        groups = self.param_groups
        return any(parameter.grad is not None for group in groups for parameter in group["params"])

    def of_module(self: Any) -> bool:
        lead = recorder.lead()
        if lead is None:
            return any(parameter.grad is not None for parameter in self.parameters())
        first = _first_parameter(lead)
        return any(parameter is first for parameter in self.parameters())

    optimizer.zero_grad = _zeroing(recorder, torch, optimizer.zero_grad, of_optimizer)
    module.zero_grad = _zeroing(recorder, torch, module.zero_grad, of_module)


def _first_parameter(optimizer: Any) -> Any:
    return optimizer.param_groups[0]["params"][0]


def _evaluates(owner: Any) -> bool:
    """Whether ``zero_grad`` is called by another method of the optimizer itself, as SAM's are."""
    frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_name == "zero_grad":
        frame = frame.f_back
    return hasattr(owner, "param_groups") and frame.f_locals.get("self") is owner


def _zeroing(
    recorder: Recorder, torch: Any, function: Callable[..., Any], concerns: Callable[[Any], bool]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            try:
                recorder.compiled.look()
                if recorder.has_losses and concerns(self):
                    recorder.drop_losses(evaluates=_evaluates(self))
            except Exception:
                return function(self, *args, **kwargs)
        return function(self, *args, **kwargs)

    return zero_grad

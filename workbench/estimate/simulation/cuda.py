"""A machine with one CUDA card for a user's own step, on a machine that has none.

Fake tensors know a device of their own, so ``.cuda()`` really gives tensors on "cuda:0" and what is
left on the CPU is host memory. Only torch's C++ must not learn of it: a build without CUDA has
neither streams nor guards for such a device, and one that has CUDA but no card aborts. So C++ is
told that the tensor is on the CPU, whose kernels the fake mode replaces anyway, and Python sees
CUDA.
"""
# ruff: noqa: SLF001 - the fake tensor's device is private to torch
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownLambdaType=false, reportMissingParameterType=false, reportUnknownParameterType=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch._subclasses.fake_tensor as fake_tensors
import torch.amp.autocast_mode
import torch.cuda.amp.common
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from workbench.estimate.simulation.cuda_queries import CARD, Memory, answer_queries
from workbench.estimate.simulation.replacements import Replacements

_CPU = torch.device("cpu")
_TO_COPY = torch.ops.aten._to_copy.default
_DEVICE = torch.ops.prim.device.default
_NO_BACKWARD = -1  # torch's number of the running backward pass when there is none


def target_device(value: Any) -> torch.device:
    """`value` as torch reads it on a machine with one card: 0, "cuda" and "cuda:0" are the card."""
    if isinstance(value, int):
        return torch.device("cuda", value)
    device = torch.device(value)
    return CARD if str(device) == "cuda" else device


def on_card(tensor: Any) -> bool:
    """Whether a fake tensor lies on the simulated card."""
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"


class CardCalls(TorchFunctionMode):
    """Notes which calls work on the card, and gives "cuda" its number.

    What torch's C++ allocates beside its inputs it puts where it believes them to be, on the CPU;
    `placed_on_card` puts it on the card. A tensor that the user creates on the CPU stays there.
    """

    depth = 0  # calls with an input on the card that are running now
    active = False  # whether anything lies on the card
    moving = False  # whether the user's own words say where the result goes

    @classmethod
    @contextlib.contextmanager
    def explicit_move(cls) -> Generator[None]:
        """Leave the device of the operators inside as it is given."""
        before, cls.moving = cls.moving, True
        try:
            yield
        finally:
            cls.moving = before

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Intercept one call of torch's Python API."""
        del types
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and func is not _TO_COPY:
            kwargs["device"] = target_device(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        working = any(_holds_card(value) for value in (*args, *kwargs.values()))
        CardCalls.depth += working
        CardCalls.active = CardCalls.active or working
        try:
            return func(*args, **kwargs)
        finally:
            CardCalls.depth -= working


def _holds_card(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(on_card(item) for item in value)
    return on_card(value)


def placed_on_card(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an operator: what C++ allocates inside a call on the card belongs there."""
    inside = CardCalls.depth > 0 or (
        CardCalls.active and torch._C._current_graph_task_id() != _NO_BACKWARD
    )
    if inside and not CardCalls.moving and options.get("device") == _CPU:
        return {**options, "device": CARD}
    return options


@contextlib.contextmanager
def one_card(fake: FakeTensorMode, memory: Memory) -> Generator[None]:
    """Let the code inside see one CUDA device."""
    changes = Replacements()
    try:
        _hide_from_cpp(changes)
        _moves(changes, fake)
        _autocast(changes)
        answer_queries(changes, memory)
        CardCalls.active = False
        with CardCalls():
            yield
    finally:
        CardCalls.active = False
        changes.restore()


def _hide_from_cpp(changes: Replacements) -> None:
    make = torch.Tensor._make_subclass
    dispatch = FakeTensor.__torch_dispatch__.__func__  # type: ignore[attr-defined]
    run = FakeTensorMode.dispatch
    default_handler = fake_tensors._DISPATCH_META_HANDLERS[_DEVICE]

    def make_on_cpu(*arguments: Any, **options: Any) -> Any:
        device = options.get("device_for_backend_keys")
        if device is not None and device.type == "cuda":
            options["device_for_backend_keys"] = _CPU
        return make(*arguments, **options)

    def without_card(device: Any) -> Any:
        return _CPU if device.type == "cuda" else device

    def placed(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(mode, func, types, args, placed_on_card(kwargs or {}))

    def dispatched(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = dispatch(cls, func, types, args, kwargs or {})
        return without_card(result) if func is _DEVICE else result

    changes.set(torch.Tensor, "_make_subclass", staticmethod(make_on_cpu))
    changes.set(FakeTensor, "__torch_dispatch__", classmethod(dispatched))
    changes.set(FakeTensorMode, "dispatch", placed)
    handlers = {_DEVICE: lambda args: without_card(default_handler(args))}
    changes.set(
        fake_tensors, "_DISPATCH_META_HANDLERS", fake_tensors._DISPATCH_META_HANDLERS | handlers
    )
    changes.set(FakeTensorMode, "avoid_device_init", property(lambda _mode: True))
    changes.set(FakeTensor, "is_cuda", property(on_card))
    changes.set(FakeTensor, "is_cpu", property(lambda tensor: not on_card(tensor)))
    changes.set(FakeTensor, "get_device", lambda tensor: 0 if on_card(tensor) else -1)
    changes.set(FakeTensor, "record_stream", lambda *_arguments: None)


def _moves(changes: Replacements, fake: FakeTensorMode) -> None:
    """``to``, ``cuda``, ``cpu`` and pinning: C++ would compare devices that it does not know."""
    plain_to: Any = torch.Tensor.to
    handled = (torch.Tensor, torch.nn.Parameter, FakeTensor)

    def to(tensor: Any, *arguments: Any, **options: Any) -> Any:
        if type(tensor) not in handled or fake.in_kernel_invocation:
            return plain_to(tensor, *arguments, **options)
        target = _read_to(arguments, options)
        device = target_device(target.pop("device", tensor.device))
        if not isinstance(tensor, FakeTensor):
            if device != CARD:
                return plain_to(tensor, *arguments, **options)
            tensor = fake.from_tensor(tensor)
        if device == tensor.device:
            return plain_to(tensor, **{"dtype": tensor.dtype, **target})
        target.pop("copy", None)
        with CardCalls.explicit_move():
            return _TO_COPY(tensor, **target, device=device)

    def cuda(tensor: Any, device: Any = None, non_blocking: bool = False, **_options: Any) -> Any:  # noqa: FBT001, FBT002  (torch's signature)
        return to(tensor, CARD if device is None else device, non_blocking=non_blocking)

    def pinned(tensor: Any, *_device: Any) -> Any:
        return tensor.clone() if tensor.device.type == "cpu" else tensor

    changes.set(torch.Tensor, "to", to)
    changes.set(torch.Tensor, "cuda", cuda)
    changes.set(torch.Tensor, "cpu", lambda tensor, *_options, **_more: to(tensor, _CPU))
    changes.set(torch.Tensor, "pin_memory", pinned)
    changes.set(torch.Tensor, "is_pinned", lambda *_arguments: False)


def _read_to(arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``Tensor.to`` by name."""
    target = {name: value for name, value in options.items() if value is not None}
    rest = list(arguments)
    other = target.pop("other", None)
    if rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
    if other is not None:
        target |= {"device": other.device, "dtype": other.dtype}
    elif rest and not isinstance(rest[0], torch.dtype):
        first = rest.pop(0)
        target |= {} if first is None else {"device": first}
    if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
        first = rest.pop(0)
        target |= {} if first is None else {"dtype": first}
    return target | dict(zip(("non_blocking", "copy"), rest, strict=False))


def _autocast(changes: Replacements) -> None:
    """``torch.autocast("cuda")`` is the CPU's, which `CudaBehaviour` corrects."""
    create = torch.amp.autocast_mode.autocast.__init__

    def started(context: Any, device_type: str, dtype: Any = None, *rest: Any, **more: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        create(context, device_type, dtype, *rest, **more)

    changes.set(torch.amp.autocast_mode.autocast, "__init__", started)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        changes.set(torch, name, _for_cpu(getattr(torch, name)))
    for name in ("set_autocast_enabled", "set_autocast_dtype"):
        changes.set(torch, name, _for_cpu(getattr(torch, name)))
    changes.set(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    # No overflow: whether a step is skipped is a value, which fake tensors do not have.
    scaler = torch.amp.GradScaler
    changes.set(
        scaler,
        "_maybe_opt_step",
        lambda _scaler, optimizer, _state, *arguments, **more: optimizer.step(*arguments, **more),
    )


def _for_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(device_type: Any = "cuda", *rest: Any) -> Any:
        return function("cpu" if device_type == "cuda" else device_type, *rest)

    return call

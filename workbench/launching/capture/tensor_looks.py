"""Statistics of a module's weights, gradients and activations in one step, of this rank's part.

Activations are those of the first forward pass of the step, weights and gradients those that the
optimizer is about to use. Loaded when somebody asks; nothing is communicated, except where
DeepSpeed keeps gradients in partitions, which it gathers.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import gc
import sys
from collections.abc import Iterator
from typing import Any, cast

from .steering import RankRequest

KINDS = ("weights", "gradients", "activations")
_MOST_TENSORS, _MOST_NAMES = 64, 400
_WRAPPERS = {
    *("DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "FullyShardedDataParallel"),
    *("OptimizedModule", "PipelineEngine"),
}
_INNER = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")


def begin(recorder: Any, request: RankRequest) -> None:
    """Take up a request: the names of all modules now, or a look in the step that begins."""
    named: dict[str, Any] = {}
    for root in _roots():  # the largest first: it has the name, where several have it
        for name, module in _named(root):
            named.setdefault(name, module)
    pattern = str(request.document.get("module") or "")
    if not pattern:
        listed = [[name, type(module).__name__] for name, module in named.items()]
        request.result(done=True, modules=listed[:_MOST_NAMES], more=len(listed) - _MOST_NAMES)
        return
    modules = {
        name: value
        for name, value in named.items()
        if name == pattern or ("*" in pattern and fnmatch.fnmatchcase(name, pattern))
    }
    if not modules:
        near = difflib.get_close_matches(pattern, named, n=3, cutoff=0.3)
        hint = f" Nearest: {', '.join(near)}" if near and "*" not in pattern else ""
        hint = f"{hint}. Without a module the names are listed."
        request.result(done=False, why=f"The model has no module {pattern!r}{hint}")
        return
    kinds = [kind for kind in KINDS if kind in request.document.get("kinds", KINDS)]
    recorder.looks = TensorLooks(recorder, request, modules, kinds)


class TensorLooks:
    """One look, from the beginning of a step until its optimizer begins."""

    def __init__(
        self, recorder: Any, request: RankRequest, modules: dict[str, Any], kinds: list[str]
    ) -> None:
        self.request = request
        self._recorder, self._modules, self._kinds = recorder, modules, kinds
        self._rows: list[dict[str, Any]] = []
        self._hooks = [
            module.register_forward_hook(self._observer(name))
            for name, module in modules.items()
            if "activations" in kinds
        ]
        self._seen: set[str] = set()

    def _observer(self, name: str) -> Any:
        def observe(module: Any, _inputs: Any, output: Any) -> None:
            if name in self._seen or not module.training:
                return
            self._seen.add(name)
            with contextlib.suppress(Exception):
                for part, tensor in _tensors(output):
                    self._add("activations", f"{name}{part}", tensor)

        return observe

    def _add(self, kind: str, name: str, tensor: Any) -> None:
        if len(self._rows) < _MOST_TENSORS:
            self._rows.append({"kind": kind, "name": name, **statistics(tensor)})

    def finish(self) -> None:
        """The optimizer is about to step: look at weights and gradients, and tell. Never raises."""
        self._recorder.looks = None
        for hook in self._hooks:
            hook.remove()
        try:
            for name, parameter in self._parameters():
                for kind in self._kinds:
                    if kind != "activations":
                        tensor = parameter if kind == "weights" else _gradient(parameter)
                        self._add(kind, name, tensor)
        except Exception as error:
            self.request.result(done=False, why=f"{type(error).__name__}: {error}")
            return
        full = len(self._rows) == _MOST_TENSORS
        step = self._recorder.steps + 1
        self.request.result(done=True, looked_at=step, tensors=self._rows, cut=full)

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for name, module in self._modules.items():
            for inner, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield _clean(f"{name}.{inner}" if name != "." else inner), parameter


def statistics(tensor: Any) -> dict[str, Any]:
    """Of this rank's part: of its finite elements, and the shares of zeros and non-finite ones."""
    if tensor is None:
        return {"count": 0, "shape": None, "dtype": None}
    local = _local(tensor.detach())
    about = {
        "count": local.numel(),
        "shape": list(local.shape),
        "dtype": str(local.dtype).removeprefix("torch."),
    }
    if not local.numel() or local.is_meta:
        return about
    values = local.reshape(-1).float()
    finite = values[values.isfinite()]
    if not finite.numel():
        return {**about, "nonfinite": 1.0}
    spread = finite.std(correction=0)
    return {
        **about,
        "mean": finite.mean().item(),
        "std": spread.item(),
        "min": finite.min().item(),
        "max": finite.max().item(),
        "norm": finite.norm().item(),
        "zeros": (values == 0).float().mean().item(),
        "nonfinite": 1 - finite.numel() / values.numel(),
    }


def _local(tensor: Any) -> Any:
    """The part that this rank holds, of FSDP2's and DeepSpeed's too."""
    part = getattr(tensor, "ds_tensor", None)
    if part is not None and not tensor.numel():
        return part.detach()
    return getattr(tensor, "_local_tensor", tensor)


def _gradient(parameter: Any) -> Any:
    if parameter.grad is not None or not parameter.requires_grad:
        return parameter.grad
    if hasattr(parameter, "_hp_mapping") or hasattr(parameter, "ds_id"):
        return sys.modules["deepspeed"].utils.safe_get_full_grad(parameter)
    return None


def _tensors(output: Any) -> list[tuple[str, Any]]:
    """The tensors of a module's output, with where they are in it."""
    torch = sys.modules["torch"]
    if torch.is_tensor(output):
        return [("", output)]
    named: list[tuple[str, Any]] = []
    if isinstance(output, dict):
        named = [(f".{key}", value) for key, value in cast("dict[Any, Any]", output).items()]
    elif isinstance(output, tuple | list):
        named = [(f"[{at}]", value) for at, value in enumerate(cast("list[Any]", output))]
    return [(name, value) for name, value in named if torch.is_tensor(value)]


def _roots() -> list[Any]:
    """The outermost modules that are alive, with most trained weights first, wrappers taken off."""
    module_type = sys.modules["torch"].nn.Module
    alive: list[Any] = [
        module for module in gc.get_objects() if issubclass(type(module), module_type)
    ]
    child_ids = {id(child) for module in alive for child in _children(module).values()}
    roots = [module for module in alive if id(module) not in child_ids]
    sized = [(sum(p.numel() for p in root.parameters() if p.requires_grad), root) for root in roots]
    sized = [
        (size, _unwrapped(module))
        for size, module in sized
        if any(True for _ in module.parameters())
    ]
    return [module for _, module in sorted(sized, key=lambda pair: -pair[0])]


def _children(module: Any) -> dict[str, Any]:
    """By name; of one that is being made there are none yet."""
    children: Any = getattr(module, "_modules", None)
    return cast("dict[str, Any]", children) or {}


def _unwrapped(module: Any) -> Any:
    """What DDP, FSDP, an engine or torch.compile was given."""
    while type(module).__name__ in _WRAPPERS:
        inner = next((n for n in ("module", *_INNER) if n in module._modules), None)  # noqa: SLF001
        if inner is None:
            return module
        module = module._modules[inner]  # noqa: SLF001
    return module


def _named(root: Any) -> Iterator[tuple[str, Any]]:
    """All modules with their names in the script's own model; its whole is called '.'."""
    for name, module in root.named_modules():
        if type(module).__name__ not in _WRAPPERS:
            yield _clean(name) or ".", module


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _INNER)

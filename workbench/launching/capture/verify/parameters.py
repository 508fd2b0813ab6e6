"""The parameters of the models that a script calls, under the names that they have unwrapped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .sketch import added, sketch

_WRAPPERS = ("module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
_MOST = 2000  # parameters whose sketches are kept


class Models:
    """The modules that a script calls itself, and their parameters."""

    def __init__(self) -> None:
        self.roots: list[Any] = []
        self.local: dict[str, dict[str, Any]] = {}
        """Of gradients as this rank computed them in this step, by name."""
        self._hooked: set[int] = set()
        self._names: dict[int, tuple[Any, str]] = {}  # with the parameter: its id is no other's

    def add(self, module: Any) -> None:
        """A module that was called from outside any other."""
        if (
            all(module is not root for root in self.roots)
            and next(module.parameters(), None) is not None
        ):
            self.roots.append(module)
        for name, parameter in self.named().items():
            self._hook(name, parameter)

    def outermost(self) -> list[Any]:
        """The called modules that are not part of another called one."""
        inner = {id(module) for root in self.roots for module in list(root.modules())[1:]}
        return [root for root in self.roots if id(root) not in inner]

    def named(self) -> dict[str, Any]:
        """Every parameter by its name, once."""
        roots, seen, parameters = self.outermost(), set[int](), dict[str, Any]()
        for number, root in enumerate(roots):
            prefix = f"{_kind(root)}{number}." if len(roots) > 1 else ""
            for name, parameter in root.named_parameters():
                if id(parameter) not in seen and len(parameters) < _MOST:
                    seen.add(id(parameter))
                    # Another model may be called later: a name that was given stays.
                    _, first_name = self._names.setdefault(
                        id(parameter), (parameter, prefix + clean(name))
                    )
                    parameters[prefix + clean(name) if first_name in parameters else first_name] = (
                        parameter
                    )
        return parameters

    def tied(self) -> list[list[str]]:
        """Names that stand for one parameter, together."""
        groups: dict[int, list[str]] = {}
        for root in self.outermost():
            for name, parameter in root.named_parameters(remove_duplicate=False):
                groups.setdefault(id(parameter), []).append(clean(name))
        return [names for names in groups.values() if len(names) > 1]

    def buffers(self) -> dict[str, Any]:
        """Buffers of floating point: running statistics."""
        return {
            clean(name): buffer
            for root in self.outermost()
            for name, buffer in root.named_buffers()
            if buffer.is_floating_point() and buffer.numel()
        }

    def _hook(self, name: str, parameter: Any) -> None:
        """Note this parameter's gradient before anything exchanges it."""
        if id(parameter) in self._hooked or not parameter.requires_grad or not parameter.is_leaf:
            return
        self._hooked.add(id(parameter))
        if hasattr(parameter, "placements"):
            return

        def note(gradient: Any) -> None:
            try:
                self._note(name, sketch(gradient))
            except Exception:
                self.local.pop(name, None)

        parameter.register_hook(note)

    def _note(self, name: str, new: dict[str, Any]) -> None:
        before = self.local.get(name)
        if before is not None:
            new["projections"] = added(before["projections"], new["projections"])
            new["norm"] = None  # of a sum: not known from the parts
            new["parts"] = before.get("parts", 1) + 1
        self.local[name] = new


def clean(name: str) -> str:
    """A parameter's name without the wrappers around its model."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS) or name


def _kind(module: Any) -> str:
    inner = module
    while len(children := list(inner.named_children())) == 1 and children[0][0] in _WRAPPERS:
        inner = children[0][1]
    return type(inner).__name__


def freeze_switches(roots: Iterable[Any]) -> list[dict[str, Any]]:
    """Modules that say that something of them is frozen while every parameter is trained."""
    documents = list[dict[str, Any]]()
    for root in roots:
        for name, module in root.named_modules():
            switches: list[tuple[str, Any]] = list(module.__dict__.items())
            for key, value in switches:
                says = key.startswith(("frozen", "freeze")) and isinstance(value, (bool, int))
                weights = list(module.parameters()) if says and value > 0 else []
                if weights and all(weight.requires_grad for weight in weights):
                    text = f"{type(module).__name__}.{key} = {value}"
                    document = {"module": clean(name), "text": text, "parameters": len(weights)}
                    documents.append(document)
    return documents

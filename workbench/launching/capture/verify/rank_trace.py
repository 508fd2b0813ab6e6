"""What a verified rank keeps of each of its steps; see the package."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import random
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..losses import factor  # noqa: TID252  (the hook is loaded by its path)
from ..writers import write_json  # noqa: TID252
from .calls import Calls
from .clips import Clips
from .data import Reading
from .parameters import Models, freeze_switches
from .sketch import digest, sketch

_NORMS = nn.modules.batchnorm._NormBase  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class RankTrace:
    """One rank's trace; the recorder calls it at the end of every step."""

    path = None  # of a profiler's trace: none is made

    def __init__(self, recorder: Any, steps: int) -> None:
        self._recorder, self._most = recorder, steps
        self._models, self._reading = Models(), Reading()
        self._calls, self._clips = Calls(self._trained, self._entered), Clips()
        self._optimizers: dict[int, Any] = {}
        self._done: list[dict[str, Any]] = []
        self._facts: dict[str, Any] = {}
        self._written = self._left = False
        self._schedules: dict[int, int] = {}
        self._late: dict[int, Any] = {}  # optimizers that step after the one that ends the step
        self._generator: Any = None  # its state as the forward pass began
        self._clear()
        self._watch_backward(recorder)
        self._watch_schedules(sys.modules["torch.optim.lr_scheduler"])
        hooks: Any = sys.modules["torch.optim.optimizer"]
        hooks.register_optimizer_step_pre_hook(self._before_step)
        hooks.register_optimizer_step_post_hook(self._after_step)

    def _clear(self) -> None:
        """Begin a step."""
        lists = ("batches", "losses", "factors", "applied", "passes")
        self._step: dict[str, Any] = {name: [] for name in lists} | {"unsynced": 0}
        self._step |= {"gradients": {}, "local": {}}
        self._stale, self._with_gradient = set[str](), 0
        self._before_pass = 0  # batches of the passes that have begun
        self._models.local.clear()
        self._reading.made.clear()
        self._calls.next_step()

    def _entered(self, module: Any) -> None:
        """The script calls a module itself."""
        self._models.add(module)
        if torch.is_grad_enabled() and self._generator is None:
            self._generator = torch.get_rng_state()

    def _trained(self, module: Any, inputs: Any, output: Any) -> None:
        batch = self._reading.trained(inputs)
        batch |= {"model": id(module), "fresh": self._reading.is_fresh(inputs, output)}
        self._step["batches"].append(batch)
        self._step.setdefault("called", []).append(type(module).__name__)

    def _watch_backward(self, recorder: Any) -> None:
        backward = recorder.backward

        @functools.wraps(backward)
        def observed(*losses: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                self._backward(losses)
            return backward(*losses, **kwargs)

        recorder.backward = observed

    def _watch_schedules(self, module: Any) -> None:
        step = module.LRScheduler.step

        @functools.wraps(step)
        def counted(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            self._schedules[id(scheduler)] = self._schedules.get(id(scheduler), 0) + 1
            return step(scheduler, *args, **kwargs)

        module.LRScheduler.step = counted

    def _backward(self, losses: Any) -> None:
        step = self._step
        if "weights" not in self._facts and self._optimizers:  # a closure that its optimizer calls
            self._look_at_first()
        zeroed = self._forget_zeroed()
        if not step["losses"]:
            step["older"] = [name for name in self._models.named() if name not in zeroed]
        if not step["losses"] and self._done:
            self._stale, self._with_gradient = self._carried()
            step["moved"] = self._moved()
        if self._generator is not None and not self._generator.equal(torch.get_rng_state()):
            step["noise"] = True
        self._generator = None
        self._before_pass = len(step["batches"])
        for loss in losses:
            if isinstance(loss, torch.Tensor):
                step["losses"].append(float(loss.detach()))
                step["factors"].append(factor(loss))
        for root in self._models.outermost():
            step["unsynced"] += getattr(root, "require_backward_grad_sync", True) is False

    def _forget_zeroed(self) -> set[str]:
        """Gradients that the script has set to zero are no part of those to come (a GAN's)."""
        named, roots = self._models.named(), self._models.outermost()
        zeroed = {
            name
            for name, value in named.items()
            if value.grad is None or not _local(value.grad).any()
        }
        self._stale.difference_update(zeroed)
        if any(type(module).__name__ in _KEEP_OWN for root in roots for module in root.modules()):
            return zeroed
        for name in zeroed:
            self._models.local.pop(name, None)
        shards = any(hasattr(value, "placements") for value in named.values())
        if len(zeroed) == len(named) and not shards:
            self._drop_passes()
        return zeroed

    def _drop_passes(self) -> None:
        """No gradient is left of passes that nothing has applied: a scaler has skipped the step."""
        step, new = self._step, self._step["batches"][self._before_pass :]
        if step["losses"] and new and not step["passes"]:
            step |= {"batches": new, "losses": [], "factors": [], "unsynced": 0}

    def _carried(self) -> tuple[set[str], int]:
        """Parameters whose gradient is the one of the step before; how many have any."""
        before, applied = self._done[-1]["gradients"], set(self._done[-1]["applied"])
        trained = [
            (name, value)
            for name, value in self._models.named().items()
            if value.grad is not None and before.get(name) and name in applied
        ]
        stale = {
            name
            for name, parameter in trained
            if before[name]["norm"] > 0 and digest(_local(parameter.grad)) == before[name]["hash"]
        }
        return stale, len(trained)

    def _moved(self) -> dict[str, int]:
        """Hashes of parameters that are not what the last step has left: averaged, or loaded."""
        left = self._done[-1]["weights"]
        trained = self._parameters_of(self._optimizers.values())  # not what FSDP gathers meanwhile
        now = {name: digest(_local(value)) for name, value in trained.items() if left.get(name)}
        return {name: value for name, value in now.items() if value != left[name]["hash"]}

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Of several optimizers the first ends the step: the others' weights come after it."""
        with contextlib.suppress(Exception):
            if self._is_late(optimizer):
                self._late[id(optimizer)] = optimizer
                self._done[-1]["weights"].update(_sketches(self._parameters_of([optimizer])))

    def _is_late(self, optimizer: Any) -> bool:
        """Whether it steps after the one that has ended the step."""
        ended = bool(self._done) and not self._step["losses"]
        return ended and self._recorder.lead() is not optimizer

    def _parameters_of(self, optimizers: Any) -> dict[str, Any]:
        optimized = {id(key) for optimizer in optimizers for key in _parameters(optimizer)}
        return {
            name: value for name, value in self._models.named().items() if id(value) in optimized
        }

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            self._optimizers[id(optimizer)] = optimizer
            if os.getpid() != self._recorder.owner:
                return
            rates = {
                id(parameter): group.get("lr") is None or float(group["lr"]) > 0
                for group in optimizer.param_groups
                for parameter in group["params"]
            }
            named = self._models.named()
            own = [name for name, value in named.items() if id(value) in rates]
            names = [name for name in own if rates[id(named[name])]] if own else list(named)
            if self._is_late(optimizer):
                self._done[-1]["applied"] += names
                return
            self._step["applied"] += names
            self._step["passes"].append(len(self._step["losses"]))
            self._look(own or list(named))

    def _look_at_first(self) -> None:
        """The initial weights, once a model was called."""
        named = self._models.named()
        if named and not self._done and "weights" not in self._facts:
            self._facts["weights"] = _sketches(named)
            self._facts["tied"] = self._models.tied()

    def _look(self, names: list[str]) -> None:
        """Gradients as they are applied; before the first step also the initial weights."""
        self._look_at_first()
        named = self._models.named()
        gradients, local = self._step["gradients"], self._step["local"]
        for name in names:
            if name not in gradients:
                gradient = named[name].grad
                gradients[name] = None if gradient is None else sketch(gradient)
                if name in self._models.local:
                    local[name] = dict(self._models.local[name])

    def step_ended(self, line: dict[str, Any]) -> None:
        """An optimizer step ended. Raises SystemExit, to leave the script, after the last one."""
        try:
            self._close(line)
        except Exception as error:
            self._facts["error"] = f"{type(error).__name__}: {error}"
            empty: dict[str, Any] = {"gradients": {}, "weights": {}, "applied": []}
            self._done.append({"step": len(self._done) + 1, **empty})
        self._clear()
        if len(self._done) >= self._most:
            self._write()
            self._leave()

    def _close(self, line: dict[str, Any]) -> None:
        self._look(list(self._models.named()))  # also what no optimizer has applied
        calls, step = self._calls, self._step
        step |= {
            "step": len(self._done) + 1,
            "lr": line.get("lr"),
            "weights": _sketches(self._models.named()),
            "buffers": {name: digest(value) for name, value in self._models.buffers().items()},
            "random": _random(),
            "modes": calls.modes,
            "targets": calls.targets,
            "clips": self._clips.drain(),
            "carried": bool(self._stale) and len(self._stale) == self._with_gradient,
            "schedules": max(self._schedules.values(), default=0),  # since the step before
        }
        if len(self._done) + 1 >= self._most:  # the script ends before the others have stepped
            for name in self._parameters_of(self._late.values()):
                step["weights"].pop(name, None)
        self._done.append(step)
        self._schedules.clear()

    def finish(self) -> None:
        """The rank ends, by itself or by `_leave`."""
        self._write()

    def _write(self) -> None:
        if self._written:
            return
        self._written = True
        recorder = self._recorder
        document = {
            "rank": recorder.rank,
            "torch": torch.__version__,
            "world_size": recorder.world_size or int(os.environ.get("WORLD_SIZE") or 1),
            "accelerate": recorder.accelerator is not None,
            **self._facts,
            **self._model_facts(),
            **self._reading.document(),
            "evaluated": self._calls.evaluated,
            "dropouts": self._calls.dropouts,
            "eval_dropouts": self._calls.eval_dropouts,
            "autocast": self._calls.autocast,
            "products": self._calls.products,
            "steps": self._done,
        }
        folder = os.path.join(recorder.folder, "verify")
        os.makedirs(folder, exist_ok=True)
        write_json(os.path.join(folder, f"rank-{recorder.rank}.json"), document)

    def _model_facts(self) -> dict[str, Any]:
        named, roots = self._models.named(), self._models.outermost()
        places = {id(value): name for name, value in named.items()}
        optimized = [key for one in self._optimizers.values() for key in _parameters(one)]
        waiting = [
            key
            for item in gc.get_objects()
            if issubclass(type(item), torch.optim.Optimizer) and id(item) not in self._optimizers
            for key in _parameters(item)
        ]
        modules = [module for root in roots for module in root.modules()]
        return {
            "wrappers": sorted(
                {base.__name__ for module in (*roots, *modules) for base in type(module).__mro__}
                & _WRAPPERS
            ),
            "own_buffers": any(getattr(root, "broadcast_buffers", True) is False for root in roots),
            "embeddings": [
                places[id(module.weight)]
                for module in modules
                if isinstance(module, nn.Embedding) and id(module.weight) in places
            ],
            "comm_hook": any(getattr(root, "_comm_hooks", None) for root in roots),
            "trainable": [name for name, value in named.items() if value.requires_grad],
            "optimized": [places[id(key)] for key in optimized if id(key) in places],
            "waiting": [places[id(key)] for key in waiting if id(key) in places],
            "outside": sum(id(key) not in places for key in optimized),
            "optimizer": next(
                (type(optimizer).__name__ for optimizer in self._optimizers.values()), None
            ),
            "batch_norm": sum(isinstance(module, _NORMS) for module in modules),
            "sync_batch_norm": sum(isinstance(module, nn.SyncBatchNorm) for module in modules),
            "order": _order(self._calls.ran.values(), roots, places),
            "switches": freeze_switches(roots),
        }

    def _leave(self) -> None:
        """End the script as its own ``sys.exit`` would; one that continues is ended."""
        if self._left:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        self._left = True
        print("\nworkbench: verified; the script ends here", flush=True)  # noqa: T201
        raise SystemExit(0)


_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "FSDPModule"}
_KEEP_OWN = {"FullyShardedDataParallel", "DeepSpeedEngine"}  # sums outside of .grad


def _sketches(named: dict[str, Any]) -> dict[str, Any]:
    return {name: sketch(value) for name, value in named.items()}


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def _order(ran: Iterable[Any], roots: list[Any], places: dict[int, str]) -> list[str]:
    """The last parameter of each module that holds some, as they ran in models that are trained."""
    trained = {
        id(module)
        for root in roots
        if any(weight.requires_grad for weight in root.parameters())
        for module in root.modules()
    }
    return [
        places[id(own[-1])]
        for module in ran
        if id(module) in trained
        and (own := list(module.parameters(recurse=False)))
        and id(own[-1]) in places
    ]


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _random() -> dict[str, str]:
    """A hash of each generator's state."""
    numpy: Any = sys.modules.get("numpy")
    states = {"torch": torch.get_rng_state().numpy().tobytes(), "python": repr(random.getstate())}
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy"] = repr(numpy.random.get_state())
    return {
        name: hashlib.sha1(value if isinstance(value, bytes) else value.encode()).hexdigest()[:12]  # noqa: S324
        for name, value in states.items()
    }

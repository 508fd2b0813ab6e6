"""What a verified rank keeps of each of its steps; see the package."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import Any

import torch

from ..losses import factor  # noqa: TID252  (the hook is loaded by its path)
from ..writers import write_json  # noqa: TID252
from .calls import Calls
from .clips import Clips
from .data import Reading
from .drawn import Drawn
from .earlier_gradients import EarlierGradients, moved
from .model_facts import model_facts, parameters_of
from .parameters import Models
from .random_states import random_states
from .sketch import digest, sketch, sketches


class RankTrace:
    """One rank's trace; the recorder calls it at the end of every step."""

    path = None  # of a profiler's trace: none is made

    def __init__(self, recorder: Any, steps: int) -> None:
        self._recorder, self._most = recorder, steps
        self._models, self._reading, self._drawn = Models(), Reading(), Drawn()
        self._earlier = EarlierGradients(self._models)
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
        self._earlier.clear()
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
        zeroed, none_is_left = self._earlier.forget_zeroed()
        if none_is_left:
            self._drop_passes()
        if not step["losses"]:
            step["older"] = [name for name in self._models.named() if name not in zeroed]
        if not step["losses"] and self._done:
            self._earlier.compare(self._done[-1])
            optimized = self._parameters_of(self._optimizers.values())
            step["moved"] = moved(self._done[-1]["weights"], optimized)
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

    def _drop_passes(self) -> None:
        """No gradient is left of passes that nothing has applied: a scaler has skipped the step."""
        step, new = self._step, self._step["batches"][self._before_pass :]
        if step["losses"] and new and not step["passes"]:
            step |= {"batches": new, "losses": [], "factors": [], "unsynced": 0}

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Of several optimizers the first ends the step: the others' weights come after it."""
        with contextlib.suppress(Exception):
            if self._is_late(optimizer):
                self._late[id(optimizer)] = optimizer
                self._done[-1]["weights"].update(sketches(self._parameters_of([optimizer])))

    def _is_late(self, optimizer: Any) -> bool:
        """Whether it steps after the one that has ended the step."""
        ended = bool(self._done) and not self._step["losses"]
        return ended and self._recorder.lead() is not optimizer

    def _parameters_of(self, optimizers: Any) -> dict[str, Any]:
        optimized = {id(key) for optimizer in optimizers for key in parameters_of(optimizer)}
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
            self._facts["weights"] = sketches(named)
            self._facts["tied"] = self._models.tied()
            self._facts["drawn"] = self._drawn.among(named)

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
            "weights": sketches(self._models.named()),
            "buffers": {name: digest(value) for name, value in self._models.buffers().items()},
            "random": random_states(),
            "modes": calls.modes,
            "targets": calls.targets,
            "clips": self._clips.drain(),
            "carried": self._earlier.are_all_there,
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
            **model_facts(self._models, self._optimizers, self._calls.ran.values()),
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

    def _leave(self) -> None:
        """End the script as its own ``sys.exit`` would; one that continues is ended."""
        if self._left:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        self._left = True
        print("\nworkbench: verified; the script ends here", flush=True)  # noqa: T201
        raise SystemExit(0)

"""Observes torch and what is built on it after the script has imported it; changes no result.

Each patch is applied when its module has been loaded, by a finder at the front of ``sys.meta_path``
that steps aside once it has wrapped the module's loader. What is loaded already (by the user's own
sitecustomize, or by the warm server that a rank was forked from) is patched at once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import os
import sys
from collections.abc import Callable
from typing import Any

from . import (
    accelerating,
    ends,
    engine,
    graceful_stop,
    keras,
    leaving,
    loaders,
    logged,
    loopback,
    losses,
    models,
    norms,
    overrides,
    pipelines,
    rewinds,
    spawned,
    trainer,
    weight_looks,
)
from .backward import outermost, patch_backward
from .pulse import BACKWARD
from .reader import ScalarReader
from .recorder import Recorder

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_LIGHTNING_LOGS = "trainer.connectors.logger_connector.logger_connector"


def arm(recorder: Recorder) -> None:
    """Patch each library as soon as the script imports it."""
    patches: dict[str, Callable[[Recorder, Any], None]] = {
        "torch": _patch_torch,
        "torch.utils.data.dataloader": loaders.patch,
        "torch.nn.parallel.distributed": models.patch_ddp,
        "torch.distributed.fsdp.fully_sharded_data_parallel": models.patch_fsdp,
        "torch.distributed.fsdp._fully_shard._fsdp_state": models.patch_fsdp2,
        "torch.distributed.fsdp.sharded_grad_scaler": losses.patch_sharded_scaler,
        "torch.distributed.distributed_c10d": _patch_group,
        "accelerate.accelerator": accelerating.patch,
        "checkpointing": _patch_recipes_saves,
        "live_requests": _patch_recipes_questions,
        "transformers.trainer": trainer.patch,
        "keras.src.models.model": keras.patch,
        "deepspeed.runtime.engine": engine.patch,
        "torch.utils.tensorboard.writer": logged.patch_summary_writer,
        "tensorboardX.writer": logged.patch_summary_writer,
        "wandb.sdk.wandb_run": logged.patch_wandb,
        "mlflow.tracking.fluent": logged.patch_functions,
        "trackio": logged.patch_functions,
        **{f"{name}.{_LIGHTNING_LOGS}": logged.patch_lightning for name in _LIGHTNING},
    }
    actions = {name: functools.partial(patch, recorder) for name, patch in patches.items()}
    actions["torch.distributed.pipelining.schedules"] = functools.partial(
        pipelines.patch_schedules, recorder, outermost
    )
    actions["deepspeed.runtime.pipe.engine"] = functools.partial(
        pipelines.patch_deepspeed, recorder, outermost
    )
    averaging = "torch.distributed.algorithms.model_averaging.averagers"
    actions[averaging] = weight_looks.patch_averaging("ModelAverager")
    actions["accelerate.local_sgd"] = weight_looks.patch_averaging("LocalSGD")
    when_imported(actions)


def keep_local() -> None:
    """Rendezvous stores of this process, a rank or a launcher, listen on loopback alone."""
    names = ("torch.distributed", "torch.distributed.rendezvous")
    when_imported(dict.fromkeys(names, loopback.keep_local))


def when_imported(actions: dict[str, Callable[[Any], None]]) -> None:
    """Call each action with its module: now if it is loaded, else once it has been."""
    loaded = [name for name in actions if name in sys.modules]
    finder = _AfterImport(actions)
    sys.meta_path.insert(0, finder)
    if not loaded:
        return
    before: dict[str, dict[str, Any]] = {
        name: {**vars(module)} for name, module in _modules_of(loaded)
    }
    for name in loaded:
        finder.act(name, sys.modules[name])
    _rebind({id(old): new for old, new in _replaced(before)})


def _modules_of(loaded: list[str]) -> list[tuple[str, Any]]:
    """The loaded modules of the packages that `loaded` belong to."""
    packages = {name.partition(".")[0] for name in loaded}
    return [
        (name, module)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages
    ]


def _replaced(before: dict[str, dict[str, Any]]) -> list[tuple[Any, Any]]:
    """What was bound to a module's name `before`, and what is bound to it now."""
    return [
        (old, vars(sys.modules[name])[attribute])
        for name, content in before.items()
        for attribute, old in content.items()
        if vars(sys.modules[name]).get(attribute, old) is not old
    ]


def _rebind(replacements: dict[int, Any]) -> None:
    """Put the new ones into every module that had imported the old ones by name."""
    for module in list(sys.modules.values()) if replacements else ():
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in replacements:
                setattr(module, attribute, replacements[id(value)])


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls an action with the module once one of the named modules has been executed."""

    def __init__(self, actions: dict[str, Callable[[Any], None]]) -> None:
        self._actions = actions

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in self._actions:
            return None
        spec = self._spec_behind(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            # Not before: many only ask whether a library is there, and import it much later.
            self.act(fullname, module)

        spec.loader.exec_module = exec_module
        return spec

    def _spec_behind(self, fullname: str, path: Any, target: Any) -> Any:
        """What the finders after this one answer: ours, those of editable installs, Python's."""
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            if find_spec and (spec := find_spec(fullname, path, target)) is not None:
                return spec
        return None

    def act(self, fullname: str, module: Any) -> None:
        """Call the module's action, once."""
        action = self._actions.pop(fullname, None)
        try:
            if not self._actions and self in sys.meta_path:
                sys.meta_path.remove(self)
            if action is not None:
                action(module)
        except Exception as error:
            if os.environ.get("WORKBENCH_CAPTURE_DEBUG"):
                sys.stderr.write(f"workbench capture hook, {fullname}: {error!r}\n")


def _patch_torch(recorder: Recorder, torch: Any) -> None:
    recorder.reader = ScalarReader(torch)
    patch_backward(recorder, torch)
    losses.patch_scaler(recorder, torch.amp.GradScaler)
    losses.patch_zero_grad(recorder, torch)
    norms.patch(recorder, torch)
    rewinds.patch(recorder, torch)
    recorder.note(torch=torch.__version__, cuda=torch.version.cuda, nccl=_nccl(torch))
    hook_module = sys.modules["torch.optim.optimizer"]
    replaced: dict[int, overrides.Replaced] = {}  # by optimizer, while it steps
    compiled = recorder.compiled
    ended = functools.partial(_step_ended, recorder, replaced)
    compiled.tell = functools.partial(_compiled_step_ended, recorder, ended)

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            compiled.optimizer = optimizer  # stored at every run of what is compiled here
        else:
            ended(optimizer)

    def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            recorder.optimizing()
            steered = recorder.looks is not None or recorder.overrides is not None
            if steered or recorder.turns.by_hand:
                _steer(recorder, optimizer, replaced)

    hook_module.register_optimizer_step_pre_hook(before_step)
    hook_module.register_optimizer_step_post_hook(after_step)


def _compiled_step_ended(recorder: Recorder, ended: Callable[[Any], None], optimizer: Any) -> None:
    """A step whose backward pass may have been compiled with it, so that neither was seen."""
    if recorder.pulse.phase != BACKWARD:
        recorder.backward()
    ended(optimizer)


def _step_ended(
    recorder: Recorder, replaced: dict[int, overrides.Replaced], optimizer: Any
) -> None:
    """What is observed at the end of an optimizer's step; `replaced`: its own numbers meanwhile."""
    if os.getpid() != recorder.owner:
        spawned.note_unobserved(recorder.folder)
        return
    try:
        lr = optimizer.param_groups[0].get("lr")
        if hasattr(optimizer, "found_inf"):  # a fused one: the scaler calls it in any case
            recorder.nonfinite.scaled = True
        recorder.step(_rate(lr), optimizer)
        models.look_for_unused(recorder)
        recorder.weights.step(recorder)
    except Exception:
        return
    finally:
        overrides.restore(replaced.pop(id(optimizer), []))
        if recorder.changed is not None and not replaced:
            recorder.changed()


def _rate(lr: Any) -> float | None:
    """A learning rate; one that is a tensor on a device would have to be waited for."""
    if isinstance(lr, int | float):
        return float(lr)
    device = getattr(lr, "device", None)
    return float(lr) if device is not None and device.type == "cpu" and lr.numel() == 1 else None


def _steer(recorder: Recorder, optimizer: Any, replaced: dict[int, overrides.Replaced]) -> None:
    """What someone asked for, just before an optimizer's step."""
    if os.getpid() != recorder.owner:
        return
    if recorder.turns.by_hand and recorder.stop_due():
        graceful_stop.leave(recorder)  # there is no backward pass to stop before
    if recorder.looks is not None:
        recorder.looks.finish()
    if recorder.overrides is None:
        return
    overrides.restore(replaced.pop(id(optimizer), []))  # its last step failed
    if not replaced:  # else it is a step inside another optimizer's
        step, lead = recorder.steps + 1, recorder.lead()
        with contextlib.suppress(Exception):
            replaced[id(optimizer)] = recorder.overrides.apply(optimizer, step, lead)


def _nccl(torch: Any) -> str | None:
    """The version of NCCL that torch was built with; None in a build without."""
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except Exception:
        return None


def _patch_group(recorder: Recorder, module: Any) -> None:
    create = module.init_process_group

    @functools.wraps(create)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        forked = os.getpid() != recorder.owner and not os.environ.get(ends.SINGLE_RANK_VARIABLE)
        waits = (
            spawned.waiting(recorder.folder, recorder.owner) if forked else contextlib.nullcontext()
        )
        with waits:
            result = create(*args, **kwargs)
        try:
            if os.getpid() != recorder.owner:
                spawned.join_fork(recorder, module, recorder.code)
            recorder.group_ready(module.get_world_size(), str(module.get_backend()))
        except Exception:
            return result
        return result

    module.init_process_group = init_process_group
    leaving.patch(recorder, module)
    pipelines.patch_messages(recorder, module)


def _patch_recipes_saves(recorder: Recorder, module: Any) -> None:
    """Our recipes' own saves show in the pulse; another module of that name is left alone."""
    saves = getattr(module, "Checkpoints", None)
    if getattr(module, "checkpoint_files", None) is None or saves is None:
        return
    save, due = saves.save, saves.due

    @functools.wraps(save)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        with graceful_stop.saving(recorder, "recipe"):
            return save(self, *args, **kwargs)

    @functools.wraps(due)
    def due_or_requested(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_due = due(self, *args, **kwargs)  # the ranks ask each other: all of them have to
        return _take_request(recorder, "checkpoint") or is_due

    saves.save, saves.due = watched, due_or_requested


def _patch_recipes_questions(recorder: Recorder, module: Any) -> None:
    """Our recipes ask whether someone wants something now; see recipes/live_requests.py."""
    if hasattr(module, "asked_to"):
        module.asked_to = functools.partial(_take_request, recorder)


def _take_request(recorder: Recorder, action: str) -> bool:
    """Whether someone asked for `action` after this step; the loop that calls does it now."""
    if recorder.steering is None or (request := recorder.steering.take(action)) is None:
        return False
    request.result(done=True)
    return True

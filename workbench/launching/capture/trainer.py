"""Observes transformers' Trainer and its subclasses; lets it save and stop at the agreed step.

Its own log replaces a NaN by the mean of
what came before (`logging_nan_inf_filter`); the loss taken here is the one before that.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

from . import logged
from .graceful_stop import depart, observed_save
from .recorder import Recorder

_RESUME = "WORKBENCH_RESUME"
_OF_EVERY_STEP = frozenset({"loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos"})


def patch(recorder: Recorder, module: Any) -> None:
    """transformers.trainer."""
    owner = module.Trainer
    owner._save_checkpoint = observed_save(  # noqa: SLF001 - the one place all its saves pass
        recorder,
        owner._save_checkpoint,  # noqa: SLF001
        "trainer",
        _saved_to,
    )
    train = owner.train
    callback = _callback(recorder, module.TrainerCallback)

    @functools.wraps(train)
    def observed_train(self: Any, *args: Any, **kwargs: Any) -> Any:
        resume = _checkpoint_to_resume()
        if resume is not None:
            args, kwargs = args[1:], {**kwargs, "resume_from_checkpoint": resume}
            _stop_at_the_end(recorder, self)
        outer = recorder.stops_itself
        with contextlib.suppress(Exception):
            callback.trainer = self
            if callback not in self.callback_handler.callbacks:
                self.add_callback(callback)
            recorder.stops_itself = True
        try:
            result = train(self, *args, **kwargs)
        finally:
            recorder.stops_itself = outer
        if recorder.stopped_at is not None:
            depart(recorder)
        return result

    owner.train = observed_train
    logged.observe(recorder, owner, "log", _logged, lead=True)


def _checkpoint_to_resume() -> str | None:
    """The checkpoint this attempt was started from, for the first training of the process.

    It also takes the place of one that the script found itself: the newest may be broken.
    """
    path = os.environ.pop(_RESUME, None)
    if path is None or not os.path.isfile(os.path.join(path, "trainer_state.json")):
        return None
    return path


def _stop_at_the_end(recorder: Recorder, trainer: Any) -> None:
    """Resumed after its last step, Trainer (5.23) makes one more before it looks at max_steps."""
    run_epoch = getattr(trainer, "_run_epoch", None)
    if run_epoch is None:
        return

    @functools.wraps(run_epoch)
    def unless_done(*args: Any, **kwargs: Any) -> Any:
        if 0 < trainer.state.max_steps <= trainer.state.global_step:
            trainer.control.should_training_stop = recorder.nothing_left = True
            return None
        return run_epoch(*args, **kwargs)

    trainer._run_epoch = unless_done  # noqa: SLF001


def _logged(_trainer: Any, logs: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
    """What Trainer logs besides the columns that every step has."""
    return {name: value for name, value in logs.items() if name not in _OF_EVERY_STEP}


def _saved_to(trainer: Any, _result: Any, _model: Any, trial: Any = None, **_kwargs: Any) -> str:
    folder = trainer._get_output_dir(trial=trial)  # noqa: SLF001
    return os.path.join(folder, f"checkpoint-{trainer.state.global_step}")


def _callback(recorder: Recorder, base: Any) -> Any:
    """A TrainerCallback, which is asked after the script's own."""

    class Watch(base):
        """Stops at the agreed step: every rank at the same one, with Trainer's own checkpoint."""

        trainer: Any = None

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            if os.getpid() == recorder.owner and recorder.stop_due():
                recorder.stopped_at = recorder.steps
                where = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
                recorder.checkpoint = os.path.abspath(where)
                control.should_save = control.should_training_stop = True
            if recorder.steering is not None and os.getpid() == recorder.owner:
                _obey(recorder.steering, self.trainer, control)
            return control

    return Watch()


def _obey(steering: Any, trainer: Any, control: Any) -> None:
    """Have Trainer save or evaluate now, as someone asked."""
    if (request := steering.take("checkpoint")) is not None:
        control.should_save = True
        request.result(done=True)
    if (request := steering.take("evaluate")) is not None:
        if getattr(trainer, "eval_dataset", None) is None:
            request.result(done=False, why="the Trainer has no eval_dataset to evaluate on.")
        else:
            control.should_evaluate = True
            request.result(done=True)

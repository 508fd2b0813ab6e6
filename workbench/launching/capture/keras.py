"""Observes Keras' ``Model.fit`` with a callback of our own: one step per train batch.

Keras hands a callback the running mean of the epoch's losses; the batch's own loss is got back from
two neighbours: n times the mean now, less n-1 times the mean before.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from .plain import Numbers
from .recorder import Recorder


def patch(recorder: Recorder, module: Any) -> None:
    """Wrap ``Model.fit``, once the module that defines it has been executed."""
    module.Model.fit = _observed(recorder, module.Model.fit)


def _observed(recorder: Recorder, fit: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fit)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            callbacks = kwargs.get("callbacks")
            if len(args) <= _CALLBACKS_AT and (
                callbacks is None or isinstance(callbacks, (list, tuple))
            ):
                kwargs["callbacks"] = [*(callbacks or ()), _callback(recorder)]
        except Exception:
            return fit(self, *args, **kwargs)
        return fit(self, *args, **kwargs)

    return wrapper


_CALLBACKS_AT = 5  # fit(x, y, batch_size, epochs, verbose, callbacks, …)


def _callback(recorder: Recorder) -> Any:
    """A ``keras.callbacks.Callback`` that never raises."""
    keras: Any = sys.modules["keras"]
    if recorder.reader is None:
        recorder.reader = Numbers()

    class Watch(keras.callbacks.Callback):
        """Tells the recorder of every train batch."""

        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self._total = 0.0
            self._batches = 0
            self._steps = recorder.steps

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self._total, self._batches = 0.0, 0
            self._steps = recorder.steps

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            with contextlib.suppress(Exception):
                ours: dict[str, Any] = {**(logs or {})}
                ours.pop("loss", None)
                if os.getpid() == recorder.owner and recorder.rank == 0:
                    recorder.logged.add(recorder.steps, ours)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            try:
                count = batch + 1
                mean: Any = logs["loss"] if logs else None
                loss = None
                if mean is not None:
                    total = float(mean) * count
                    # Steps run several at a time (steps_per_execution) share their mean.
                    loss = (total - self._total) / max(1, count - self._batches)
                    self._total, self._batches = total, count
                if recorder.steps == self._steps:  # else an optimizer of torch was seen
                    recorder.report_loss(loss)  # most backends show no backward pass
                    recorder.step(_rate(self.model.optimizer))
                _obey_stop(recorder, self.model)
                self._steps = recorder.steps
            except Exception:
                return

    return Watch()


def _obey_stop(recorder: Recorder, model: Any) -> None:
    if recorder.stop_due():
        recorder.stopped_at = recorder.steps
        model.stop_training = True


def _rate(optimizer: Any) -> float | None:
    """The learning rate now; a mirrored variable is read where it lives."""
    try:
        return float(optimizer.learning_rate.value.numpy())
    except Exception:
        return None

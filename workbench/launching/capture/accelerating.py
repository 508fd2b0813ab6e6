"""Observes accelerate's Accelerator: clipping, save_state. Its backward ends in torch's own."""

from __future__ import annotations

import functools
from typing import Any

from . import logged, norms
from .graceful_stop import observed_save
from .recorder import Recorder


def patch(recorder: Recorder, module: Any) -> None:
    """accelerate.accelerator."""
    owner = module.Accelerator
    owner.save_state = observed_save(recorder, owner.save_state, "accelerate", _saved_to)
    construct = owner.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        recorder.accelerator = self

    owner.__init__ = init
    norms.patch_method(recorder, owner)
    logged.patch_method_log(recorder, owner, ("log",), lead=True)


def _saved_to(_accelerator: Any, result: Any, *_args: Any, **_kwargs: Any) -> Any:
    return result  # the folder, also where Accelerate names it itself

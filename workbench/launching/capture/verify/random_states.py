"""The states of the generators that a script may draw from."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def random_states() -> dict[str, str]:
    """A hash of each generator's state."""
    numpy: Any = sys.modules.get("numpy")
    states = {"torch": torch.get_rng_state().numpy().tobytes(), "python": repr(random.getstate())}
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy"] = repr(numpy.random.get_state())
    return {
        name: hashlib.sha1(value if isinstance(value, bytes) else value.encode()).hexdigest()[:12]  # noqa: S324
        for name, value in states.items()
    }

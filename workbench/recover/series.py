"""Whether files of torch.save beside each other are checkpoints, or parts of one checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.recover.pickled import UNREADABLE, Call, Symbol, children, read_saved, walk

_MOST = 16  # files that are opened
_MOST_VALUES = 50_000  # of a file that are looked at


@dataclass(frozen=True, slots=True)
class _Content:
    """What a file holds, by its table."""

    weights: frozenset[str]
    """Names of tensors that are not an optimizer's."""
    optimizer: bool
    """Whether it holds an optimizer's state and other things."""

    @property
    def is_whole(self) -> bool:
        """Whether training goes on from it alone."""
        return self.optimizer and bool(self.weights)


def are_series(files: Sequence[Path]) -> bool:
    """Whether each file is a checkpoint, as ckpt_10.pt and ckpt_20.pt, or best.pt and last.pt.

    Parts of one checkpoint, as model.pt and optimizer.pt, complete each other. Two files with model
    and optimizer are two checkpoints, and so are one of these and weights of the same model.
    """
    names = [re.sub(r"\d+", "", file.name) for file in files]
    if len(files) == 1 or len(set(names)) < len(names):
        return True
    if len(files) > _MOST:
        return False
    contents = [_content(file) for file in files]
    complete = [content for content in contents if content is not None and content.is_whole]
    if len(complete) != 1:
        return len(complete) > 1
    return all(
        content is None or (bool(content.weights) and content.weights <= complete[0].weights)
        for content in contents
    )


def _content(file: Path) -> _Content | None:
    """None: it cannot be read, as one that was being written."""
    try:
        value = read_saved(file).value
    except UNREADABLE:
        return None
    optimizers, weights = set[tuple[Any, ...]](), set[str]()
    for path, item in walk(value, _MOST_VALUES):
        if any(path[: len(above)] == above for above in optimizers):
            continue
        if any(key == "param_groups" for key, _ in children(item)):
            optimizers.add(path)
        elif path and isinstance(item, Call) and _is_tensor(item):
            weights.add(str(path[-1]))
    return _Content(frozenset(weights), bool(optimizers - {()}))


def _is_tensor(call: Call) -> bool:
    return isinstance(call.function, Symbol) and "_rebuild_" in call.function.name

"""The pictures of finetune_image.py beside this file: checked by all processes, shown by one."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from workbench.errors import UsageError
from workbench.training_data.pictures import Picture, list_pictures, loader, open_all

_PROBLEMS_SHOWN = 10
_LETTERS = 160  # of a caption


def usable(options: argparse.Namespace, accelerator: Accelerator) -> list[Picture]:
    """The pictures that can be trained on, by name; each process opens its share of them.

    Raises:
        UsageError: there is none, or --strict refuses some.
    """
    listed = list_pictures(Path(options.pictures).expanduser())
    rank, ranks = accelerator.process_index, accelerator.num_processes
    good, broken = open_all(listed.pictures[rank::ranks])
    pictures: list[Picture] = sorted(gather_object(good), key=lambda picture: picture.path)
    problems: list[str] = [*listed.problems, *sorted(gather_object(broken))]
    if problems and (options.strict or not pictures):
        left = "" if not options.strict else ", or leave --strict out"
        raise UsageError(
            f"--data {options.pictures}: {len(problems):,} pictures cannot be trained on: "
            f"{' '.join(problems[:_PROBLEMS_SHOWN])} Mend them{left}."
        )
    accelerator.print(f"{len(pictures):,} pictures with captions from {listed.captions}")
    for picture in pictures[:3]:
        caption = picture.caption[:_LETTERS]
        accelerator.print(f"  {picture.path.name}: {picture.width} x {picture.height}, {caption!r}")
    small = sum(min(picture.width, picture.height) < options.resolution for picture in pictures)
    if small:
        accelerator.print(f"{small:,} are smaller than {options.resolution} and are scaled up")
    if problems:
        accelerator.print(
            f"{len(problems):,} are skipped:", *problems[:_PROBLEMS_SHOWN], sep="\n  "
        )
    return pictures


def pixels(pictures: Sequence[Picture], side: int) -> Tensor:
    """Each scaled by its shorter side and cut to its middle: [B, 3, side, side] from -1 to 1."""
    load = loader()
    return torch.stack([_square(load(picture.path), side) for picture in pictures])


def _square(image: Any, side: int) -> Tensor:
    scale = side / min(image.width, image.height)
    width, height = (max(side, round(scale * length)) for length in (image.width, image.height))
    left, top = (width - side) // 2, (height - side) // 2
    cut = image.resize((width, height)).crop((left, top, left + side, top + side))
    return torch.from_numpy(np.asarray(cut, dtype=np.float32) / 127.5 - 1).permute(2, 0, 1)

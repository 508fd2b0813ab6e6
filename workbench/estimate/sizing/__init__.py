"""Questions that people ask of a memory estimate, all answered by `training_memory` alone.

How far does this card reach (`largest_micro_batch`, `longest_sequence`), which card or how many
(`smallest_gpu`, `fewest_gpus`), what would help and what does that cost (`switches`), and why the
peak is where it is (`explain`).
"""

from workbench.estimate.sizing.explanation import explain
from workbench.estimate.sizing.gpus import GpuFit, Option, fewest_gpus, smallest_gpu
from workbench.estimate.sizing.limits import (
    HEADROOM,
    Answer,
    largest_micro_batch,
    leaves_headroom,
    longest_sequence,
)
from workbench.estimate.sizing.switch import Switch, switches, switches_that_fit

__all__ = [
    "HEADROOM",
    "Answer",
    "GpuFit",
    "Option",
    "Switch",
    "explain",
    "fewest_gpus",
    "largest_micro_batch",
    "leaves_headroom",
    "longest_sequence",
    "smallest_gpu",
    "switches",
    "switches_that_fit",
]

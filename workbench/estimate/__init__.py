"""Pure functions: values in, an `Estimate` of named parts out."""

from workbench.estimate.inference import inference_memory
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import Estimate
from workbench.estimate.sizing import (
    Answer,
    Switch,
    explain,
    fewest_gpus,
    largest_micro_batch,
    longest_sequence,
    smallest_gpu,
    switches,
)
from workbench.estimate.step_time import step_time
from workbench.estimate.timing import StepTime

__all__ = [
    "Answer",
    "Estimate",
    "StepTime",
    "Switch",
    "explain",
    "fewest_gpus",
    "inference_memory",
    "largest_micro_batch",
    "longest_sequence",
    "smallest_gpu",
    "step_time",
    "switches",
    "training_memory",
]

"""Pure functions: values in, an `Estimate` of named parts out."""

from workbench.estimate.memory import training_memory
from workbench.estimate.parts import Estimate

__all__ = ["Estimate", "training_memory"]

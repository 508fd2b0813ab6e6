"""The three inputs as frozen values: what (`Workload`), how (`Strategy`), where (`Cluster`)."""

from workbench.describe.accelerators import Accelerator
from workbench.describe.hardware import Cluster, Gpu
from workbench.describe.model import Model, Traced
from workbench.describe.strategy import Strategy
from workbench.describe.workload import KERNELS, Kernels, Workload

__all__ = [
    "KERNELS",
    "Accelerator",
    "Cluster",
    "Gpu",
    "Kernels",
    "Model",
    "Strategy",
    "Traced",
    "Workload",
]

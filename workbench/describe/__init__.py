"""The three inputs as frozen values: what (`Workload`), how (`Strategy`), where (`Cluster`)."""

from workbench.describe.accelerators import Accelerator
from workbench.describe.hardware import Cluster, Conditions, Gpu, Network
from workbench.describe.implementation import KERNELS, ImplementationAssumptions
from workbench.describe.model import Model, Traced
from workbench.describe.price import Offer, Terms
from workbench.describe.strategy import Strategy
from workbench.describe.workload import Workload

__all__ = [
    "KERNELS",
    "Accelerator",
    "Cluster",
    "Conditions",
    "Gpu",
    "ImplementationAssumptions",
    "Model",
    "Network",
    "Offer",
    "Strategy",
    "Terms",
    "Traced",
    "Workload",
]

"""The three inputs as frozen values: what (`Workload`), how (`Strategy`), where (`Cluster`)."""

from workbench.describe.hardware import Cluster, Gpu
from workbench.describe.strategy import Strategy
from workbench.describe.workload import Model, Workload

__all__ = ["Cluster", "Gpu", "Model", "Strategy", "Workload"]

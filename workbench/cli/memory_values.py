"""The options of ``workbench memory`` and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.cli.describing import Description, option
from workbench.describe import Accelerator, Cluster
from workbench.describe.job import Job
from workbench.describe.option import Option
from workbench.estimate import sizing
from workbench.estimate.card import remarks
from workbench.estimate.parts import Estimate
from workbench.estimate.simulate import Simulation


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(Description):
    """The options of ``workbench memory``."""

    headroom: Annotated[float, Option(help="Share of the card to keep free.", least=0, below=1)] = (
        sizing.HEADROOM
    )
    simulate: Annotated[
        bool, option("Also simulate the real model on fake tensors.", "--simulate")
    ] = False
    timeout: Annotated[float, Option(help="Time limit of the simulation in seconds.", above=0)] = (
        300.0
    )
    inference: Annotated[bool, option("Estimate serving instead of training.", "--inference")] = (
        False
    )
    kv_bytes: Annotated[int, Option(help="inference: bytes per cached element.", least=1)] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnswer:
    """Everything that one call of the command found out."""

    job: Job
    """What, how and where."""
    estimate: Estimate
    """Closed form."""
    headroom: float
    """Share of the card to keep free."""
    explanation: tuple[str, ...]
    """Why the peak is where it is."""
    switches: tuple[sizing.Switch, ...]
    """What would help, ranked."""
    micro_batch: sizing.Answer
    """Largest micro-batch."""
    sequence: sizing.Answer
    """Longest sequence."""
    fits_on: tuple[sizing.GpuFit, ...]
    """GPUs on which it fits, where no card was named."""
    options: tuple[sizing.Option, ...]
    """What would make it fit, where it does not."""
    simulation: Simulation | None = None
    """Exact simulation, where asked for and possible."""
    no_simulation: str | None = None
    """Why there is none, where it was asked for."""

    @property
    def cautions(self) -> tuple[str, ...]:
        """What the hardware lacks for it, and what offload takes from the host."""
        return remarks(self.job, self.estimate.host_bytes)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What else the answer rests on."""
        cautions = self.cautions
        all_sentences = (*self.job.notes, *self.estimate.assumptions)
        return tuple(sentence for sentence in all_sentences if sentence not in cautions)

    @property
    def gpu(self) -> Accelerator | None:
        """The catalog's row of the card."""
        return accelerator(self.job.cluster)


def accelerator(cluster: Cluster | str) -> Accelerator | None:
    """The catalog's row of a cluster's card; None where there is none."""
    return cluster.accelerator if isinstance(cluster, Cluster) else None

"""What machines cost: an offer of a provider, and the provider's other terms.

Unknown is None and never 0; an offer whose price is doubtful carries marks that every face shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.describe.checks import require_positive
from workbench.describe.hardware import Cluster
from workbench.describe.network import Network
from workbench.errors import UsageError

STALE_DAYS = 30
MARKS = ("stale", "odd", "unverified", "undated", "form unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A provider's terms besides the hourly price; None where unknown."""

    provider: str
    """Short name, as in `Offer.provider`."""
    billing_seconds: float | None = None
    """Granularity of billing: 1 = per second, 60, 3600."""
    minimum_seconds: float | None = None
    """Least billed time per start."""
    storage_usd_per_gb_month: float | None = None
    """Disk while the machine runs."""
    stopped_storage_usd_per_gb_month: float | None = None
    """Disk while the machine is stopped."""
    egress_usd_per_gb: float | None = None
    """Data leaving the provider."""
    interruption_hours: float | None = None
    """Mean time between interruptions of spot machines; None: nobody publishes it."""
    max_nodes: int | None = None
    """Most nodes of one kind that the provider joins by a fabric; 1 = single machines only."""
    source: str = ""
    """Where the terms were read."""
    date: str = ""
    """When."""
    notes: str = ""
    """What to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One kind of machine at one provider, with its price per node and hour."""

    provider: str
    """Short name (runpod, aws, lambda …)."""
    name: str
    """The provider's own name of it."""
    gpu: str
    """Id in the accelerator catalog; the slower form where the offer does not say which."""
    gpus: int
    """Accelerators of one node."""
    usd_per_hour: float | None
    """On demand, one node; None = unknown."""
    spot_usd_per_hour: float | None = None
    """Interruptible, one node; None = unknown or not offered."""
    region: str = ""
    """Region or zone; empty when not said."""
    max_nodes: int | None = None
    """Nodes that can be joined by `network`; None = unknown (planned as 1)."""
    network: Network | None = None
    """Fabric between nodes; None = none or unknown."""
    cpu_cores: int | None = None
    """vCPUs of one node."""
    memory_bytes: int | None = None
    """Host memory of one node."""
    disk_gb: float | None = None
    """Local disk included in the price."""
    available: bool | None = None
    """True: rentable at `date`; None: a list price."""
    source: str = ""
    """Where the price was read."""
    date: str = ""
    """Day it was valid, ISO; empty when the source has none."""
    confidence: str = "medium"
    """high, medium, low, or own (entered by the user)."""
    marks: tuple[str, ...] = ()
    """Reasons to doubt it, of `MARKS`."""
    notes: str = ""
    """What to know."""

    def __post_init__(self) -> None:
        require_positive("offer.gpus", self.gpus)
        for field in ("usd_per_hour", "spot_usd_per_hour"):
            value = getattr(self, field)
            if value is not None and not 0 < value < 1e6:
                raise UsageError(
                    f"{self.provider} {self.name}: {field} must be above 0, not {value}. "
                    "Leave it out when the price is unknown."
                )

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """On demand, one accelerator; None = unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour / self.gpus

    def cluster(self, nodes: int = 1, *, spot: bool = False) -> Cluster:
        """The machines of this offer as the estimates and the launcher take them.

        Raises:
            UsageError: an absurd number of nodes.
        """
        price = self.spot_usd_per_hour if spot else self.usd_per_hour
        return Cluster.rented(self.gpu, self.gpus, nodes, usd_per_hour=price, network=self.network)

"""How well a machine does what its data sheet says: defaults, or what was measured on it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from workbench.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a step's time depends on besides workload, strategy and cluster.

    The defaults describe a healthy machine that nobody measured; a calibration replaces them and
    narrows the range of the estimate.
    """

    matmul_share: float | None = None
    """Large matmuls' measured rate over the catalog's dense peak; None = the usual one of the
    generation."""
    memory_share: float | None = None
    """Copy bandwidth over the catalog's; None = the usual one."""
    link_share: float | None = None
    """Collectives' bus bandwidth inside a node over the link's; None = the usual one."""
    network_share: float | None = None
    """The same between nodes; None = the usual one of the fabric's kind."""
    input_seconds: float = 0.0
    """Time the host takes to prepare one micro-batch; what compute does not hide is waited for."""
    straggler: float = 0.0
    """Share by which the slowest rank is slower than the others (0.05 = 5 %)."""
    measured_ratio: float | None = None
    """Measured over predicted step time of earlier runs like this one; None = none yet."""
    source: str = ""
    """Where measured values come from; empty = nothing was measured."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not 0 <= value < 1e6:
                raise UsageError(f"{field.name} must be 0 or above, not {value}.")
        for name in ("matmul_share", "memory_share", "link_share", "network_share"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1.5:
                raise UsageError(f"{name} is a share of the data sheet's rate, not {value}.")

    @property
    def is_measured(self) -> bool:
        """Whether anything was measured on the machine itself."""
        return bool(self.source)

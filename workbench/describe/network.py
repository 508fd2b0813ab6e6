"""The fabric between machines: what one node sends per second, and how long a message takes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from workbench.describe.checks import require_choice
from workbench.errors import UnknownNameError, UsageError

KINDS = ("infiniband", "roce", "efa", "tcpx", "omni-path", "ethernet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Fabric between the nodes of a cluster. ``Network.parse("8x400 infiniband")`` builds one."""

    name: str
    """What people call it."""
    kind: str
    """One of `KINDS`; ethernet = TCP without RDMA."""
    bytes_per_second: float
    """What one node sends at most, one direction, all its ports together."""

    def __post_init__(self) -> None:
        require_choice("network kind", self.kind, KINDS)
        if not 0 < self.bytes_per_second < math.inf:
            raise UsageError(f"A network's rate must be above 0, not {self.bytes_per_second}.")

    @property
    def has_rdma(self) -> bool:
        """Whether GPUs reach each other without the host's TCP stack."""
        return self.kind not in {"ethernet", "tcpx"}

    @staticmethod
    def parse(text: str) -> Network:
        """Read a fabric as people write it: ports x Gbit/s per node, then the kind.

        Raises:
            UnknownNameError: no such kind, or no rate.

        >>> Network.parse("8x400 infiniband").bytes_per_second
        400000000000.0
        >>> Network.parse("100 ethernet").bytes_per_second
        12500000000.0
        """
        found = re.fullmatch(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*(?:gb\S*)?\s+(\S+)", text.lower())
        kinds = {"ib": "infiniband", "tcp": "ethernet", "opa": "omni-path"}
        kind = kinds.get(found[3], found[3]) if found else text
        if found is None or kind not in KINDS:
            raise UnknownNameError.near("network", text, [f"8x400 {name}" for name in KINDS])
        rate = float(found[2]) * 1e9 / 8 * int(found[1] or 1)
        return Network(name=text, kind=kind, bytes_per_second=rate)

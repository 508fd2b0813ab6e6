"""Time of collectives: a latency per hop and a bandwidth, over the links a group really uses.

Ring: an all-gather or reduce-scatter of S bytes over n ranks sends (n-1)/n S from each, an
all-reduce twice that (bandwidth-optimal, NCCL's busbw convention). Groups larger than a node
are bound by their share of the node's ports; the slower of the two links sets the pace.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from workbench.describe import Accelerator, Cluster, Conditions, Strategy
from workbench.estimate.fitted import fitted
from workbench.estimate.rates import family

NVL72 = 72
"""GPUs of one NVLink domain in a GB200/GB300 NVL72 rack."""
# Share of a link's one-direction rate that collectives of large messages reach (busbw).
# NVLink: 367 of 450 GB/s ring on 8 H100 or H200, about 235 of 300 on A100 (ml-engineering network).
LINK_SHARE = 0.82
# One port per GPU of the generation's usual speed, where nothing is said about the fabric.
USUAL_PORT = {"Ampere": 25e9, "Volta": 12.5e9, "Ada": 6.25e9}
DEFAULT_PORT = 50e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that talk to each other."""

    size: int
    """Ranks."""
    per_node: int
    """Of them in one node (or NVLink domain)."""

    @property
    def nodes(self) -> int:
        """Nodes (or domains) it spans."""
        return max(1, math.ceil(self.size / self.per_node))


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Rates between the GPUs of a cluster."""

    link: float
    """One GPU to its neighbours in the node, bytes/s that collectives reach."""
    port: float
    """One GPU's share of the node's ports, bytes/s that collectives reach."""
    domain: int
    """GPUs joined by `link`."""
    network_hop: float
    """Seconds per ring step between nodes."""
    assumed: str = ""
    """What had to be assumed about the fabric; empty = nothing."""

    def group(self, size: int, stride: int) -> Group:
        """The group of `size` ranks that lie `stride` apart."""
        return Group(size=size, per_node=max(1, min(size, self.domain // stride)))

    def bandwidth(self, group: Group) -> float:
        """What one rank of the group sends per second while all groups of its kind talk."""
        if group.nodes == 1:
            return self.link
        # a node's ports serve all its ranks, so each group has its ranks' share of them
        rails = self.across(group.nodes) * group.per_node
        return min(self.link, rails) if group.per_node > 1 else rails

    def across(self, nodes: int) -> float:
        """A GPU's share of the ports in a group of so many nodes: more paths cross each other."""
        return self.port * (max(2, nodes) / 2) ** -fitted("crowding")

    def latency(self, group: Group) -> float:
        """Of one ring pass."""
        hops = group.nodes - 1 if group.nodes > 1 else 0
        return (
            fitted("collective_seconds")
            + hops * self.network_hop
            + (group.size - 1 - hops) * fitted("link_hop")
        )

    def gather_seconds(self, whole_bytes: float, group: Group) -> float:
        """All-gather or reduce-scatter of `whole_bytes` over the group."""
        n = group.size
        if n == 1 or not whole_bytes:
            return 0.0
        return self.latency(group) + (n - 1) / n * whole_bytes / self.bandwidth(group)

    def reduce_seconds(self, whole_bytes: float, group: Group) -> float:
        """All-reduce of `whole_bytes`: ring for large, a tree's latency for small messages."""
        n = group.size
        if n == 1 or not whole_bytes:
            return 0.0
        tree = fitted("collective_seconds") + 2 * math.log2(n) * (
            self.network_hop if group.nodes > 1 else 2 * fitted("link_hop")
        )
        latency = min(2 * self.latency(group), tree)
        return latency + 2 * (n - 1) / n * whole_bytes / self.bandwidth(group)

    def dispatch_seconds(
        self, token_bytes: float, tokens: float, top_k: int, group: Group
    ) -> float:
        """Tokens to their experts (or back): each visits `top_k` of them, spread evenly.

        A token crosses to each node once and to each GPU once, however many of its experts live
        there (DeepEP, HybridEP).
        """
        n, nodes = group.size, group.nodes
        if n == 1:
            return 0.0
        visited = n * (1 - (1 - 1 / n) ** top_k) * (n - 1) / n
        inside = visited * tokens * token_bytes / self.link
        outside = 0.0
        if nodes > 1:
            crossed = nodes * (1 - (1 - 1 / nodes) ** top_k) * (nodes - 1) / nodes
            outside = crossed * tokens * token_bytes / self.across(nodes)
        hop = self.network_hop if nodes > 1 else fitted("link_hop")
        return fitted("collective_seconds") + math.log2(n) * hop + max(inside, outside)

    def send_seconds(self, sent_bytes: float, *, between_nodes: bool) -> float:
        """One message to a neighbour."""
        if between_nodes:
            return fitted("collective_seconds") + self.network_hop + sent_bytes / self.port
        return fitted("collective_seconds") + fitted("link_hop") + sent_bytes / self.link


def links(cluster: Cluster, conditions: Conditions) -> Links:
    """Rates between the GPUs of `cluster`, from the catalog's link and the given fabric."""
    gpu = cluster.accelerator
    assert gpu is not None, "step_time has checked it"
    per_node = max(1, len(cluster.gpus))
    fabric = gpu.has_link and "bridge" not in gpu.link
    fast = cluster.link == "nvlink" or (cluster.link == "catalog" and fabric)
    share = conditions.link_share
    if fast and gpu.link_bytes_per_second:
        link = gpu.link_bytes_per_second * (share or LINK_SHARE)
    else:
        usual = fitted("no_peer_share" if _lacks_peer_access(gpu) else "pcie_share")
        link = (gpu.pcie_bytes_per_second or 16e9) * (share or usual)
    domain = NVL72 if fast and "NVL72" in gpu.link else per_node
    network, assumed = cluster.network, ""
    if network is None:
        kind = "infiniband"
        port = USUAL_PORT.get(family(gpu.arch), DEFAULT_PORT)
        if not gpu.has_link or gpu.id.startswith("rtx-"):  # no generation's training servers
            port = min(port, USUAL_PORT["Ada"])
        if cluster.world_size > domain:
            assumed = f"fabric not given: {port / 0.125e9:.0f} Gbit/s InfiniBand per GPU assumed"
    else:
        kind, port = network.kind, network.bytes_per_second / per_node
    reached = conditions.network_share or fitted(f"{kind}_share")
    return Links(
        link=link,
        port=port * reached,
        domain=domain,
        network_hop=fitted(f"{kind}_hop"),
        assumed=assumed,
    )


def _lacks_peer_access(gpu: Accelerator) -> bool:
    """GeForce parts (RTX 3090, 4090, 5090 …) reach each other through host memory only."""
    return re.match(r"rtx-\d0[6-9]0", gpu.id) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of one rank. Ranks are dealt as Megatron and DeviceMesh do: tp, cp, dp, pp."""

    tp: Group
    cp: Group
    shard: Group
    """Data-parallel ranks over which states are sharded (context ranks included)."""
    replicate: Group
    """Data-parallel replicas."""
    data: Group
    """Both together."""
    ep: Group
    expert_data: Group
    """Ranks that hold the same experts."""
    expert_shard: Group
    """Those of them over which the experts' states are sharded."""
    stage_crosses_nodes: bool
    """Whether neighbouring pipeline stages lie in different nodes."""


def groups(strategy: Strategy, network: Links) -> Groups:
    """Which ranks communicate under `strategy` on these links."""
    s, inner = strategy, strategy.tp * strategy.cp
    stage = inner * s.data_ranks
    experts = s.ep * s.expert_split
    return Groups(
        tp=network.group(s.tp, 1),
        cp=network.group(s.cp, s.tp),
        shard=network.group(s.shard_ranks, s.tp),
        replicate=network.group(s.dp_replicate, inner * s.dp_shard),
        data=network.group(s.data_ranks * s.cp, s.tp),
        ep=network.group(s.ep, s.expert_split),
        expert_data=network.group(max(1, stage // experts), experts),
        expert_shard=network.group(max(1, s.shard_ranks // s.expert_ways), experts),
        stage_crosses_nodes=s.world_size > network.domain,
    )

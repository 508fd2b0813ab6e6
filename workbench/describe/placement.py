"""Where a job runs, before it is looked up: which GPU, how many, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from workbench.describe.hardware import SIZES, Cluster
from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.describe.strategy import Strategy
from workbench.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A cluster before it is looked up. `cluster` and `world_size` give what it stands for."""

    gpu: Annotated[
        str | None, Option(help="GPU of the catalog [default: this host's].", metavar="G")
    ] = None
    """Any usual name; None = this host's."""
    gpus: Annotated[int | None, SIZES["gpus"]] = None
    """None = as many as the strategy's name says, else 1."""
    nodes: Annotated[int, SIZES["nodes"]] = 1
    """Equal machines."""
    network: Annotated[
        str | None,
        Option(help="Between nodes, such as '8x400 infiniband' or '100 ethernet'.", metavar="F"),
    ] = None
    """Fabric between the nodes; None = unknown."""
    link: Annotated[str, SIZES["link"]] = "catalog"
    """See `Cluster.link`."""
    cpu: Annotated[bool, Option(help="CPU ranks, no GPU.")] = False
    """CPU ranks; without `gpu` only."""

    def __post_init__(self) -> None:
        check_declared(self)

    def sized(self, strategy: str | None) -> Placement:
        """With the number of GPUs that a strategy's name asks for, where none is given.

        Raises:
            UsageError: the name says no number, and none is given.
        """
        if self.gpus is not None:
            return self
        if strategy is None:
            return replace(self, gpus=1)
        ranks = Strategy.ranks_of(strategy)
        if ranks is None:
            raise UsageError(
                f"Strategy {strategy!r} needs a number of GPUs. Give gpus, the number per node."
            )
        return replace(self, gpus=max(1, ranks // self.nodes))

    @property
    def world_size(self) -> int:
        """GPUs, or CPU ranks, of all nodes."""
        return (self.gpus or 1) * self.nodes

    def cluster(self) -> Cluster | str:
        """The machines; a device's name (``cpu``, ``cuda``) where no card is known.

        Raises:
            UsageError: an unknown accelerator or fabric.
        """
        from workbench.describe.detection import detect_host  # noqa: PLC0415  (asks the driver)

        gpus = self.gpus or 1
        if self.gpu is not None:
            return Cluster.rented(
                self.gpu, gpus=gpus, nodes=self.nodes, network=self.network, link=self.link
            )
        if self.cpu:
            return "cpu"
        host = detect_host()
        if self.nodes == 1 and gpus <= len(host.gpus):
            return replace(host, gpus=host.gpus[:gpus])
        return "cuda"


_USUAL_MOST = 8  # GPUs of a machine


def machine_note(cluster: Cluster | str) -> tuple[str, ...]:
    """That no machine has so many GPUs, where those of all machines were given as those of one."""
    card = cluster.accelerator if isinstance(cluster, Cluster) else None
    gpus = len(cluster.gpus) if isinstance(cluster, Cluster) else 0
    if card is None or gpus <= _USUAL_MOST or card.id.startswith("gb"):
        return ()  # a GB200 and its like have one NVLink in a whole rack
    count, rest = divmod(gpus, _USUAL_MOST)
    several = "" if rest else f" For {count} such machines: --nodes {count} --gpus {_USUAL_MOST}."
    sentence = (
        f"{gpus} x {card.name} count as one machine, with one link between all of them; most "
        f"machines have at most {_USUAL_MOST}."
    )
    return (sentence + several,)


def precision_there(
    cluster: Cluster | str, chosen: str | None, usual: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The precision where no one chose one and the card lacks the usual, and a sentence on it."""
    card = cluster.accelerator if isinstance(cluster, Cluster) else None
    if card is None or chosen is not None or not card.why_not(usual):
        return {}, ()
    other = card.instead_of(usual)
    if other is None:
        return {}, ()
    sentence = f"{card.name} has no {usual} matmuls: {other} is assumed. --precision chooses."
    return {"precision": other}, (sentence,)

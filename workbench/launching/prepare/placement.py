"""Where a launcher stands among several machines, and which network interface leads to them."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from workbench.describe import Strategy
from workbench.describe.supported import backend
from workbench.errors import UsageError

if TYPE_CHECKING:
    from workbench.store.run_record import RunRecord

_SIOCGIFADDR = 0x8915
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_PORT = "--main_process_port"
_FLAGS = ("--num_machines", "--machine_rank", "--main_process_ip")
NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables by which gloo and NCCL are told their interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One machine's place in a run over several."""

    nodes: int
    """Equal machines."""
    node_rank: int | str
    """This one, counted from 0; text = what a shell or an engine puts there."""
    address: str
    """Where node 0 is reached by the others: an address or a name; or a shell's text."""
    port: int | str
    """Of the rendezvous on node 0; or a shell's text."""

    def of(self, command: Sequence[str]) -> list[str]:
        """`command`, which starts Accelerate's launcher somewhere, as this machine's.

        What is replaced stands up to the port; a script may have options of the same names.

        >>> here = Placement(nodes=2, node_rank=1, address="10.0.0.1", port=29500)
        >>> here.of(["--main_process_port", "0", "train.py"])[:4]
        ['--num_machines', '2', '--machine_rank', '1']
        """
        at = command.index(_PORT)
        return [
            *_without(command[:at], _FLAGS),
            *("--num_machines", str(self.nodes)),
            *("--machine_rank", str(self.node_rank)),
            *("--main_process_ip", self.address),
            *(_PORT, str(self.port)),
            *command[at + 2 :],
        ]


def without_placement(command: Sequence[str]) -> list[str]:
    """`command` without what tells its machines where to find each other.

    >>> without_placement(["launch", "--main_process_port", "0", "train.py", "--machine_rank", "1"])
    ['launch', 'train.py', '--machine_rank', '1']
    """
    at = command.index(_PORT) if _PORT in command else 0
    return [*_without(command[:at], _FLAGS), *_without(command[at:], (_PORT,))]


def for_ranks(arguments: Sequence[str], strategy: Strategy) -> list[str]:
    """A script's arguments as the launcher is given them, so that each rank gets what was written.

    torch's launcher, which starts all but a lone plain rank, takes ``$$`` for one ``$``, and puts
    each rank's number where ``${local_rank}`` stands.

    >>> words = ["$$x", "${local_rank}", "$HOME"]
    >>> [for_ranks(words, Strategy.parse(*way)) for way in (("ddp", 2), ("single", 1))]
    [['$$$$x', '$${local_rank}', '$HOME'], ['$$x', '${local_rank}', '$HOME']]
    """
    if strategy.world_size == 1 and backend(strategy) == "single":
        return list(arguments)
    return [escaped_for_torch(word) for word in arguments]


def recorded_for_ranks(run: RunRecord, arguments: Sequence[str]) -> list[str]:
    """`arguments` as `for_ranks` gives them to the launcher of a recorded run."""
    return for_ranks(arguments, Strategy.recorded(run.strategy))


def escaped_for_torch(word: str) -> str:
    """A script's argument as torch's launcher hands it on unchanged."""
    changed = Template(word).safe_substitute(local_rank="") != word
    return word.replace("$", "$$") if changed else word


def _without(command: Sequence[str], flags: Sequence[str]) -> list[str]:
    words = list(command)
    for flag in flags:
        if flag in words:
            at = words.index(flag)
            del words[at : at + 2]
    return words


def check_address(address: str) -> str:
    """`address` without blanks, if ranks can be sent there. Raises UsageError: they cannot."""
    address = address.strip()
    if address in {"0.0.0.0", "::", "0"}:  # noqa: S104  (refused, not bound to)
        raise UsageError(
            f"{address} means every interface; the other nodes need an address of this machine "
            "that they reach: see `ip -brief address`."
        )
    allowed = address.replace(".", "").replace("-", "").replace(":", "")
    if not allowed.isalnum() or not address.isascii() or address.startswith("-"):
        raise UsageError(
            f"{address!r} is not an address of a machine. Give the address of node 0 that the "
            "other nodes reach, as 10.0.0.1 (see `ip -brief address`) or its name."
        )
    return address


def check_known_here(address: str) -> None:
    """Refuse a name that this machine, node 0, does not know: its own ranks meet there, too.

    Raises:
        UsageError: it leads to no address.
    """
    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"The name {address} leads to no address on this machine ({error}). Give the address "
            "of this machine that the other nodes reach: see `ip -brief address`."
        ) from error


def check_nodes(nodes: int, address: str | None) -> str | None:
    """The address of node 0 for so many machines; None for one.

    Raises:
        UsageError: several machines without an address, an address without them, or none at all.
    """
    if nodes < 1:
        raise UsageError(f"The number of nodes must be at least 1, not {nodes}.")
    if nodes == 1 and address is None:
        return None
    if nodes == 1:
        raise UsageError(
            "An address is for runs over several machines. Add --nodes N, or leave it out."
        )
    if address is None:
        raise UsageError(
            f"{nodes} nodes have to find this one: give the address at which they reach it, as in "
            "--address 10.0.0.1 (see `ip -brief address`)."
        )
    return check_address(address)


def check_shares(strategy: str, ranks: int, nodes: int) -> int:
    """Ranks on each of `nodes` machines. Raises UsageError: they cannot be equal shares."""
    if ranks % nodes:
        raise UsageError(
            f"{strategy} has {ranks} ranks, and {nodes} nodes cannot have equal shares of them. "
            "Change a degree or the number of nodes."
        )
    return ranks // nodes


def own_address(towards: str) -> str | None:
    """The address of this machine from which it talks to `towards`; None where no way is known.

    Nothing is sent: a datagram socket only asks the routing table.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_towards(address: str) -> str | None:
    """Name of the interface that has the address by which this machine reaches `address`.

    None where no one can tell: then gloo and NCCL choose.
    """
    own = own_address(address)
    if own is None:
        return None
    names = [name for _, name in socket.if_nameindex()]
    if ":" in own:
        return _with_ipv6(own)
    return next((name for name in names if _ipv4_of(name) == own), _loopback(own, names))


def _loopback(own: str, names: list[str]) -> str | None:
    """All of 127.0.0.0/8 is the loopback interface's, though it bears one address of it."""
    return "lo" if "lo" in names and ipaddress.ip_address(own).is_loopback else None


def _ipv4_of(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:  # it has none
            return None
    return socket.inet_ntoa(packed[20:24])


def _with_ipv6(own: str) -> str | None:
    hex_address = ipaddress.ip_address(own.partition("%")[0]).packed.hex()
    try:
        lines = _IPV6_ADDRESSES.read_text().splitlines()
    except OSError:
        return None
    return next((line.split()[-1] for line in lines if line.startswith(hex_address)), None)

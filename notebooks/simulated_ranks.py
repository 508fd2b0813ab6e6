"""Ranks that live in one process, with a clock: for puzzles about who sends what to whom, and when.

A program is an ordinary function that every rank runs. Collectives for it: ring_collectives.py.

    def program(rank):                    # rank.number of rank.size; rank.now is its clock
        rank.hold("gradients", 100)       # a name and elements (or a tensor), until rank.free(name)
        rank.compute(2.0, "backward")     # seconds; the label's first letter is drawn
        right, left = (rank.number + 1) % rank.size, (rank.number - 1) % rank.size
        rank.send(right, [1.0, 2.0])      # returns when the last element has left
        rank.start_send(right, [3.0])     # returns at once: the link works beside the rank
        return rank.recv(left) + rank.recv(left)      # blocks; messages keep their order

    outcome = simulate(program, ranks=4, bandwidth=100.0, latency=0.01)
    outcome                               # its repr: the figures, and a timeline as text
    outcome.seconds, outcome.peak, outcome.sent, outcome.results     # all but seconds: one per rank
    check(outcome, results=[...], seconds=2.1, elements=100, sent=3)    # how far from the targets?

Memory and messages are counted in elements (4 bytes each in fp32); what arrives is a torch tensor,
a copy, and counts as memory when it is held. A message occupies the sender's port for elements /
bandwidth seconds, its first element arrives `latency` later, and it occupies the receiver's port as
long. A port carries one message at a time in each direction, a receiver's in the order of its recv
calls, also while the rank computes. `bandwidth` is elements per second, or a function (source,
target) of it: a slow link between nodes. Ranks run in turn, so each run gives the same figures; if
all wait, or a message is never received, simulate raises Stuck and says who.
"""

# ruff: noqa: D102, INP001, N818, T201 - a file beside the notebooks, for their readers

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Stuck(RuntimeError):
    """The ranks cannot continue, or left something undone."""


class Span(NamedTuple):
    """What took time: compute (kind rank), or a message leaving the port (kind link)."""

    rank: int
    kind: str
    label: str
    start: float
    end: float


class Rank:
    """What a program sees."""

    def __init__(self, number: int, world: World) -> None:
        self.number, self.size, self.world = number, world.size, world
        self.now = self.out_free = self.in_free = 0.0
        self.held, self.peak, self.sent = dict[str, int](), 0, 0

    def compute(self, seconds: float, label: str = "#") -> None:
        """Work for so long."""
        self.world.spans.append(Span(self.number, "rank", label, self.now, self.now + seconds))
        self.now += seconds

    def hold(self, name: str, elements: Any) -> None:
        """Occupy memory under a name: a number of elements, or a tensor's."""
        count = elements if isinstance(elements, int) else torch.as_tensor(elements).numel()
        self.held[name] = count
        self.peak = max(self.peak, sum(self.held.values()))

    def free(self, name: str) -> None:
        """Give the memory of that name back."""
        if self.held.pop(name, None) is None:
            raise Stuck(f"rank {self.number} frees {name!r} but holds {sorted(self.held)}")

    def start_send(self, to: int, values: Any) -> None:
        """Hand a copy of the values to the link and continue."""
        if to == self.number or not 0 <= to < self.size:
            raise Stuck(f"rank {self.number} sends to {to}: take another of 0 to {self.size - 1}")
        message, start = torch.as_tensor(values).detach().clone(), max(self.now, self.out_free)
        self.out_free = start + message.numel() / self.world.rate(self.number, to)
        self.sent += message.numel()
        self.world.spans.append(Span(self.number, "link", str(to), start, self.out_free))
        self.world.channels[self.number, to].append((start + self.world.latency, message))

    def send(self, to: int, values: Any) -> None:
        """Send, and wait until the last element has left."""
        self.start_send(to, values)
        self.now = max(self.now, self.out_free)

    def recv(self, source: int) -> torch.Tensor:
        """Wait for the next message of that rank."""
        channel = self.world.channels[source, self.number]
        while not channel:
            self.world.park(self.number, source)
        arrival, message = channel.popleft()
        seconds = message.numel() / self.world.rate(source, self.number)
        self.in_free = max(arrival, self.in_free) + seconds
        self.now = max(self.now, self.in_free)
        return message


class World:
    """Channels between ranks; one thread per rank, of which one runs at a time."""

    def __init__(self, size: int, rate: Callable[[int, int], float], latency: float) -> None:
        self.size, self.rate, self.latency, self.spans = size, rate, latency, list[Span]()
        self.channels = defaultdict[tuple[int, int], deque[tuple[float, torch.Tensor]]](deque)
        self.turns = [threading.Semaphore(0) for _ in range(size)]
        self.parked, self.waits = threading.Semaphore(0), dict[int, int]()
        self.results, self.failure = list[Any]([None] * size), None

    def park(self, number: int, source: int) -> None:
        self.waits[number] = source
        self.parked.release()
        self.turns[number].acquire()
        if self.failure:  # another rank's: end this one too
            raise Stuck
        del self.waits[number]

    def body(self, program: Callable[[Rank], Any], rank: Rank) -> None:
        self.turns[rank.number].acquire()
        try:
            self.results[rank.number] = program(rank)
        except BaseException as error:  # noqa: BLE001 - raised again where simulate was called
            self.failure = self.failure or error
        self.parked.release()

    def run(self, program: Callable[[Rank], Any], ranks: list[Rank]) -> None:
        for rank in ranks:
            threading.Thread(target=self.body, args=(program, rank), daemon=True).start()
        able = list(range(self.size))
        while able and not self.failure:
            for number in able:
                self.turns[number].release()
                self.parked.acquire()
            able = [one for one, other in self.waits.items() if self.channels[other, one]]
        blocked = [f"rank {one} waits for {other}" for one, other in sorted(self.waits.items())]
        unread = [pair for pair, left in self.channels.items() if left]
        blocked = blocked or [f"{one} sent {other} more than it receives" for one, other in unread]
        self.failure = self.failure or (Stuck("; ".join(blocked)) if blocked else None)
        for number in self.waits:
            self.turns[number].release()
        if self.failure:
            raise self.failure


class Outcome(NamedTuple):
    """What a simulated run took; peak and sent in elements."""

    seconds: float
    peak: list[int]
    sent: list[int]
    results: list[Any]
    spans: list[Span]

    def __repr__(self) -> str:
        """Two rows per rank: its work, and whom its link sends to; a dot is waiting."""
        lines = [f"{self.seconds:g} s; elements per rank: peak {self.peak}, sent {self.sent}"]
        for row in [(rank, kind) for rank in range(len(self.peak)) for kind in ("rank", "link")]:
            cells, scale = ["."] * 72, 72 / (self.seconds or 1)
            for span in (span for span in self.spans if span[:2] == row):
                first, last = round(span.start * scale), round(span.end * scale)
                cells[first:last] = [span.label[0]] * (last - first)
            lines.append(f"{row[1]:>6} {row[0]} {''.join(cells)}")
        return "\n".join(lines)


def simulate(
    program: Callable[[Rank], Any], ranks: int, *, bandwidth: Any = 100.0, latency: float = 0.0
) -> Outcome:
    """Run the program on every rank; see the top of this file."""
    world = World(ranks, bandwidth if callable(bandwidth) else lambda *_: bandwidth, latency)
    team = [Rank(number, world) for number in range(ranks)]
    world.run(program, team)
    seconds = max(max(rank.now, rank.out_free) for rank in team)
    peak, sent = [rank.peak for rank in team], [rank.sent for rank in team]
    return Outcome(seconds, peak, sent, world.results, world.spans)


def check(
    outcome: Outcome, *, results: Sequence[Any] = (), work: str = "", **targets: float
) -> bool:
    """Print how far it is from targets: seconds, elements (peak) and sent, of the worst rank.

    `work`: the first letter of everything that each rank has to compute, in any order.
    """
    reached = True
    for rank, right in enumerate(results):
        if not _equal(got := outcome.results[rank], right):
            reached = bool(print(f"result   rank {rank} has {got}, not {right}"))
    for rank in range(len(outcome.peak) if work else 0):
        spans = (span for span in outcome.spans if span[:2] == (rank, "rank"))
        if sorted(did := "".join(span.label[0] for span in spans)) != sorted(work):
            reached = bool(print(f"work     rank {rank} did {did or 'nothing'}, not all of {work}"))
    measured = {"seconds": outcome.seconds, "elements": max(outcome.peak), "sent": max(outcome.sent)}
    for name, target in targets.items():
        over = measured[name] > target * (1 + 1e-9)
        verdict = f"{measured[name] / target:.2f} times too much" if over else "reached"
        print(f"{name:8} {measured[name]:g}, target {target:g}: {verdict}")
        reached = reached and not over
    print("Solved." if reached else "Not yet.")
    return reached


def _equal(got: Any, right: Any) -> bool:
    one, other = (torch.as_tensor([] if value is None else value) for value in (got, right))
    return one.shape == other.shape and torch.allclose(one.double(), other.double())

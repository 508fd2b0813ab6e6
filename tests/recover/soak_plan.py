"""What happens in a round of the soak; all of it follows from the seed and the round's number."""

from __future__ import annotations

import random
from dataclasses import dataclass

STRATEGIES = ("ddp", "fsdp", "tp", "pp", "zero2")
STEPS, EVERY = 40, 4  # optimizer steps; steps from one checkpoint to the next
SHAPE = (
    *("--layers", "2", "--hidden", "32", "--heads", "2", "--seq-len", "16", "--warmup", "2"),
    *("--micro-batch", "2", "--eval-every", "0", "--log-every", "1", "--fingerprint"),
    *("--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--keep-last", "4"),
)
FULL_DISK, NO_INODES = "full disk", "no inodes"
VICTIMS = (
    *(("rank",), ("launcher",), ("supervisor",), ("watcher",), ("supervisor", "rank")),
    *(("watcher", "supervisor"), ("rank", "launcher", "watcher", "supervisor"), ("viewer",)),
    *((FULL_DISK,), (NO_INODES,)),
)
TORN_LINES, TRUNCATED, FLIPPED = "torn lines", "truncated checkpoint", "flipped bit"
DAMAGES = ("none", TORN_LINES, TRUNCATED, FLIPPED)
DEADLY = {"rank", "launcher"}  # the attempt ends with them


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A round's."""

    seed: int
    number: int
    strategy: str
    victims: tuple[str, ...]
    rank: int
    """The one that is killed, where a rank is."""
    step: int
    """At which it happens."""
    delay_seconds: float
    """After that step."""
    damage: str
    """Done before every resume, and before an automatic restart after `DEADLY` victims."""
    restarts: int
    """That the run may make by itself."""
    asynchronous: bool
    """Whether checkpoints are written beside the training."""

    @classmethod
    def draw(cls, seed: int, number: int) -> Plan:
        """The plan of round `number`; strategies and victims take turns, the rest is drawn."""
        dice = random.Random(f"{seed}/{number}")
        return cls(
            seed=seed,
            number=number,
            strategy=STRATEGIES[number % len(STRATEGIES)],
            victims=VICTIMS[(number // len(STRATEGIES) + number % len(STRATEGIES)) % len(VICTIMS)],
            rank=dice.randrange(2),
            step=dice.randint(1, STEPS - 5),
            delay_seconds=dice.uniform(0, 0.05),
            damage=dice.choice(DAMAGES),
            restarts=dice.choice((0, 2)),
            asynchronous=dice.random() < 0.3,
        )

    @property
    def damages_restart(self) -> bool:
        """Whether files are damaged between the death of an attempt and its automatic restart."""
        deadly = not DEADLY.isdisjoint(self.victims)
        watched = not {"watcher", "supervisor"} <= set(self.victims)
        return deadly and watched and self.restarts > 0 and self.damage != "none"

    @property
    def command(self) -> str:
        """What plays this round alone."""
        return f"python -m tests.recover.soak --seed {self.seed} --round {self.number}"

    def __str__(self) -> str:
        what = " and ".join(self.victims)
        return (
            f"{self.strategy}: {what} at step {self.step}, then {self.damage}, "
            f"{self.restarts} restarts{', asynchronous saves' if self.asynchronous else ''}"
        )

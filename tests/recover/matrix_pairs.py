"""Which pairs of layouts the checkpoint matrix looks at: all of them, or a sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .matrix import Setting

NAMES = ("layouts", "pairwise", "sample", "third", "all")
Pairs = Callable[["Setting", "Setting"], bool]


def by_every_layout(settings: Sequence[Setting]) -> Pairs:
    """What every setting saved is loaded by every layout without options.

    With options it is loaded by itself, and these load a quarter of the layouts without, another
    one in turn.
    """
    place = {one.name: number for number, one in enumerate(settings)}
    plain = {one.name: number for number, one in enumerate(one for one in settings if one.plain)}

    def wanted(row: Setting, column: Setting) -> bool:
        if column.plain or row == column:
            return True
        return row.plain and (plain[row.name] + place[column.name]) % 4 == 0

    return wanted


def two_of_each_layout(settings: Sequence[Setting]) -> list[Setting]:
    """Each layout without options and with one of them; two layouts running have the same."""
    more: dict[str, list[Setting]] = {}
    for one in settings:
        more.setdefault(one.layout, []).append(one)
    taken = [found[1 + turn // 2 % (len(found) - 1)] for turn, found in enumerate(more.values())]
    return [one for one in settings if one.plain or one in taken]


def pairwise(settings: Sequence[Setting], seed: int = 0, *, each: int = 1) -> Pairs:
    """Every pair of layouts once, with options that are drawn; and each setting with itself.

    `each`: only so many-th pair.
    """
    dice, drawn = random.Random(seed), set[tuple[str, str]]()
    of_layout = dict[str, list[str]]()
    for one in settings:
        of_layout.setdefault(one.layout, []).append(one.name)
        drawn.add((one.name, one.name))
    for number, rows in enumerate(of_layout.values()):
        for other, columns in enumerate(of_layout.values()):
            if (number + other) % each == 0:
                drawn.add((dice.choice(rows), dice.choice(columns)))
    return lambda row, column: (row.name, column.name) in drawn


def every_third(settings: Sequence[Setting]) -> Pairs:
    """A third of all pairs, and each setting with itself."""
    place = {one.name: number for number, one in enumerate(settings)}
    return lambda row, column: row == column or (place[row.name] + place[column.name]) % 3 == 0


def named(name: str, chosen: Sequence[Setting]) -> Pairs:
    if name in {"pairwise", "sample"}:
        return pairwise(chosen, each=9 if name == "sample" else 1)
    if name == "third":
        return every_third(chosen)
    return by_every_layout(chosen) if name == "layouts" else lambda _row, _column: True

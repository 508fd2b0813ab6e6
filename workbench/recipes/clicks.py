"""Clicks that every machine already has: users, items and chance, each example from its number.

The truth is a factorisation machine (Rendle 2010, doi 10.1109/ICDM.2010.127): each value of each
field has a hidden vector, and the chance of a click is the sigmoid of a bias, a weight per dense
feature and the inner products of all pairs of vectors. So the lowest loss that any model can reach
is known: the mean entropy of these chances. Used by recsys.py beside this file; it needs torch
alone.
"""

import math

import torch
from torch import Tensor

_HIDDEN = 4  # elements of a value's hidden vector
_SPREAD = 2.0  # standard deviation of the inner products' sum, in logits
_BIAS = -1.0
_SALTS = {"value": 1, "dense": 2, "click": 3, "vector": 4, "weight": 5}


def uniform(purpose: str, *keys: Tensor | int) -> Tensor:
    """A number in [0, 1) for each combination of keys (broadcast), on any machine the same.

    SplitMix64 (Steele et al. 2014, doi 10.1145/2660193.2660195) over the keys one by one.
    """
    state = torch.tensor(_SALTS[purpose], dtype=torch.int64)
    for key in keys:
        state = _mix(state * 0x2545F4914F6CDD1D + torch.as_tensor(key, dtype=torch.int64))
    return ((state >> 11) & (2**53 - 1)).double() / 2**53


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser; products of int64 wrap around, shifts are made logical."""
    z = z + (0x9E3779B97F4A7C15 - 2**64)
    z = (z ^ ((z >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ ((z >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return z ^ ((z >> 31) & (2**33 - 1))


def draw(
    numbers: Tensor, fields: int, rows: int, dense: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Examples `numbers` [n]: values [n, fields], dense [n, dense], clicks [n], chances [n].

    Small values are frequent: the logarithm of a value is uniform, as with users and items.
    """
    number, field = numbers[:, None], torch.arange(fields)
    values = ((rows + 1) ** uniform("value", number, field)).long().clamp(1, rows) - 1
    features = (uniform("dense", number, torch.arange(dense)) - 0.5) * math.sqrt(12)
    vectors = uniform("vector", field[:, None], values[..., None], torch.arange(_HIDDEN)) - 0.5
    vectors = vectors * math.sqrt(12)  # [n, fields, hidden], of variance 1
    pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(-1) / 2
    scale = _SPREAD / math.sqrt(max(1, fields * (fields - 1) // 2) * _HIDDEN)
    weights = (uniform("weight", torch.arange(dense)) - 0.5) * 2 / math.sqrt(max(1, dense))
    chances = (_BIAS + scale * pairs + features @ weights).sigmoid()
    clicks = uniform("click", numbers) < chances
    return values, features.float(), clicks.float(), chances.float()


def floor_and_chance(chances: Tensor) -> tuple[float, float]:
    """Two losses in nats: of who knows the truth, and of who knows the share of clicks alone."""
    return entropy(chances).mean().item(), entropy(chances.mean()).item()


def entropy(p: Tensor) -> Tensor:
    """Of a coin that shows heads with chance `p`, in nats."""
    p = p.double()
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))

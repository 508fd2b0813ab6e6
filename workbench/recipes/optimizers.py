"""The optimizers of the recipes by name: what each keeps per weight, and what it asks for.

Memory per trained fp32 weight, beside weight and gradient: AdamW 8 bytes, its 8-bit form 2, SGD
with momentum and Muon 4, plain SGD none, Adafactor a row and a column per matrix.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any, overload

import torch
from recipe_options import OPTIMIZERS
from torch import Tensor, nn

BETAS = (0.9, 0.95)  # the short memory of language models: GPT-3, arXiv 2005.14165, appendix B


def build(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """An optimizer of the weights of `model` that are trained; a schedule may scale each group.

    Args:
        name: One of `OPTIMIZERS`; adamw is torch's default form (foreach).
        model: Not sharded yet: `Accelerator.prepare` moves the optimizer along with it.
        lr: The first learning rate.

    Raises:
        ValueError: no such optimizer.
        SystemExit: its package is missing; the message has the command that installs it.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if name in {"adamw", "adamw-fused"}:
        fused = name == "adamw-fused"  # one kernel for all weights; foreach: one per operation
        return torch.optim.AdamW(weights, lr, BETAS, fused=fused, foreach=not fused)
    if name == "adafactor":
        # torch's lr is relative to each matrix's own size (arXiv 1804.04235, section 8): 0.01 is
        # usual. Matrices that start as zeros (gpt.py's head) grow slowly under it.
        return torch.optim.Adafactor(weights, lr)
    if name in {"sgd", "sgd-momentum"}:
        momentum = 0.9 if name == "sgd-momentum" else 0.0
        return torch.optim.SGD(weights, lr, momentum=momentum, nesterov=momentum > 0)
    if name == "muon":
        if not hasattr(torch.optim, "Muon"):
            sys.exit(f"The optimizer muon needs torch 2.9 or newer; this is {torch.__version__}.")
        return Muon(model, lr)
    if name == "adamw-8bit":
        return _eight_bit(weights, lr)
    raise ValueError(f"--optimizer {name}: choose from {', '.join(OPTIMIZERS)}")


def _eight_bit(weights: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """AdamW whose two moments are bytes with a scale per 256 of them (arXiv 2110.02861).

    Weights of fewer than 4,096 numbers keep theirs in fp32. It runs on CPU too.
    """
    try:
        library: Any = importlib.import_module("bitsandbytes")
    except ImportError:
        pip = f"{sys.executable} -m pip"
        sys.exit(f"The optimizer adamw-8bit needs bitsandbytes. Next: {pip} install bitsandbytes")
    return library.optim.AdamW8bit(weights, lr=lr, betas=BETAS)


class Muon(torch.optim.Optimizer):
    """Muon for the matrices inside the model, AdamW for all the rest, seen as one optimizer.

    Muon makes each update orthogonal, which has a meaning for a matrix that maps one hidden state
    to another; the embedding and the head are tables over tokens and train better with AdamW
    (https://kellerjordan.github.io/posts/muon/). Its updates are scaled to the size of AdamW's
    (arXiv 2502.16982, section 2.2), so one learning rate and one schedule fit both.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        inner = {id(weight) for weight in _hidden_matrices(model)}
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        matrices = [weight for weight in trained if id(weight) in inner]
        others = [weight for weight in trained if id(weight) not in inner]
        options: dict[str, Any] = {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.01}
        parts: list[tuple[torch.optim.Optimizer, bool]] = []
        if matrices:
            parts.append((torch.optim.Muon(matrices, lr, **options), True))
        if others:
            parts.append((torch.optim.AdamW(others, lr, BETAS), False))
        self._parts = parts
        # The groups carry all options of their optimizer; `matrices` tells whose they are.
        groups = [
            {**group, "matrices": is_muon} for part, is_muon in parts for group in part.param_groups
        ]
        super().__init__(groups, {"lr": lr})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Both optimizers, one after the other."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part, is_muon in self._parts:
            # Groups and state are ours: sharding and loading replace them, so they are lent again.
            part.param_groups = [g for g in self.param_groups if g["matrices"] is is_muon]
            part.state = self.state
            part.step()
        return loss


def _hidden_matrices(model: nn.Module) -> list[Tensor]:
    """The weights of all linear layers but the head: also LoRA's, also a stacked q, k, v."""
    layers = list[tuple[str, nn.Module]](model.named_modules())  # pyright: ignore[reportUnknownArgumentType]
    return [
        layer.weight
        for name, layer in layers
        if isinstance(layer, nn.Linear) and not name.endswith("head")
    ]

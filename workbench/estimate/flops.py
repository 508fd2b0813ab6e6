"""FLOPs by named part, and the matrix products of one rank.

A product of an [m, k] by a [k, n] matrix is 2 m k n FLOPs; backward needs two of that size for a
trained weight and one (the input's gradient) for a frozen one (arXiv 2204.02311 appendix B: 6 per
parameter and token). Attention: scores and weighted values, half of them under a causal mask.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from workbench.describe import Model, Strategy, Workload
from workbench.describe.counting import Linear, active_parameters, block_linears
from workbench.estimate.attention import attention_kinds
from workbench.estimate.elements import LORA_LAYERS, REPLICATED
from workbench.estimate.stages import stages

SINGLE = Strategy(name="single")


class Product(NamedTuple):
    """One weight's matrix product in forward, on one rank and for one micro-batch."""

    name: str
    """The linear layer's name (see `counting.Linear`), or head."""
    m: float
    """Rows: tokens."""
    k: float
    """Inputs on this rank."""
    n: float
    """Outputs on this rank."""
    copies: float
    """Equal products (experts of this rank)."""
    adapter: int
    """Rank of a LoRA adapter beside it; 0 = none."""

    @property
    def flops(self) -> float:
        """Of one forward pass, adapters left out."""
        return 2.0 * self.m * self.k * self.n * self.copies


def block_products(workload: Workload, strategy: Strategy, *, moe: bool) -> tuple[Product, ...]:
    """Matrix products of one block's forward on one rank."""
    s = strategy
    return _products(workload, s.tp, s.cp, s.ep, s.expert_split, moe=moe)


@functools.lru_cache(maxsize=4096)
def _products(
    workload: Workload, tp: int, cp: int, ep: int, split: int, *, moe: bool
) -> tuple[Product, ...]:
    model = workload.model
    tokens = workload.tokens / cp
    products: list[Product] = []
    for linear in block_linears(model, moe=moe):
        if linear.name.startswith("expert_"):
            rows = tokens * model.experts_per_token * split / tp / (model.experts / ep)
            products.append(_expert(linear, rows, model.experts / ep, split))
            continue
        ways = 1 if linear.name in REPLICATED else tp
        row_parallel = linear.name in {"o", "down", "shared_down"}
        k = linear.inputs / (ways if row_parallel else 1)
        n = linear.outputs / (1 if row_parallel else ways)
        products.append(Product(linear.name, tokens, k, n, 1, _adapter(workload, linear.name)))
    return tuple(products)


def _expert(linear: Linear, rows: float, local: float, split: int) -> Product:
    """One matrix of each of a rank's experts, its share of the tokens spread evenly."""
    down = linear.name.endswith("down")
    k = linear.inputs / (split if down else 1)
    n = linear.outputs / (1 if down else split)
    return Product(linear.name, rows, k, n, local, 0)


def _adapter(workload: Workload, name: str) -> int:
    is_targeted = any(name in LORA_LAYERS.get(target, ()) for target in workload.lora_targets)
    return workload.lora_rank if is_targeted else 0


def head_product(workload: Workload, tp: int, cp: int) -> Product:
    """The logits' product on one rank."""
    model = workload.model
    rows = workload.micro_batch if model.one_answer else workload.tokens
    return Product("head", rows / cp, model.hidden, model.logit_width / tp, 1, 0)


def attention_flops(workload: Workload, tp: int = 1, cp: int = 1) -> float:
    """Scores and weighted values of one block's forward on one rank, the mean of all blocks.

    What the model needs: a causal mask halves them, windows and linear attention leave out more
    (`estimate/attention.py`).
    """
    return sum(kind.share * kind.flops for kind in attention_kinds(workload)) / (tp * cp)


def model_flops(workload: Workload) -> dict[str, float]:
    """FLOPs that the model itself needs for one micro-batch of one data-parallel rank, by part.

    Recomputation, padding and implementation detail are left out: the numerator of MFU. LoRA and
    `trained_layers` count what their backward really needs.

    >>> from workbench.describe import Model
    >>> work = Workload(model=Model.catalog("llama-3-8b"), seq_len=8192, micro_batch=1)
    >>> round(sum(model_flops(work).values()) / work.tokens / 1e9, 1)  # 45.0 without attention
    51.5
    """
    model = workload.model
    if model.measured is not None:
        return {"module": model.measured.flops(workload.micro_batch)}
    if model.traced is not None:
        return {"module": 6.0 * model.parameters * workload.tokens}
    per_pass = 1.0 if workload.lora_rank else 2.0
    (all_blocks,) = stages(model, SINGLE, 1, workload.trained_layers)
    parts = {"attention projections": 0.0, "MLP": 0.0, "experts": 0.0, "adapters": 0.0}
    for moe, count, entered in all_blocks.kinds:
        for product in block_products(workload, SINGLE, moe=moe):
            parts[_part(product.name)] += (count + per_pass * entered) * product.flops
            parts["adapters"] += count * adapter_flops(product)
    passes = model.layers + 2.0 * all_blocks.trained
    parts["attention scores"] = passes * attention_flops(workload)
    parts["head"] = (2.0 if workload.lora_rank else 3.0) * head_product(workload, 1, 1).flops
    return {name: flops for name, flops in parts.items() if flops}


def adapter_flops(product: Product) -> float:
    """Forward and backward of the LoRA adapter beside a product."""
    return 6.0 * product.m * product.adapter * (product.k + product.n) * product.copies


def _part(name: str) -> str:
    if name.startswith(("expert_", "router")):
        return "experts"
    return "MLP" if name.startswith(("gate", "up", "down", "shared_")) else "attention projections"


def flops_per_token(model: Model, seq_len: int, *, causal: bool = True) -> float:
    """Training FLOPs per token by the field's usual formula: 6 N + 6 L s width (12 if not causal).

    N leaves the embedding table out and counts the head once and only the experts that a token
    visits. Tools differ by the causal factor: compare rates only under one convention. Windows and
    linear attention count as full attention, as those tools count them.

    >>> round(flops_per_token(Model.catalog("llama-3-8b"), 8192, causal=False) / 1e9, 1)
    57.9
    """
    table = model.vocab * model.hidden if not model.tied_embeddings else 0
    positions = (model.max_positions + model.token_types) * model.hidden
    matmul = active_parameters(model) - table - positions
    width = (model.query_width + model.attention_width) / 2
    return 6.0 * matmul + (6.0 if causal else 12.0) * model.layers * seq_len * width


def recompute_flops(workload: Workload, strategy: Strategy, *, moe: bool) -> Mapping[str, float]:
    """Forward FLOPs of one block that backward repeats, on one rank: ``matmul`` and ``attention``.

    Full: everything but the block's last product, whose result is not needed (torch's checkpoint
    stops early). "op" keeps every second product and attention (torchtitan); "moe" repeats the
    experts' activation only.
    """
    products = block_products(workload, strategy, moe=moe)
    attention = attention_flops(workload, strategy.tp, strategy.cp)
    linear = sum(product.flops for product in products)
    if strategy.recompute == "none":
        return {"matmul": 0.0, "attention": 0.0}
    if strategy.recompute == "full":
        last = products[-1].flops
        return {"matmul": linear - last, "attention": attention}
    parts = strategy.recompute_parts
    matmul = 0.0
    if "op" in parts:
        matmul += linear / 2
    if "mlp" in parts:
        matmul += sum(p.flops for p in products if p.name.endswith(("gate", "up")))
    return {"matmul": matmul, "attention": attention if "attention" in parts else 0.0}

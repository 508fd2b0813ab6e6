"""Seconds of one transformer block on one rank, and of the head, for one micro-batch."""

from __future__ import annotations

from typing import NamedTuple

from workbench.describe import Strategy, Workload
from workbench.estimate.attention import attention_kinds
from workbench.estimate.context import RankContext
from workbench.estimate.fitted import fitted
from workbench.estimate.flops import (
    Product,
    block_products,
    head_product,
    recompute_flops,
)
from workbench.estimate.network import Groups, Links
from workbench.estimate.rates import Machine
from workbench.estimate.traffic import block_traffic


class PassTime(NamedTuple):
    """One direction of one block (or the head) for one micro-batch on one rank, in seconds."""

    matmul: float
    """Products with weights; in backward those for inputs' and weights' gradients."""
    attention: float
    """Scores, softmax and their product with the values."""
    pointwise: float
    """Norms, activations, residuals, casts: bound by memory bandwidth."""
    recompute: float = 0.0
    """What backward repeats of forward."""
    tp: float = 0.0
    """Exposed tensor-parallel communication."""
    ep: float = 0.0
    """Expert-parallel exchange of tokens."""
    cp: float = 0.0
    """Context-parallel exchange that attention does not hide."""
    host: float = 0.0
    """Waiting for the host, which launches each expert's operations."""


def computing(time: PassTime) -> float:
    """Seconds in which the GPU computes, communication left out."""
    return time.matmul + time.attention + time.pointwise + time.recompute


class BlockTime(NamedTuple):
    """One block (or the head) for one micro-batch on one rank."""

    forward: PassTime
    backward: PassTime
    launches: float
    """Operations that the host launches in forward."""


def block_time(
    context: RankContext,
    machine: Machine,
    network: Links,
    peers: Groups,
    *,
    moe: bool,
) -> BlockTime:
    """Time of one block."""
    workload, strategy = context.workload, context.strategy
    products = block_products(workload, strategy, moe=moe)
    slower = workload.kernels.expert_imbalance if strategy.ep > 1 else 1.0
    frozen, grouped = not context.trains, workload.kernels.grouped_experts
    forward = backward = 0.0
    for product in products:
        single, times = (product, 1.0) if grouped else _looped(product)
        times *= _weight(single, slower)
        forward += times * _forward(machine, single)
        backward += times * _backward(machine, single, frozen=frozen)
    kinds = _attention(workload, strategy, machine)
    attention = sum(kind.share * kind.forward for kind in kinds)
    attention_back = sum(kind.share * kind.backward for kind in kinds)
    traffic = block_traffic(workload, strategy, moe=moe)
    # each kernel between the products starts and drains too, however little it moves
    gaps = max(0.0, traffic.launches - len(products)) * fitted("kernel_seconds")
    moved = traffic.forward * fitted("pointwise") / machine.memory_bytes + gaps
    moved_back = traffic.backward * fitted("pointwise") / machine.memory_bytes + 2 * gaps
    recompute_seconds = _recompute(
        workload, strategy, products, (forward, attention, moved), moe=moe
    )
    tp_time = _tp_seconds(context, network, peers, moe=moe)
    repeated = 1.0 if strategy.recompute == "full" else 0.0
    ep_time = _ep_seconds(context, network, peers) if moe else 0.0
    waiting = _expert_launches(context) if moe else 0.0
    cp_time = _exposed_cp(strategy, kinds, _cp_seconds(context, network, peers))
    return BlockTime(
        forward=PassTime(
            matmul=forward,
            attention=attention,
            pointwise=moved,
            tp=tp_time,
            ep=ep_time,
            cp=cp_time[0],
            host=waiting,
        ),
        backward=PassTime(
            matmul=backward,
            attention=attention_back,
            pointwise=moved_back,
            recompute=recompute_seconds,
            tp=tp_time * (1 + repeated),
            ep=ep_time * (1 + repeated),
            cp=cp_time[1],
            host=waiting * (2 + repeated),  # gradients of inputs and of weights
        ),
        launches=traffic.launches,
    )


def _looped(product: Product) -> tuple[Product, float]:
    """Experts run one after another: one of the equal products, and their number."""
    if product.copies <= 1:
        return product, 1.0
    return product._replace(copies=1), product.copies


def _weight(product: Product, experts: float) -> float:
    """The rank with the most tokens sets the pace of its experts."""
    return experts if product.name.startswith("expert_") else 1.0


def _forward(machine: Machine, product: Product) -> float:
    seconds = machine.product_seconds(product.m, product.k, product.n, copies=product.copies)
    if product.adapter:
        seconds += machine.product_seconds(product.m, product.k, product.adapter, plain=True)
        seconds += machine.product_seconds(product.m, product.adapter, product.n, plain=True)
    return seconds


def _backward(machine: Machine, product: Product, *, frozen: bool) -> float:
    m, k, n, copies = product.m, product.k, product.n, product.copies
    seconds = machine.product_seconds(m, n, k, copies=copies)
    if not frozen:
        seconds += machine.product_seconds(k, m, n, copies=copies)
    if product.adapter:
        r = product.adapter
        for shape in ((m, r, k), (k, m, r), (m, n, r), (r, m, n)):
            seconds += machine.product_seconds(*shape, plain=True)
    return seconds


class _AttentionTime(NamedTuple):
    """Attention of one kind of blocks."""

    share: float
    """Of all blocks."""
    forward: float
    backward: float
    linear: bool


def _attention(
    workload: Workload, strategy: Strategy, machine: Machine
) -> tuple[_AttentionTime, ...]:
    """Fused attention, or the two products of the eager one (its passes are in the traffic).

    A kernel that does not skip what a window hides computes it.
    """
    times: list[_AttentionTime] = []
    for kind in attention_kinds(workload):
        flops = kind.computed / (strategy.tp * strategy.cp)
        if workload.attention == "eager" and not kind.linear:
            rate = machine.plain_flops * fitted("eager_attention")
            forward, backward = flops / rate, 2 * flops / rate
        else:
            piece = kind.piece
            if strategy.context.cp_method == "ring":  # computes with one rank's keys at a time
                piece = min(piece, workload.sequence / strategy.cp)
            forward = machine.attention_seconds(flops, piece, workload.model.head_width)
            backward = 2.5 * forward / fitted("attention_backward")
        times.append(_AttentionTime(kind.share, forward, backward, kind.linear))
    return tuple(times)


def _exposed_cp(
    strategy: Strategy, kinds: tuple[_AttentionTime, ...], exchange: tuple[float, float]
) -> tuple[float, float]:
    """What attention does not hide of the exchange: a ring sends while the last keys are used."""
    if strategy.context.cp_method != "ring":
        return exchange
    forward = backward = 0.0
    for kind in kinds:
        if not kind.linear:
            forward += kind.share * max(0.0, exchange[0] - kind.forward)
            backward += kind.share * max(0.0, exchange[1] - kind.backward)
    return forward, backward


def _recompute(
    workload: Workload,
    strategy: Strategy,
    products: tuple[Product, ...],
    spent: tuple[float, float, float],
    *,
    moe: bool,
) -> float:
    """Seconds that backward repeats of forward's (matmul, attention, pointwise)."""
    if strategy.recompute == "none":
        return 0.0
    matmul, attention, moved = spent
    repeated_flops = recompute_flops(workload, strategy, moe=moe)
    linear = sum(product.flops for product in products)
    pointwise = 1.0 if strategy.recompute == "full" else 0.0
    if strategy.recompute == "selective":
        parts = set(strategy.recompute_parts)
        pointwise = fitted("recomputed_norms") * ("norm" in parts)
        pointwise += fitted("recomputed_operations") * ("op" in parts)
        pointwise += fitted("recomputed_mlp") * ("mlp" in parts or "moe" in parts)
    share = repeated_flops["attention"] > 0
    return matmul * repeated_flops["matmul"] / linear + attention * share + moved * pointwise


def _tp_seconds(context: RankContext, network: Links, peers: Groups, *, moe: bool) -> float:
    """Exposed collectives of one forward pass: after attention and after the MLP."""
    strategy, model = context.strategy, context.model
    if strategy.tp == 1:
        return 0.0
    size = context.width.compute * context.workload.tokens / strategy.cp * model.hidden
    if strategy.sequence_parallel:
        once = 2 * network.gather_seconds(size, peers.tp)
    else:
        once = network.reduce_seconds(size, peers.tp)
    times = 1 if model.parallel_block or (moe and strategy.expert_split == 1) else 2
    return times * once * (1 - fitted("overlapped_tp") * strategy.overlap_tp)


def _ep_seconds(context: RankContext, network: Links, peers: Groups) -> float:
    """Tokens to their experts and back."""
    strategy, model = context.strategy, context.model
    if strategy.ep == 1:
        return 0.0
    token = context.width.compute * model.hidden
    tokens = context.workload.tokens / (strategy.tp * strategy.cp)
    dispatch = network.dispatch_seconds(token, tokens, model.experts_per_token, peers.ep)
    uneven = context.kernels.expert_imbalance
    return 2 * dispatch * uneven * (1 - fitted("overlapped_ep") * strategy.overlap_ep)


def _expert_launches(context: RankContext) -> float:
    """Host seconds of one forward pass to launch what each of a rank's experts does.

    Routing tells the host how many tokens each expert has, so it starts only once the GPU is there
    and nothing is queued ahead of it (tokens_per_expert.to("cpu"), Megatron's token_dispatcher.py).
    """
    kernels = context.kernels
    if kernels.grouped_experts or kernels.cuda_graphs:
        return 0.0
    return context.model.experts / context.strategy.ep * fitted("expert_seconds")


def _cp_seconds(context: RankContext, network: Links, peers: Groups) -> tuple[float, float]:
    """Exchange of one forward and one backward pass between the context ranks.

    Ring: the others' keys and values, and in backward their gradients too; a window does not make
    it shorter (Transformer Engine's and torch's rings know none), linear blocks send their small
    state alone, which is left out. Ulysses (arXiv
    2309.14509): queries, keys and values to the ranks of their heads in one all-to-all, the output
    back in another; backward the same again.
    """
    strategy, model = context.strategy, context.model
    if strategy.cp == 1:
        return 0.0, 0.0
    size = context.width.compute * context.workload.tokens
    token = size / (strategy.cp * strategy.tp)  # one rank's, per channel
    keys = model.key_width + model.value_width
    if strategy.context.cp_method == "ring":
        ring = network.gather_seconds(token * keys * strategy.cp, peers.cp)
        return ring, 2 * ring
    forward_gather = network.gather_seconds(token * (model.query_width + keys), peers.cp)
    backward_gather = network.gather_seconds(token * model.attention_width, peers.cp)
    return forward_gather + backward_gather, forward_gather + backward_gather


def head_time(context: RankContext, machine: Machine, network: Links, peers: Groups) -> BlockTime:
    """The logits' product and the loss."""
    workload, strategy = context.workload, context.strategy
    product = head_product(workload, strategy.tp, strategy.cp)
    forward = machine.product_seconds(product.m, product.k, product.n, plain=True)
    backward = machine.product_seconds(product.m, product.n, product.k, plain=True)
    if context.trains:
        backward += machine.product_seconds(product.k, product.m, product.n, plain=True)
    traffic = _loss_passes(workload)
    logits, rate = product.m * product.n, machine.memory_bytes
    size = 2.0 * product.m * product.k
    exposed = network.gather_seconds(size, peers.tp) if strategy.tp > 1 else 0.0
    forward_seconds, backward_seconds = 0.4 * traffic * logits / rate, 0.6 * traffic * logits / rate
    return BlockTime(
        forward=PassTime(matmul=forward, attention=0.0, pointwise=forward_seconds, tp=exposed),
        backward=PassTime(matmul=backward, attention=0.0, pointwise=backward_seconds, tp=exposed),
        launches=12.0,
    )


def _loss_passes(workload: Workload) -> float:
    """Bytes read and written per logit by softmax, loss and their backward."""
    if workload.loss == "fused" or workload.kernels.compiled_loss:
        return 10.0
    if workload.kernels.compiled:
        return 16.0
    return 40.0 if workload.kernels.logits_fp32 else 20.0

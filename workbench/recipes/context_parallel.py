"""Context parallelism: each rank works on a part of every sequence; only attention must talk.

    torchrun --nproc-per-node 2 context_parallel.py --seq-len 4096 --steps 20

What a position needs of the others, it needs in attention alone. Two ways to give it:

- ring: keys and values travel round the ranks; each rank's queries meet every part once and the
  partial results are merged by their log-sum-exp (arXiv 2310.01889). Any number of heads.
- ulysses: an all-to-all turns "some positions, all heads" into "all positions, some heads" around
  ordinary attention (arXiv 2309.14509). Less to send; the heads must be divisible by the ranks.

model_parallel.py joins this `split` with tensor, pipeline and data parallelism.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, see gpt.py
# An autograd.Function's types cannot be said; torch's kernels with a log-sum-exp are private.
# ruff: noqa: SLF001
# pyright: reportIncompatibleMethodOverride=false, reportAttributeAccessIssue=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence

from recipe_options import (
    Parser,
    add_gpt,
    add_steps,
    check_positive,
    complete_gpt,
    learning_rate,
    options_or_exit,
)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line and fill in what follows from it; ValueError if it cannot be."""
    parser = Parser(description="Share each sequence between the ranks.", allow_abbrev=False)
    add = parser.add_argument
    add_gpt(parser)
    add("--seq-len", type=int, default=256, help="bytes per sequence, over all ranks")
    add("--micro-batch", type=int, default=8, help="sequences per step, the same on every rank")
    add_steps(parser)
    add("--cp", type=int, default=int(os.environ.get("WORLD_SIZE", "1")), help="default: all ranks")
    add("--cp-method", choices=("ring", "ulysses"), default="ring")
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"warmup", "seed"})
    complete_gpt(parser, options)
    parts = options.cp * (2 if options.cp_method == "ring" else 1)
    if options.seq_len % parts:
        parser.error(f"--seq-len {options.seq_len} is not a multiple of {parts} parts")
    if options.cp_method == "ulysses" and options.heads % options.cp:
        parser.error(f"{options.heads} heads cannot be split over --cp {options.cp}: use ring")
    options.precision, options.accumulate, options.minutes = "fp32", 1, None
    return options


if __name__ == "__main__":
    OPTIONS = options_or_exit(parse_options)

import torch
import torch.distributed as dist
from corpus import Share, micro_batch, read_corpus
from gpt_model import GPT, Block, causal_attention, initialise
from gpt_model import loss as cross_entropy
from tensor_parallel import start
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

aten = torch.ops.aten
Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys and values, each [B, heads, L, d]


def has_flash(q: Tensor) -> bool:
    """Whether torch's flash attention takes these on a GPU: half precision, Ampere or newer."""
    fits = q.element_size() == 2 and q.size(-1) % 8 == 0
    return fits and torch.cuda.get_device_capability(q.device)[0] >= 8


def attend_part(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention over these keys alone [B, heads, L, d], and its log-sum-exp [B, heads, L]."""
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    if has_flash(q):
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]
    return attend_plainly(q, k, v, causal=causal)


def attend_part_backward(
    grad: Tensor, qkv: Heads, out: Tensor, lse: Tensor, *, causal: bool
) -> Heads:
    """What this part adds to the gradients of its q, k and v.

    `out` and `lse` are those of the attention over all keys: with them, the part's own share of
    the softmax is exp(score - lse), and the parts' gradients simply add up.
    """
    q, k, v = qkv
    saved = (grad, q, k, v, out, lse)
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(*saved, 0.0, causal)
    if has_flash(q):
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of the dropout there is not
        lengths = (None, None, q.size(2), k.size(2))
        flash = aten._scaled_dot_product_flash_attention_backward
        return flash(*saved, *lengths, 0.0, causal, seed, seed[:0])
    return attend_plainly_backward(grad, qkv, out, lse, causal=causal)


def attend_plainly(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """`attend_part` in the open: for fp32 on a GPU, which has no such kernel, and for readers."""
    scores = q @ k.mT / math.sqrt(q.size(-1))
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def attend_plainly_backward(
    grad: Tensor, qkv: Heads, out: Tensor, lse: Tensor, *, causal: bool
) -> Heads:
    """`attend_part_backward` in the open."""
    q, k, v = qkv
    scale = 1 / math.sqrt(q.size(-1))
    share = (q @ k.mT * scale - lse[..., None]).exp()
    share = share.tril() if causal else share
    d_scores = scale * share * (grad @ v.mT - (grad * out).sum(-1, keepdim=True))
    return d_scores @ k, d_scores.mT @ q, share.mT @ grad


def pass_on(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> Callable[[], list[Tensor]]:
    """Send these to the next rank of the ring; the result waits for those of the rank before."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    sent = [tensor.contiguous() for tensor in tensors]
    got = [torch.empty_like(tensor) for tensor in sent]
    after = dist.get_global_rank(group, (rank + 1) % ranks)
    before = dist.get_global_rank(group, (rank - 1) % ranks)
    exchange = [dist.P2POp(dist.isend, tensor, after, group) for tensor in sent]
    exchange += [dist.P2POp(dist.irecv, tensor, before, group) for tensor in got]
    works = dist.batch_isend_irecv(exchange)

    def arrived() -> list[Tensor]:
        for work in works:
            work.wait()
        return got

    return arrived


def visible(rank: int, source: int, half: int) -> tuple[slice, slice, bool]:
    """Which queries of `rank` see which keys of `source`, and whether a causal mask is needed.

    The sequence is cut into 2 x ranks pieces, and rank r has the r-th from the front and the r-th
    from the back: an early piece with little to read and a late one with much. So all ranks have
    the same work in each round: two of the four pairs of halves, nothing masked but the diagonal.
    """
    everything = slice(None)
    if source == rank:
        return everything, everything, True
    if source < rank:  # its early half lies before both of ours, its late half behind both
        return everything, slice(None, half), False
    return slice(half, None), everything, False  # the other way round: our late half sees it all


class Ring(torch.autograd.Function):
    """Causal attention over the sequences of all ranks of the ring, for this rank's queries."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup
    ) -> Tensor:
        """Merge what the queries find in each rank's keys; [B, heads, L / ranks, d]."""
        rank, ranks, half = dist.get_rank(group), dist.get_world_size(group), q.size(2) // 2
        out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        lse = torch.full(q.shape[:3], -math.inf, device=q.device)
        here = [k, v]
        for hop in range(ranks):
            coming = pass_on(here, group) if hop + 1 < ranks else list[Tensor]
            rows, keys, causal = visible(rank, (rank - hop) % ranks, half)
            k_part, v_part = (tensor[:, :, keys].contiguous() for tensor in here)
            part, part_lse = attend_part(q[:, :, rows], k_part, v_part, causal=causal)
            # Weights exp(lse - new) sum to one: the softmax over both sets of keys.
            new = torch.logaddexp(lse[:, :, rows], part_lse.float())
            old_weight = (lse[:, :, rows] - new).exp()[..., None]
            part_weight = (part_lse - new).exp()[..., None]
            out[:, :, rows] = old_weight * out[:, :, rows] + part_weight * part
            lse[:, :, rows] = new
            here = coming()
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The keys and values go round once more; their gradients travel with them, home."""
        group: dist.ProcessGroup = ctx.group
        q, k, v, out, lse = ctx.saved_tensors
        rank, ranks, half = dist.get_rank(group), dist.get_world_size(group), q.size(2) // 2
        d_q, d_k, d_v = (torch.zeros_like(tensor, dtype=torch.float32) for tensor in (q, k, v))
        here = [k, v]
        for hop in range(ranks):
            coming = pass_on(here, group) if hop + 1 < ranks else list[Tensor]
            rows, keys, causal = visible(rank, (rank - hop) % ranks, half)
            of_rows = [tensor[:, :, rows].contiguous() for tensor in (grad, q, out, lse)]
            k_part, v_part = (tensor[:, :, keys].contiguous() for tensor in here)
            parts = (of_rows[1], k_part, v_part)
            gradients = attend_part_backward(of_rows[0], parts, *of_rows[2:], causal=causal)
            d_q[:, :, rows] += gradients[0]
            d_k[:, :, keys] += gradients[1]
            d_v[:, :, keys] += gradients[2]
            here = coming()
            d_k, d_v = pass_on([d_k, d_v], group)() if ranks > 1 else (d_k, d_v)
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None


class Swap(torch.autograd.Function):
    """All-to-all: split dimension `cut` between the ranks, join their parts along `join`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, cut: int, join: int, group: dist.ProcessGroup
    ) -> Tensor:
        """Send the r-th piece to rank r."""
        ctx.back = (join, cut, group)
        sent = torch.stack(x.chunk(dist.get_world_size(group), cut)).contiguous()
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=group)
        return torch.cat([*got], join)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """The way back is the same exchange with the dimensions exchanged."""
        back = ctx.back
        return Swap.apply(grad, *back), None, None, None


def split(model: GPT, mesh: DeviceMesh, *, method: str, length: int) -> Tensor:
    """Make the model work on this rank's part of each sequence; returns the part's positions.

    The one-dimensional `mesh` has the ranks that share a sequence of `length`.
    """
    group, rank, ranks = mesh.get_group(), mesh.get_local_rank(), mesh.size()
    places = torch.arange(length, device=mesh.device_type)
    if method == "ulysses":
        places = places.chunk(ranks)[rank]
    else:  # see `visible`
        pieces = places.chunk(2 * ranks)
        places = torch.cat([pieces[rank], pieces[2 * ranks - 1 - rank]])

    @torch.compiler.disable  # a compiled block calls it as it is
    def ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Ring.apply(q.contiguous(), k.contiguous(), v.contiguous(), group)

    @torch.compiler.disable
    def ulysses(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gathered = (Swap.apply(tensor, 1, 2, group) for tensor in (q, k, v))
        return Swap.apply(causal_attention(*gathered), 2, 1, group)

    for block in model.modules():
        if isinstance(block, Block):
            block.attend = {"ring": ring, "ulysses": ulysses}[method]
            block.positions = places
    return places


def main(options: argparse.Namespace) -> None:
    """Train with context parallelism alone: all ranks see the same batch, each its part of it."""
    device = start()
    if dist.get_world_size() != options.cp:
        sys.exit(f"context_parallel.py: --cp {options.cp}, but {dist.get_world_size()} ranks run")
    mesh = init_device_mesh(device.type, (options.cp,), mesh_dim_names=("cp",))
    model = GPT(options.layers, options.hidden, options.heads).to(device)
    initialise(model, options.hidden, options.seed)
    places = split(model, mesh, method=options.cp_method, length=options.seq_len)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=True)
    data, share = read_corpus(options.seq_len)[0].to(device), Share(0, 1, options.micro_batch)
    for step in range(options.steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, options)
        key = 1_000_003 * options.seed + step
        batch = micro_batch(data, share, options.seq_len, key=key, index=0, of=1)
        inputs, targets = (part[:, places] for part in batch)
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        # Each rank has the mean over its own positions: the mean of the means is the whole's.
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        for tensor in (loss.detach(), *gradients):
            dist.all_reduce(tensor)
            tensor.div_(options.cp)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1:6d} | loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

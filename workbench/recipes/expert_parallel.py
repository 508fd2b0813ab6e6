"""Expert parallelism: each rank keeps some of every block's experts; tokens travel to them.

    torchrun --nproc-per-node 2 expert_parallel.py --experts 8 --steps 200

In a mixture of experts (arXiv 1701.06538) a router chooses for each token the few MLPs that it
visits, so a model has many weights and little work. Attention and the router are data parallel:
each rank has them whole and its own sequences. Of the experts a rank keeps 1/ep. An all-to-all
brings each token to the ranks of its experts, a second one brings the results back
(arXiv 2006.16668); the backward pass sends gradients the same ways. No token is dropped, so the
loss is that of one process.

Experts that no token visits learn nothing, and ranks wait for the one whose experts are visited
most: a second loss, added to that of the text, is least where all are visited alike
(arXiv 2101.03961). It counts the visits of one micro-batch, so with --accumulate it differs a bit.
"""

# ruff: noqa: E402 - the command line is read before torch is loaded, see gpt.py
# pyright: reportUnknownMemberType=false, reportIncompatibleMethodOverride=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import functools
import os
import sys
import time
from collections.abc import Iterable, Sequence

from recipe_options import (
    VOCABULARY,
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
    parser = Parser(description="Spread the experts of a small GPT.", allow_abbrev=False)
    add = parser.add_argument
    add_gpt(parser)
    add("--experts", type=int, default=4, help="MLPs of each block, over all ranks")
    add("--top-k", type=int, default=2, help="experts that each token visits")
    add("--balance", type=float, default=0.01, help="weight of the loss that evens out the visits")
    add("--seq-len", type=int, default=128, help="bytes per sequence")
    add("--micro-batch", type=int, default=8, help="sequences per micro-step and rank")
    add("--accumulate", type=int, default=1, help="micro-batches per step")
    add_steps(parser)
    add("--precision", choices=("fp32", "bf16"), default="fp32")
    add("--log-every", type=int, default=10, help="steps between printed lines")
    add("--ep", type=int, help="ranks that share the experts; default: all of them")
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"warmup", "seed", "balance"})
    complete_gpt(parser, options)
    options.ep = options.ep or int(os.environ.get("WORLD_SIZE", "1"))
    if options.experts % options.ep:
        parser.error(f"{options.experts} experts cannot be spread over --ep {options.ep} ranks")
    if options.top_k > options.experts:
        parser.error(f"--top-k {options.top_k}: there are {options.experts} experts")
    options.experts_per_token = options.top_k
    # Per block 4 h² attention, E experts of 8 h², the router E h; embedding and head V h.
    width, experts = options.hidden, options.experts
    block = 4 * width**2 + experts * (8 * width**2 + width)
    options.parameters = options.layers * block + 2 * VOCABULARY * width
    options.minutes = None
    return options


if __name__ == "__main__":
    OPTIONS = options_or_exit(parse_options)

import torch
import torch.distributed as dist
from corpus import Share, micro_batch, read_corpus
from gpt_model import GPT, Block, initialise
from gpt_model import loss as cross_entropy
from tensor_parallel import start
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class Exchange(torch.autograd.Function):
    """Rows of a matrix to other ranks, `out` of them to each in order; `back` come from each."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, rows: Tensor, out: list[int], back: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        """[sum of out, width] to [sum of back, width], ordered by the rank they come from."""
        ctx.exchange = out, back, group
        arrived = rows.new_empty(sum(back), rows.size(1))
        dist.all_to_all_single(arrived, rows.contiguous(), back, out, group)
        return arrived

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradients go where the rows came from."""
        out, back, group = ctx.exchange
        rows = grad.new_empty(sum(out), grad.size(1))
        dist.all_to_all_single(rows, grad.contiguous(), out, back, group)
        return rows, None, None, None


class Expert(nn.Module):
    """One MLP."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of rows [n, hidden]; n may be 0."""
        return self.down(self.up(x).relu().square())


class ExpertBlock(Block):
    """A block whose MLP is a mixture of experts, of which this rank has its part."""

    def __init__(
        self, hidden: int, heads: int, *, experts: int, top_k: int, mesh: DeviceMesh
    ) -> None:
        super().__init__(hidden, heads)
        del self.up, self.down
        self.count, self.top_k, self.group = experts, top_k, mesh.get_group("ep")
        each = experts // mesh["ep"].size()
        first = each * mesh.get_local_rank("ep")
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleDict({str(e): Expert(hidden) for e in range(first, first + each)})
        self.imbalance: Tensor | None = None  # of the last forward pass; 1 where visits are even
        self.visits: Tensor | None = None  # then, by expert, on all ranks

    def think(self, x: Tensor) -> Tensor:
        """Each token's experts, weighted; [B, L, hidden]."""
        rows = x.flatten(0, 1)
        likely = self.router(rows).float().softmax(-1)  # close scores must not become equal
        weights, chosen = likely.topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)  # by expert, and so by the rank that has it
        visits = chosen.flatten().bincount(minlength=self.count)
        results = self._visit(rows[order // self.top_k], visits)
        weighted = (results * weights.flatten()[order, None]).to(rows.dtype)
        self._note_balance(likely, visits)
        return torch.zeros_like(rows).index_add(0, order // self.top_k, weighted).view_as(x)

    def _visit(self, rows: Tensor, visits: Tensor) -> Tensor:
        """Send each row to its expert, and the results back into the same order."""
        each = len(self.experts)
        coming = torch.empty_like(visits)  # how many rows for each expert of ours, by their rank
        dist.all_to_all_single(coming, visits, group=self.group)
        out = visits.view(-1, each).sum(1).tolist()
        back = coming.view(-1, each).sum(1).tolist()
        here = Exchange.apply(rows, out, back, self.group)
        # They arrive by rank and then by expert; an expert takes those of all ranks at once.
        numbers = torch.arange(each, device=rows.device).repeat(len(back))
        order = numbers.repeat_interleave(coming).argsort(stable=True)
        parts = here[order].split(coming.view(-1, each).sum(0).tolist())
        done = torch.cat(
            [mlp(part) for mlp, part in zip(self.experts.values(), parts, strict=True)]
        )
        return Exchange.apply(done[order.argsort()], back, out, self.group)

    def _note_balance(self, likely: Tensor, visits: Tensor) -> None:
        """Experts x sum of (share of the visits on all ranks x mean likelihood)."""
        dist.all_reduce(visits)
        self.visits = visits
        self.imbalance = self.count * (visits / visits.sum() * likely.mean(0)).sum()


class Training:
    """The model with its experts spread, its gradients summed over those who share a weight."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.ranks = options, dist.get_world_size()
        grid = (self.ranks // options.ep, options.ep)
        self.mesh = init_device_mesh(device.type, grid, mesh_dim_names=("copies", "ep"))
        block = functools.partial(
            ExpertBlock, experts=options.experts, top_k=options.top_k, mesh=self.mesh
        )
        self.model = GPT(options.layers, options.hidden, options.heads, block=block)
        initialise(self.model, options.hidden, options.seed)
        self.model.to(device)
        self.blocks = [
            module for module in self.model.blocks.values() if isinstance(module, ExpertBlock)
        ]
        self.spread = [
            weight for expert_block in self.blocks for weight in expert_block.experts.parameters()
        ]
        spread = {id(weight) for weight in self.spread}
        self.replicated = [weight for weight in self.model.parameters() if id(weight) not in spread]
        half = options.precision == "bf16"
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=half)
        weights = [*self.replicated, *self.spread]
        self.optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), fused=True)

    def step(self, batches: Sequence[tuple[Tensor, Tensor]], lr: float) -> Tensor:
        """One optimizer step on this rank's batches; returns their mean loss of the text alone."""
        self.optimizer.param_groups[0]["lr"] = lr
        losses = [self._accumulate(*batch, 1 / len(batches)) for batch in batches]
        self._sum(self.replicated, self.mesh.get_group("copies"), self.mesh.get_group("ep"))
        self._sum(self.spread, self.mesh.get_group("copies"))
        self._clip(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack(losses).mean()

    def _accumulate(self, inputs: Tensor, targets: Tensor, share: float) -> Tensor:
        """Add the gradients of one micro-batch; returns its loss of the text alone."""
        with self.autocast:
            loss = cross_entropy(self.model(inputs), targets)
        uneven = [block.imbalance for block in self.blocks if block.imbalance is not None]
        trained = loss + self.options.balance * torch.stack(uneven).mean()
        # Scaled in its gradient, so that observers see the loss itself.
        trained.backward(torch.full_like(trained, share))
        return loss.detach()

    def _sum(self, weights: Iterable[nn.Parameter], *groups: dist.ProcessGroup) -> None:
        """Gradients of the mean loss: an expert has those of its ep ranks' tokens already."""
        for weight in weights:
            if weight.grad is None:  # an expert that no token has visited
                weight.grad = torch.zeros_like(weight)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients]).div_(self.ranks)
        for group in groups:
            dist.all_reduce(flat, group=group)
        for gradient, part in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))

    def _clip(self, limit: float) -> None:
        """By the true norm: every rank's experts count, what all have counts once."""
        squares = [
            nn.utils.get_total_norm([w.grad for w in part if w.grad is not None]).square()
            for part in (self.replicated, self.spread)
        ]
        dist.all_reduce(squares[1], group=self.mesh.get_group("ep"))
        norm = (squares[0] + squares[1]).sqrt()
        nn.utils.clip_grads_with_norm_([*self.replicated, *self.spread], limit, norm)

    def busiest(self) -> float:
        """Visits of the most visited expert over the mean, of all blocks; 1 = even."""
        visits = torch.stack(
            [block.visits for block in self.blocks if block.visits is not None]
        ).float()
        return (visits.amax(1) / visits.mean(1)).max().item()


def main(options: argparse.Namespace) -> None:
    """Train with expert and data parallelism: every rank has its own sequences."""
    device = start()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if ranks % options.ep:
        sys.exit(
            f"expert_parallel.py: {ranks} ranks run, which is not a multiple of --ep {options.ep}"
        )
    training = Training(options, device)
    if rank == 0:
        local = sum(weight.numel() for weight in training.model.parameters())
        print(f"{options.parameters:,} parameters, {local:,} of them on each of {ranks} ranks")
    data, _ = read_corpus(options.seq_len)
    share = Share(rank, ranks, options.micro_batch)
    since = time.perf_counter()
    for step in range(options.steps):
        key = 1_000_003 * options.seed + step
        indices = range(options.accumulate)
        batches = [
            micro_batch(data, share, options.seq_len, key=key, index=index, of=len(indices))
            for index in indices
        ]
        own = [(inputs.to(device), targets.to(device)) for inputs, targets in batches]
        loss = training.step(own, learning_rate(step, options))
        if (step + 1) % options.log_every == 0:
            dist.all_reduce(loss)
            if rank == 0:
                tokens = own[0][0].numel() * len(own) * ranks * options.log_every
                speed = tokens / (time.perf_counter() - since)
                print(
                    f"step {step + 1:6d} | loss {loss.item() / ranks:.4f} | {speed:,.0f} tokens/s"
                    f" | busiest expert {training.busiest():.2f} x the mean"
                )
            since = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(OPTIONS)  # pyright: ignore[reportPossiblyUnboundVariable] - bound above, same "if"

"""What DDP sends for its gradients: fewer bytes each (fp16, bf16), fewer numbers (PowerSGD, top-k).

Used by data_parallel.py beside this file; it needs torch alone. Every hook adds up what it hands
to the collectives, so that a saving is counted and not claimed.
"""

# torch's hooks and buckets are typed loosely.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future

UNCOMPRESSED_STEPS = (
    2  # DDP rebuilds its buckets after the first; an error kept per bucket begins then
)


class Traffic:
    """Bytes that this rank sends for gradients, as the ring algorithms send them."""

    def __init__(self) -> None:
        self.ranks = dist.get_world_size()
        self.steps = 0
        self.per_step = 0  # of the latest whole step
        self._now = 0.0

    def all_reduce(self, size: int) -> None:
        """A reduce-scatter and an all-gather of `size` bytes: 2 (n-1)/n of them from each rank."""
        self._now += 2 * (self.ranks - 1) / self.ranks * size

    def all_gather(self, own: int) -> None:
        """Each rank's `own` bytes go to all the others: what a sum of sparse tensors has to do."""
        self._now += (self.ranks - 1) * own

    def bucket_done(self, bucket: GradBucket) -> None:
        """The last bucket ends the step."""
        if bucket.is_last():
            self.steps += 1
            self.per_step, self._now = round(self._now), 0.0

    def __str__(self) -> str:
        return f"gradients: {self.per_step:,} bytes sent per step and rank"


class TopK:
    """The largest gradients of each bucket, by size; what is left is kept and added next time.

    Without the feedback a gradient that is never among the largest is never learnt from
    (Stich et al., arXiv 1809.07599; Karimireddy et al., arXiv 1901.09847).
    """

    def __init__(self, traffic: Traffic, density: float, *, feedback: bool) -> None:
        self.traffic, self.density, self.feedback = traffic, density, feedback
        self.errors = dict[int, Tensor]()  # by bucket

    def hook(self, _state: Any, bucket: GradBucket) -> Future[Tensor]:
        """Numbers and places of the largest, gathered from all ranks and added up."""
        gradient = bucket.buffer()
        if self.traffic.steps < UNCOMPRESSED_STEPS:
            return uncompressed(self.traffic, bucket)
        if self.feedback and (error := self.errors.get(bucket.index())) is not None:
            gradient.add_(error)
        places = gradient.abs().topk(max(1, int(self.density * gradient.numel()))).indices
        numbers = gradient[places]
        if self.feedback:
            left = gradient.clone()
            left[places] = 0
            self.errors[bucket.index()] = left
        own = torch.cat([numbers.float().view(torch.int32), places.int()])  # one exchange, not two
        self.traffic.all_gather(own.numel() * own.element_size())
        self.traffic.bucket_done(bucket)
        ranks = self.traffic.ranks
        gathered = [torch.empty_like(own) for _ in range(ranks)]

        def add_up(_sent: Any) -> Tensor:
            gradient.zero_()
            for tensor in gathered:  # in the order of the ranks: the same sum everywhere
                if tensor.is_cuda:  # this runs on a stream of its own, beside the backward pass
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
                theirs, at = tensor.chunk(2)
                gradient.index_add_(0, at.long(), theirs.view(torch.float32).to(gradient.dtype))
            return gradient.div_(ranks)

        return dist.all_gather(gathered, own, async_op=True).get_future().then(add_up)  # pyright: ignore[reportOptionalMemberAccess]


def uncompressed(traffic: Traffic, bucket: GradBucket) -> Future[Tensor]:
    """The gradients as they are: what DDP does by itself, counted."""
    buffer = bucket.buffer()
    traffic.all_reduce(buffer.numel() * buffer.element_size())
    traffic.bucket_done(bucket)
    return default_hooks.allreduce_hook(None, bucket)  # pyright: ignore[reportArgumentType]


def register(model: Any, options: argparse.Namespace) -> Traffic:
    """Compress what DDP sends. Accelerate's own switch for bf16 wants CUDA; the hook does not."""
    traffic, name = Traffic(), options.comm_hook
    if name == "topk":
        top = TopK(traffic, options.topk_density, feedback=not options.no_error_feedback)
        model.register_comm_hook(None, top.hook)
        return traffic
    # Low rank, with the error fed back: arXiv 1905.13727
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=UNCOMPRESSED_STEPS)

    def low_rank(_state: Any, bucket: GradBucket) -> Future[Tensor]:
        size, compressed = bucket.buffer().element_size(), state.iter >= UNCOMPRESSED_STEPS
        before = state.total_numel_after_compression
        sent = powerSGD_hook.powerSGD_hook(state, bucket)
        added = state.total_numel_after_compression - before
        traffic.all_reduce(size * (added if compressed else bucket.buffer().numel()))
        traffic.bucket_done(bucket)
        return sent

    def halved(_state: Any, bucket: GradBucket) -> Future[Tensor]:
        traffic.all_reduce(2 * bucket.buffer().numel())
        traffic.bucket_done(bucket)
        if name == "bf16":
            return default_hooks.bf16_compress_hook(None, bucket)  # pyright: ignore[reportArgumentType]
        return default_hooks.fp16_compress_hook(None, bucket)  # pyright: ignore[reportArgumentType]

    def plain(_state: Any, bucket: GradBucket) -> Future[Tensor]:
        return uncompressed(traffic, bucket)

    hooks = {"powersgd": low_rank, "fp16": halved, "bf16": halved, None: plain}
    model.register_comm_hook(None, hooks[name])
    return traffic

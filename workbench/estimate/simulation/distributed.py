"""What `torchrun` gives a user's own step: ranks in the environment, a process group, DDP.

The group is torch's fake one: every collective returns at once. DDP's reducer is C++ that touches
data, so the wrapper keeps its interface and allocates the reducer's buckets (see `buckets`).
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree

from workbench.estimate.simulation.buckets import BUCKET, Buckets
from workbench.estimate.simulation.cuda_queries import CARD
from workbench.estimate.simulation.replacements import Replacements
from workbench.estimate.simulation.tracker import Tracker

_MIB = 1 << 20


@contextlib.contextmanager
def ranks_of_one_process(tracker: Tracker, ranks: int) -> Generator[None]:
    """Rank 0 of `ranks`, for the code inside; its group exists from the start if there are more."""
    changes = Replacements()
    before = dict(os.environ)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    begin = dist.init_process_group

    def begin_fake(*_arguments: Any, **_options: Any) -> None:
        if not dist.is_initialized():
            begin("fake", store=FakeStore(), rank=0, world_size=ranks)

    try:
        for home in (dist, c10d):
            changes.set(home, "init_process_group", begin_fake)
            changes.set(home, "destroy_process_group", lambda *_group: None)
        _replace_ddp(changes, tracker, begin_fake)
        if ranks > 1:
            begin_fake()
        yield
    finally:
        changes.restore()
        os.environ.clear()
        os.environ.update(before)
        if dist.is_initialized():
            dist.destroy_process_group()


def _replace_ddp(changes: Replacements, tracker: Tracker, begin_group: Any) -> None:
    def create(
        wrapper: Any, module: Any, device_ids: Any = None, *arguments: Any, **options: Any
    ) -> None:
        del arguments
        begin_group()
        torch.nn.Module.__init__(wrapper)
        wrapper.module = module
        wrapper.device_ids = device_ids
        wrapper.process_group = options.get("process_group")
        wrapper.require_backward_grad_sync = True
        wrapper.static_graph = options.get("static_graph", False)
        wrapper.gradient_as_bucket_view = options.get("gradient_as_bucket_view", False)
        cap = options.get("bucket_cap_mb")
        trained = [each for each in module.parameters() if each.requires_grad]
        if not trained:
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter "
                "that requires a gradient."
            )
        wrapper.buckets = Buckets(
            trained,
            tracker,
            views=wrapper.gradient_as_bucket_view,
            bucket_bytes=BUCKET if cap is None else int(cap * _MIB),
        )

    def forward(wrapper: Any, *inputs: Any, **options: Any) -> Any:
        wrapper.buckets.sync = wrapper.require_backward_grad_sync
        if wrapper.device_ids:
            inputs, options = pytree.tree_map(_to_card, (inputs, options))
        return wrapper.module(*inputs, **options)

    changes.set(DistributedDataParallel, "__init__", create)
    changes.set(DistributedDataParallel, "forward", forward)
    changes.set(DistributedDataParallel, "train", torch.nn.Module.train)
    changes.set(DistributedDataParallel, "register_comm_hook", lambda *_hook: None)


def _to_card(value: Any) -> Any:
    return value.to(CARD) if isinstance(value, torch.Tensor) else value

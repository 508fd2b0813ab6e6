"""torchtitan's training of Llama in 2024, compact: the program behind its published measurements.

Kept from its source: complex rotary embedding, expanded key/value heads, fp32 logits returned by
the model, checkpoint wrappers inside FSDP groups, the last block not resharded after forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """One published run."""

    ranks: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    batch: int
    seq: int
    recompute: str  # full or op (every second matmul is kept)
    keeps_logits: bool  # before `del pred` was added to the loop in 2024


def training(shape: Shape) -> Callable[[], Iterator[None]]:
    """A step function for `simulate`."""

    def train() -> Iterator[None]:
        import torch
        from torch.nn import functional

        model = _model(shape)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        ids = torch.empty(shape.batch, shape.seq, dtype=torch.long)
        labels = torch.empty(shape.batch, shape.seq, dtype=torch.long)
        yield
        while True:
            logits = model(ids)
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1))
            if not shape.keeps_logits:
                del logits
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
            yield

    return train


def _model(shape: Shape) -> Any:
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from tests.estimate.titan_model import Llama

    with torch.device("meta"):
        model = Llama(shape)
    mesh = init_device_mesh("cpu", (shape.ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"preserve_rng_state": False}
    if shape.recompute == "op":
        options["context_fn"] = _every_second_matmul
    split = partial(fully_shard, mesh=mesh, mp_policy=policy)
    for index, block in enumerate(model.layers):
        wrapped = checkpoint_wrapper(block, **options)
        split(wrapped, reshard_after_forward=index < shape.layers - 1)
        model.layers[index] = wrapped
    split(model)
    return model.to_empty(device="cpu")


def _every_second_matmul() -> Any:
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    ops = torch.ops.aten
    kept = {ops.mm.default, ops._scaled_dot_product_flash_attention_for_cpu.default}
    seen = {True: 0, False: 0}

    def policy(context: Any, function: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if function is ops.mm.default:
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if function in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)

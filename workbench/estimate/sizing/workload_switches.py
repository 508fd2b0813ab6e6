"""Single changes of a workload that lower memory: what each costs, and how it is made.

Only changes that the described layout and libraries allow are offered; what they save is for
`switches` to find out. Costs in compute count a forward pass as 1 and a backward pass as 2 (1 with
LoRA: frozen weights get no gradient).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from workbench.describe import KERNELS, ImplementationAssumptions, Strategy, Workload
from workbench.describe.job import OF_PRESET
from workbench.estimate.sizing.change import Change

LORA_RANK = 16
_ADAM = frozenset({"adamw", "adamw-fused"})


def workload_changes(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    """Every change of the workload alone."""
    for family in (_loss, _attention, _kernels, _optimizer, _adapters, _batch, _precision):
        yield from family(workload, strategy)


def _loss(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    if workload.model.kind not in {"decoder", "encoder"}:
        return
    # Neither has whole logits that could be kept.
    none_kept = {"keep_logits": False} if workload.keep_logits else {}
    if workload.loss == "full":
        yield Change(
            workload={"loss": "chunked", **none_kept},
            name="chunked loss",
            cost=f"head and loss run {workload.loss_chunks} times on a slice: a few per cent of "
            "the head's time; the gradients are the same",
            in_practice="compute head and cross entropy chunk by chunk under checkpoint()",
        )
    if workload.loss != "fused" and strategy.tp == 1:
        yield Change(
            workload={"loss": "fused", **none_kept},
            name="fused loss",
            cost="no logits exist, so none can be returned or logged; needs Liger",
            in_practice="LigerFusedLinearCrossEntropyLoss, or use_liger_kernel=True",
        )
    if workload.keep_logits:
        yield Change(
            workload={"keep_logits": False},
            name="let go of the logits",
            cost="none",
            in_practice="keep out.loss and drop out before backward()",
        )


def _attention(workload: Workload, _: Strategy) -> Iterator[Change]:
    if workload.model.kind == "module":
        return
    if workload.attention == "eager":
        yield Change(
            workload={"attention": "sdpa"},
            name="sdpa attention",
            cost="none: faster too; attention weights cannot be returned",
            in_practice="attn_implementation='sdpa'",
        )
    elif workload.attention_mask:
        yield Change(
            workload={"attention": "flash", "attention_mask": False},
            name="flash attention, no mask",
            cost="padding is packed away (varlen) instead of masked",
            in_practice="attn_implementation='flash_attention_2' with a padding-free collator",
        )


def _kernels(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    kernels = workload.kernels
    fused: dict[str, Any] = {"norm": "fused", "activation": "fused"}
    compiled = fused | {"compiled": True}
    transformer = workload.model.kind != "module"
    if transformer and (kernels.norm, kernels.activation) != ("fused", "fused"):
        yield Change(
            kernels=fused,
            name="fused kernels",
            cost="none: faster too; needs Liger or a like kernel library",
            given=_preset(kernels, fused),
            in_practice="use_liger_kernel=True (Trainer), or liger_kernel's "
            "apply_liger_kernel_to_…",
        )
    if transformer and not kernels.compiled:
        yield Change(
            kernels=compiled,
            name="torch.compile",
            cost="minutes of compilation, again for every new shape; steps are faster afterwards",
            given=_preset(kernels, compiled),
            in_practice="block.compile()",
        )
    if not kernels.expandable_segments:
        yield Change(
            kernels={"expandable_segments": True},
            name="expandable segments",
            cost="none known; an environment variable read at start",
            in_practice="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )
    if kernels.whole_before_sharding and strategy.shard_ranks > 1:
        yield Change(
            kernels={"whole_before_sharding": False},
            name="build on the meta device",
            cost="none: weights are loaded shard by shard",
            in_practice="with torch.device('meta'): build; fully_shard; to_empty; load the shards",
        )
    if workload.accumulate == 1 and strategy.world_size == 1 and not kernels.optimizer_in_backward:
        yield Change(
            kernels={"optimizer_in_backward": True},
            name="optimizer in backward",
            cost="no gradient clipping by the global norm, no accumulation",
            in_practice="param.register_post_accumulate_grad_hook(step and free)",
        )


def _preset(kernels: ImplementationAssumptions, change: Mapping[str, Any]) -> dict[str, Any] | None:
    """The preset that makes the change and no other, where a preset was all that was given.

    None = none does: the options of what changes do.
    """
    before, after = (
        next(
            (
                name
                for name, preset in KERNELS.items()
                if _of_preset(preset) == _of_preset(assumptions)
            ),
            "",
        )
        for assumptions in (kernels, replace(kernels, **change))
    )
    return {"kernels": after} if before and after else None


def _of_preset(kernels: ImplementationAssumptions) -> list[Any]:
    return [getattr(kernels, field) for field in sorted(OF_PRESET)]


def _optimizer(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    optimizer = workload.optimizer
    if optimizer == "adamw":
        yield Change(
            workload={"optimizer": "adamw-fused"},
            name="fused AdamW",
            cost="none: faster too, the same arithmetic in one kernel",
            in_practice="torch.optim.AdamW(..., fused=True)",
        )
    sharded = strategy.shard_ranks > 1 or strategy.zero_stage is not None
    # torchao, which knows FSDP2's sharded tensors, has no Lion.
    with_8_bits = _ADAM if sharded else _ADAM | {"lion"}
    if optimizer in with_8_bits and strategy.zero_stage is None:
        eight = "lion-8bit" if optimizer == "lion" else "adamw-8bit"
        library = "torchao" if sharded else "bitsandbytes"
        yield Change(
            workload={"optimizer": eight},
            name="8-bit Lion" if optimizer == "lion" else "8-bit AdamW",
            cost=f"moments are rounded to 8 bits in blocks of 256; needs {library}",
            in_practice=f"{library}.optim.{'Lion8bit' if optimizer == 'lion' else 'AdamW8bit'}",
            changes_result=True,
        )
    if optimizer in _ADAM and not sharded and "optimizer" not in strategy.offload:
        yield Change(
            workload={"optimizer": "paged-adamw"},
            name="paged AdamW",
            cost="under pressure the moments page over PCIe at every step; needs bitsandbytes",
            in_practice="bitsandbytes.optim.PagedAdamW32bit",
            on_host=("optimizer states",),
        )


def _adapters(workload: Workload, _: Strategy) -> Iterator[Change]:
    if workload.model.kind == "module" or workload.trained_layers is not None:
        return
    targets = ",".join(workload.lora_targets)
    if not workload.lora_rank:
        yield Change(
            workload={"lora_rank": LORA_RANK},
            name=f"LoRA r{LORA_RANK}",
            cost=f"only adapters on {targets} learn: for fine-tuning, not for pretraining",
            in_practice=f"peft.LoraConfig(r={LORA_RANK}, target_modules=…)",
            changes_result=True,
        )
    if workload.quantization == "none":
        rank = workload.lora_rank or LORA_RANK
        change: dict[str, object] = {"quantization": "nf4"}
        change |= {} if workload.lora_rank else {"lora_rank": rank}
        yield Change(
            workload=change,
            name=f"QLoRA nf4 r{rank}",
            cost="the frozen weights are rounded to 4 bits and unpacked at every use: slower than "
            "LoRA; fine-tuning only",
            in_practice="BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4') + peft",
            changes_result=True,
        )


def _batch(workload: Workload, _: Strategy) -> Iterator[Change]:
    batch = workload.micro_batch
    if batch == 1 or workload.kernels.optimizer_in_backward:
        return
    factor = next((n for n in (2, 3, 5, 7) if batch % n == 0), batch)
    yield Change(
        workload={"micro_batch": batch // factor, "accumulate": workload.accumulate * factor},
        name="micro-batch halved" if factor == 2 else f"micro-batch / {factor}",
        cost=f"none in the maths (accumulate {workload.accumulate * factor} instead of "
        f"{workload.accumulate}), smaller matmuls; accumulation keeps the gradients alive "
        "through the forward passes",
        in_practice="gradient_accumulation_steps",
    )


def _precision(workload: Workload, _: Strategy) -> Iterator[Change]:
    if workload.precision == "fp32":
        yield Change(
            workload={"precision": "bf16"},
            name="bf16 mixed precision",
            cost="none: faster on GPUs with bf16; activations are rounded to 8 significant bits",
            in_practice="mixed_precision='bf16'",
            changes_result=True,
        )
    if workload.precision in {"bf16", "fp16", "fp8"} and not workload.lora_rank:
        yield Change(
            workload={"precision": "bf16-pure"},
            name="pure bf16 states",
            cost="updates below half a bf16 spacing (1/512 to 1/256 of the weight) are lost "
            "without stochastic rounding",
            in_practice="model.to(torch.bfloat16), no autocast",
            changes_result=True,
            usual="8bit" in workload.optimizer or "4bit" in workload.optimizer,
        )

"""Which requests this simulation can express: everything else is refused with its reason.

A field that is not named here and has another value than its default is refused too, so that a
field added to the values later is never silently ignored.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from workbench.describe import Model, Strategy, Workload
from workbench.estimate.simulation.refusal import CannotSimulateError

_KERNELS = {
    *("logits_fp32", "fp32_logits_returned", "expandable_segments", "gathered_inputs"),
    *("quantized_inputs", "fp32_unquantized"),
}
_WORKLOAD = {
    *("model", "seq_len", "micro_batch", "accumulate", "precision", "optimizer", "lora_rank"),
    *("lora_targets", "adapter_bytes", "trained_layers", "attention", "attention_mask", "loss"),
    *("loss_chunks", "keep_logits", "kernels", "variable_length", "quantized_head"),
    "quantization",
}
_STRATEGY = {
    *("name", "dp_replicate", "dp_shard", "tp", "pp", "reshard_after_forward", "schedule"),
    *("sequence_parallel", "recompute", "recompute_parts", "recompute_layers", "bucket_views"),
    *("sync_every_micro_batch", "offload_device", "gather_bucket", "reduce_bucket"),
    *("live_parameters", "offload"),
}
_MODEL = {
    *("name", "layers", "hidden", "heads", "mlp_hidden", "vocab", "kind", "kv_heads", "head_dim"),
    *("gated_mlp", "norm", "norms_per_block", "qk_norm", "qkv_bias", "out_bias", "mlp_bias"),
    *("position", "max_positions", "tied_embeddings", "final_norm", "embedding_norm", "head_bias"),
    *("mlm_head", "token_types", "pooler", "dropout", "image_size", "patch_size", "experts"),
    *("experts_per_token", "expert_hidden", "dense_layers", "fused_qkv", "unused_positions"),
}


def uses_autocast(workload: Workload, strategy: Strategy) -> bool:
    """Whether weights are cast per operation instead of by FSDP's policy."""
    return workload.precision in {"bf16", "fp16"} and strategy.dp_shard == 1


def refuse_unsupported(workload: Workload, strategy: Strategy) -> None:
    """Say which part of the request only the closed form covers.

    Raises:
        CannotSimulateError: with the first reason.
    """
    reasons = {
        **_of_layout(workload, strategy),
        **_of_model(workload.model),
        **_of_work(workload, strategy),
    }
    if strategy.tp > 1:
        reasons |= _of_tensor_parallel(workload, strategy)
    if strategy.pp > 1:
        reasons |= _of_pipeline(workload, strategy)
    for reason, applies in reasons.items():
        if applies:
            raise CannotSimulateError(f"{reason}.")
    for name, value, supported in (
        ("workload", workload, _WORKLOAD),
        ("strategy", strategy, _STRATEGY),
        ("model", workload.model, _MODEL),
        ("kernels", workload.kernels, _KERNELS | {"separate_casts"}),
    ):
        _refuse_unsupported_fields(name, value, supported)


def _of_layout(workload: Workload, strategy: Strategy) -> dict[str, bool]:
    casts = workload.kernels.separate_casts
    moved = [part for part in strategy.offload if part != "activations"]
    return {
        "DeepSpeed's and Megatron's ZeRO engines work on real memory; the closed form has their "
        "buckets, and fsdp and fsdp-grad-op shard what zero3 and zero2 shard": bool(
            strategy.zero_stage
        ),
        "context-parallel attention is not built here": strategy.cp > 1,
        "expert parallelism is not built here": strategy.ep > 1,
        f"offload of {' and '.join(moved)} is not built here": bool(moved),
        "kernels.separate_casts contradicts the precision and the layout": casts
        not in {None, uses_autocast(workload, strategy)},
        "gathering inputs again in backward is Megatron's": strategy.sequence_parallel
        and not workload.kernels.gathered_inputs,
    }


def _of_model(model: Model) -> dict[str, bool]:
    rotary = model.kind == "decoder" and model.position == "rope"
    return {
        "a module outside transformers is only simulated as a step function": model.kind
        == "module",
        "multi-head latent attention (MLA) is not built here": bool(model.kv_lora_rank),
        "attention and MLP in parallel are not built here": model.parallel_block,
        f"{model.position!r} positions are not built here": model.position in {"alibi", "none"}
        and model.kind == "decoder",
        f"the norm {model.norm!r} is not built here": model.norm not in {"rmsnorm", "layernorm"},
        "shared experts are not built here": bool(model.shared_expert_hidden),
        f"{model.extra_parameters:,} parameters stand outside the blocks": bool(
            model.extra_parameters
        ),
        "dropout does not exist in these blocks": rotary and bool(model.dropout),
        "one matrix for q, k and v with rotary positions is not built here": rotary
        and model.fused_qkv,
        "layer norms with rotary positions are not built here": rotary and model.norm != "rmsnorm",
        "rotary positions without a gated MLP are not built here": rotary and not model.gated_mlp,
    }


def _of_work(workload: Workload, strategy: Strategy) -> dict[str, bool]:
    return {
        "fp8 needs a GPU's kernels": workload.precision == "fp8",
        "vision models take no attention mask": workload.attention_mask
        and workload.model.kind == "vision",
        f"{workload.quantization} weights need a GPU's kernels": workload.quantization
        not in {"none", "nf4", "nf4-dq"},
        "4-bit weights are only simulated on one GPU or replicated (DDP)": workload.quantization
        != "none"
        and (strategy.dp_shard > 1 or strategy.tp > 1 or strategy.pp > 1),
        "a fused loss (Liger) needs a GPU's kernels": workload.loss == "fused",
        "torch.compile's memory is not modelled": workload.kernels.compiled
        or workload.kernels.compiled_loss,
        "LoRA is only built for models with rotary positions": bool(workload.lora_rank)
        and (workload.model.kind != "decoder" or workload.model.position != "rope"),
        "adafactor and muon over sharded parameters are not built here": workload.optimizer
        in {"adafactor", "muon"}
        and (strategy.dp_shard > 1 or strategy.tp > 1),
    }


def _of_tensor_parallel(workload: Workload, strategy: Strategy) -> dict[str, bool]:
    model, tp = workload.model, strategy.tp
    return {
        "tensor parallelism is only built for dense models with rotary positions": bool(
            model.position != "rope" or model.kind != "decoder" or model.experts
        ),
        "LoRA under tensor parallelism is not built here": bool(workload.lora_rank),
        "qk norms under tensor parallelism are not built here": model.qk_norm,
        "a loss in chunks over a split head is not built here": workload.loss != "full",
        "eager attention under sequence parallelism is not built here": strategy.sequence_parallel
        and (workload.attention == "eager" or workload.attention_mask),
        f"{model.key_value_heads} key/value heads over {tp} ranks": bool(
            model.key_value_heads % tp
        ),
        f"a sequence that {tp} ranks do not divide": strategy.sequence_parallel
        and bool(workload.seq_len % tp),
    }


def _of_pipeline(workload: Workload, strategy: Strategy) -> dict[str, bool]:
    model, pipeline = workload.model, strategy.pipeline
    return {
        f"the schedule {pipeline.schedule!r} is not built here": pipeline.virtual_stages > 1
        or pipeline.schedule not in {"1f1b", "gpipe", "naive"},
        "tied embeddings on two pipeline stages are not built here": model.tied_embeddings,
        "training only some layers of a pipeline is not built here": workload.trained_layers
        is not None,
        f"{model.layers} blocks on {strategy.pp} stages": model.layers < strategy.pp,
        "pipeline stages are only built for models with rotary positions": model.kind != "decoder"
        or model.position != "rope",
    }


def _refuse_unsupported_fields(holder: str, value: Any, supported: set[str]) -> None:
    """Refuse a field that is neither supported nor at its default."""
    for field in fields(value):
        current = getattr(value, field.name)
        if field.name in supported or current == _default(field):
            continue
        if holder == "strategy" and is_dataclass(current):  # one library's options
            _refuse_unsupported_fields(holder, current, supported)
            continue
        kind = "another library's" if holder == "kernels" else "not built here"
        raise CannotSimulateError(f"{holder}.{field.name} = {current!r} is {kind}.")


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default

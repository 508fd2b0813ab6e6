"""torchtune's YAML recipes."""

from __future__ import annotations

from workbench.trainer_configs.format import Format, Group
from workbench.trainer_configs.limits import FSDP2_OPTIMIZERS, Companion, Impossible
from workbench.trainer_configs.rules import ANY, MANY, Choice, Names, Number, switch

_BUILDERS = {
    "llama2": {"llama2_7b": "llama-2-7b", "llama2_13b": "llama-2-13b", "llama2_70b": "llama-2-70b"},
    "llama3": {"llama3_8b": "llama-3-8b", "llama3_70b": "llama-3-70b"},
    "llama3_1": {
        "llama3_1_8b": "llama-3.1-8b",
        "llama3_1_70b": "llama-3.1-70b",
        "llama3_1_405b": "llama-3.1-405b",
    },
    "llama3_2": {"llama3_2_1b": "llama-3.2-1b", "llama3_2_3b": "llama-3.2-3b"},
    "llama3_3": {"llama3_3_70b": "llama-3.3-70b"},
    "mistral": {"mistral_7b": "mistral-7b"},
    "gemma": {"gemma_2b": "gemma-2b", "gemma_7b": "gemma-7b"},
    "gemma2": {"gemma2_2b": "gemma-2-2b", "gemma2_9b": "gemma-2-9b", "gemma2_27b": "gemma-2-27b"},
    "phi3": {"phi3_mini": "phi-3-mini"},
    "phi4": {"phi4_14b": "phi-4"},
    "qwen2_5": {
        "qwen2_5_0_5b": "qwen2.5-0.5b",
        "qwen2_5_1_5b_instruct": "qwen2.5-1.5b",
        "qwen2_5_1_5b_base": "qwen2.5-1.5b",
        "qwen2_5_3b": "qwen2.5-3b",
        "qwen2_5_7b_instruct": "qwen2.5-7b",
        "qwen2_5_7b_base": "qwen2.5-7b",
        "qwen2_5_14b_instruct": "qwen2.5-14b",
        "qwen2_5_14b_base": "qwen2.5-14b",
        "qwen2_5_32b_instruct": "qwen2.5-32b",
        "qwen2_5_32b_base": "qwen2.5-32b",
        "qwen2_5_72b_instruct": "qwen2.5-72b",
        "qwen2_5_72b_base": "qwen2.5-72b",
    },
    "qwen2": {
        "qwen2_0_5b": "qwen2.5-0.5b",
        "qwen2_1_5b": "qwen2.5-1.5b",
        "qwen2_7b": "qwen2.5-7b",
    },
    "qwen3": {
        **{
            f"qwen3_{size.replace('.', '_')}_{kind}": f"qwen3-{size}"
            for size in ("0.6b", "1.7b", "4b", "8b", "14b")
            for kind in ("instruct", "base")
        },
        "qwen3_32b": "qwen3-32b",
    },
}
"""Module below torchtune.models -> its builders -> the catalog's model of that shape."""
_PREFIXES = (
    ("", None, False, "none"),
    ("lora_", None, True, "none"),
    ("lora_", True, True, "nf4-dq"),
    ("qlora_", ANY, True, "nf4-dq"),
)
"""Of a builder: prefix, model.quantize_base, whether adapters are trained, quantization."""
_BUILT = tuple(
    ((f"torchtune.models.{module}.{prefix}{name}", base), (model, lora, kind))
    for prefix, base, lora, kind in _PREFIXES
    for module, builders in _BUILDERS.items()
    for name, model in builders.items()
)
_ATTENTION = {"q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",), "output_proj": ("o",)}
_OF_LORA = {"lora": True}
_MAIN = "2025-05"  # after the last release, 0.6.1
_PLANNED = frozenset(
    name
    for module, builders in _BUILDERS.items()
    if module.startswith("llama3")
    for name in builders.values()
)
_UNPLANNED = frozenset(name for builders in _BUILDERS.values() for name in builders.values())
_IMPOSSIBLE = (
    Impossible(
        when={"cp": MANY},
        until=_MAIN,
        reason="context parallelism is in no release, only in its source from May 2025 on "
        "(--trainer torchtune@2025-05)",
    ),
    Impossible(
        when={"dp_replicate": MANY},
        until=_MAIN,
        reason="its releases shard over all ranks, and read no other degree; give fsdp",
    ),
    Impossible(
        when={"model_id": frozenset(_BUILDERS["qwen3"].values())},
        until=_MAIN,
        reason="Qwen 3 is in no release, only in its source from May 2025 on "
        "(--trainer torchtune@2025-05)",
    ),
    Impossible(
        when={"tp": MANY, "lora": True},
        reason="its recipe for LoRA has no tensor parallelism; give fsdp",
    ),
    Impossible(
        when={"tp": MANY, "model_id": _UNPLANNED - _PLANNED},
        reason="its plan of tensor parallelism is for Llama 3 alone; give fsdp",
    ),
    Impossible(
        when={"tp": MANY, "optimizer": "adamw-fused"},
        reason="beside tensor parallelism its optimizer must not be fused; give adamw",
    ),
    Impossible(
        when={"optimizer_in_backward": True, "accumulate": MANY},
        reason="an optimizer in backward cannot accumulate gradients; give accumulate 1",
    ),
    Impossible(
        when={"optimizer_in_backward": True, "lora": True},
        reason="its recipe for LoRA has no optimizer in backward; leave it out",
    ),
    Impossible(
        when={"tp": MANY, "offload_parameters": True, "dp_shard": 1, "dp_replicate": 1},
        reason="beside tensor parallelism it offloads only where FSDP shards; give fsdp4-tp2",
    ),
    Impossible(
        when={"offload_activations": True, "recompute": "none"},
        reason="it offloads activations only beside recompute full",
    ),
    FSDP2_OPTIMIZERS,
)

TORCHTUNE = Format(
    trainer="torchtune",
    syntax="yaml",
    file="recipe.yaml",
    signatures=(("model._component_",), ("tokenizer._component_",)),
    command="tune run --nnodes {nodes} --nproc_per_node {gpus} {recipe} --config {file}",
    recipes=(
        ("full_finetune_distributed", {"lora": False}),
        ("lora_finetune_distributed", {"lora": True}),
    ),
    assumed={"data_parallel": "fsdp"},
    left_open="tokenizer, checkpoint, data, learning rate, number of epochs",
    lacks={
        "model": "it builds models with functions of its own, and none known has this shape",
        "precision": "its weights, gradients and optimizer have one dtype, bf16 or fp32 "
        "(bf16-pure, fp32)",
        "pp": "it has no pipeline parallelism",
        "ep": "it has no expert parallelism",
        "zero_stage": "it shards with FSDP2, not with ZeRO",
        "dp_replicate": "it shards over all ranks; give fsdp",
        "sequence_parallel": "its plans for tensor parallelism do not split the sequence",
        "attention": "it has PyTorch's sdpa alone",
        "quantization": "it quantizes frozen weights to nf4 with double quantization (nf4-dq)",
    },
    objectives={"loss._component_": ("*rlhf*", "*grpo*"), "teacher_model": ("*",)},
    impossible=_IMPOSSIBLE,
    companions=(
        Companion(
            when={"tp": MANY},
            keys={"tensor_parallel_plan._component_": "torchtune.models.llama3.base_llama_tp_plan"},
        ),
    ),
    adapters={"model.use_dora": (None, False)},
    harmless=(
        *("tokenizer.*", "checkpointer.*", "dataset.*", "lr_scheduler.*", "metric_logger.*"),
        *("profiler.*", "optimizer.lr", "optimizer.weight_decay", "optimizer.betas", "seed"),
        *("model.lora_alpha", "model.lora_dropout", "save_adapter_weights_only"),
        *("log_*", "tensor_parallel_plan*", "enable_async_checkpointing", "custom_sharded_layers"),
        *("resume_from_checkpoint", "clip_grad_norm", "batch_size_val", "collate_fn"),
        *("optimizer.foreach", "memory_efficient_fsdp_wrap", "loss.num_output_chunks"),
        "shuffle",
    ),
    groups=(
        Group(
            source="pytorch/torchtune torchtune/models/*/_model_builders.py 0.6.1",
            rules=(
                Choice(
                    keys=("model._component_", "model.quantize_base"),
                    fields=("model_id", "lora", "quantization"),
                    rows=_BUILT,
                ),
                Number(key="model.lora_rank", field="lora_rank", default=8, when=_OF_LORA),
                Names(
                    key="model.lora_attn_modules",
                    field="lora_attention",
                    words=_ATTENTION,
                    when=_OF_LORA,
                ),
                Choice(
                    keys=("model.apply_lora_to_mlp", "model.apply_lora_to_output"),
                    fields=("lora_mlp", "lora_head"),
                    when=_OF_LORA,
                    rows=(
                        ((True, None), (True, False)),
                        ((None, True), (False, True)),
                        ((True, True), (True, True)),
                        ((None, None), (False, False)),
                    ),
                ),
            ),
        ),
        Group(
            source="pytorch/torchtune recipes/configs/llama3_1/70B_full.yaml, "
            "recipes/full_finetune_distributed.py 0.6.1",
            rules=(
                Number(key="tokenizer.max_seq_len", field="seq_len"),
                Choice(
                    keys=("dataset.packed",),
                    fields=("variable_length",),
                    rows=(((True,), (False,)), ((False,), (True,))),
                ),
                Number(key="batch_size", field="micro_batch", default=1),
                Number(key="gradient_accumulation_steps", field="accumulate", default=1),
                Number(key="tensor_parallel_dim", field="tp", default=1),
                Number(key="context_parallel_dim", field="cp", default=1),
                Number(key="data_parallel_replicate_dim", field="dp_replicate", default=1),
                Number(key="data_parallel_shard_dim", field="dp_shard"),
                Choice(
                    keys=("dtype",),
                    fields=("precision",),
                    rows=((("bf16",), ("bf16-pure",)), (("fp32",), ("fp32",))),
                ),
                Choice(
                    keys=("enable_activation_checkpointing", "ac_mode"),
                    fields=("recompute", "recompute_layers"),
                    rows=(
                        ((True, None), ("full", None)),
                        ((False, None), ("none", ANY)),
                        ((None, None), ("none", ANY)),
                        ((ANY, "full"), ("full", ANY)),
                    ),
                ),
                switch("enable_activation_offloading", "offload_activations"),
                Choice(
                    keys=("fsdp_cpu_offload",),
                    fields=("offload_optimizer", "offload_parameters"),
                    rows=(((True,), (True, True)), ((None,), (False, False))),
                ),
                Choice(
                    keys=("fsdp_reshard_after_forward",),
                    fields=("reshard_after_forward",),
                    rows=(((False,), (False,)), ((None,), (True,)), ((True,), (True,))),
                ),
                switch("compile", "compiled"),
                switch("optimizer_in_bwd", "optimizer_in_backward"),
                Choice(
                    keys=("optimizer._component_", "optimizer.fused"),
                    fields=("optimizer", "fused_optimizer"),
                    rows=(
                        (("torch.optim.AdamW", True), ("adamw-fused", ANY)),
                        (("torch.optim.AdamW", None), ("adamw", False)),
                        (("bitsandbytes.optim.AdamW8bit", None), ("adamw-8bit", ANY)),
                        (("bitsandbytes.optim.PagedAdamW", None), ("paged-adamw", ANY)),
                        (("bitsandbytes.optim.PagedAdamW8bit", None), ("paged-adamw-8bit", ANY)),
                        (("bitsandbytes.optim.Lion", None), ("lion", ANY)),
                        (("bitsandbytes.optim.Lion8bit", None), ("lion-8bit", ANY)),
                        (("torch.optim.SGD", None), ("sgd", ANY)),
                    ),
                ),
            ),
        ),
        Group(
            source="pytorch/torchtune torchtune/modules/loss/__init__.py 0.6.1 and main",
            rules=(
                Choice(
                    keys=("loss._component_",),
                    fields=("loss",),
                    rows=(
                        (("torchtune.modules.loss.CEWithChunkedOutputLoss",), ("chunked-output",)),
                        (("torchtune.modules.loss.LinearCrossEntropyLoss",), ("chunked",)),
                        (("torch.nn.CrossEntropyLoss",), ("full",)),
                    ),
                ),
            ),
        ),
    ),
)

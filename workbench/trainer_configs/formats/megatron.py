"""Megatron-LM's arguments; they give the model by its shape."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.trainer_configs.document import Document
from workbench.trainer_configs.fields import dense_layers
from workbench.trainer_configs.format import Format, Group
from workbench.trainer_configs.limits import NEEDS_GPUS, Companion, Impossible
from workbench.trainer_configs.rules import ANY, MANY, Choice, Names, Number, switch

_ARGUMENTS = "NVIDIA/Megatron-LM megatron/training/arguments.py 0.19 (d98e8a64)"
_CONFIG = "NVIDIA/Megatron-LM megatron/core/transformer/transformer_config.py 0.19 (d98e8a64)"
_OF_MLA = {"model.mla": True}
_MLA = (
    switch("multi_latent_attention", "model.mla"),
    Number(
        key="q_lora_rank",
        field="model.q_lora_rank",
        when=_OF_MLA,
        written_when={"model.q_lora_rank": MANY},
    ),
    Number(key="kv_lora_rank", field="model.kv_lora_rank", default=32, when=_OF_MLA),
    Number(key="qk_head_dim", field="model.head_dim", default=128, when=_OF_MLA),
    Number(key="qk_pos_emb_head_dim", field="model.rope_head_dim", default=64, when=_OF_MLA),
    Number(key="v_head_dim", field="model.value_head_dim", default=128, when=_OF_MLA),
    Number(key="kv_channels", field="model.head_dim", when={"model.mla": False}),
    switch("qk_layernorm", "model.qk_norm", when={"model.mla": False}),  # MLA: of the latents
)
_SHAPE = (
    Number(key="num_layers", field="model.layers"),
    Number(key="hidden_size", field="model.hidden"),
    Number(key="num_attention_heads", field="model.heads"),
    switch("group_query_attention", "model.grouped"),
    Number(key="num_query_groups", field="model.kv_heads", when={"model.grouped": True}),
    *_MLA,
    Number(key="ffn_hidden_size", field="model.mlp_hidden"),
    Number(key="vocab_size", field="model.vocab", other_keys=("padded_vocab_size",)),
    switch("swiglu", "model.gated_mlp"),
    Choice(
        keys=("normalization",),
        fields=("model.norm",),
        rows=(
            (("RMSNorm",), ("rmsnorm",)),
            (("LayerNorm",), ("layernorm",)),
            ((None,), ("layernorm",)),
        ),
    ),
    Choice(
        keys=("position_embedding_type",),
        fields=("model.position",),
        rows=(
            (("rope",), ("rope",)),
            (("learned_absolute",), ("learned",)),
            (("none",), ("none",)),
            ((None,), ("learned",)),
        ),
    ),
    Number(
        key="max_position_embeddings",
        field="model.max_positions",
        when={"model.position": "learned"},
    ),
    switch("untie_embeddings_and_output_weights", "model.tied_embeddings", is_opposite=True),
    Choice(
        keys=("disable_bias_linear", "add_qkv_bias"),
        fields=("model.qkv_bias", "model.out_bias", "model.mlp_bias"),
        rows=(
            ((True, None), (False, False, False)),
            ((True, True), (True, False, False)),
            ((None, None), (True, True, True)),
        ),
    ),
    Number(
        key="num_experts", field="model.experts", default=0, written_when={"model.experts": MANY}
    ),
    Number(
        key="moe_router_topk",
        field="model.experts_per_token",
        default=2,
        when={"model.experts": MANY},
    ),
    Number(key="moe_ffn_hidden_size", field="model.expert_hidden", when={"model.experts": MANY}),
    Number(
        key="moe_shared_expert_intermediate_size",
        field="model.shared_expert_hidden",
        when={"model.experts": MANY},
        written_when={"model.shared_expert_hidden": MANY},
    ),
    Number(
        key="moe_layer_freq",
        field="model.moe_pattern",
        is_text=True,
        when={"model.experts": MANY},
        written_when={"model.dense_layers": MANY | {1}},
    ),
)


def spell_anew(document: Document) -> None:
    """Say which arguments others stand for.

    Raises:
        UsageError: blocks with and without experts alternate.
    """
    _spell_forks_anew(document)
    _spell_stages_anew(document)
    pattern = str(document.get("moe_layer_freq") or 1)
    if pattern != "1" and dense_layers(pattern) is None:
        raise document.wrong("moe_layer_freq", "1, or [0]*3+[1]*58: blocks without experts first")
    document.move("tensor_model_parallel_size", "expert_tensor_parallel_size")  # its own default
    document.move("hybrid_override_pattern", "hybrid_layer_pattern")
    if document.get("recompute_activations") is not None:
        document.put("recompute_granularity", "selective")
    if document.get("group_query_attention") is None and document.get("num_query_groups"):
        document.notes.append("num_query_groups counts only beside --group-query-attention")
    if document.get("num_experts") is not None and document.get("moe_ffn_hidden_size") is None:
        document.move("ffn_hidden_size", "moe_ffn_hidden_size")
    stated = str(document.get("hidden_size"))
    if document.get("ffn_hidden_size") is None and stated.isdecimal():
        hidden = int(stated)
        gated = document.get("swiglu") is not None
        document.put("ffn_hidden_size", 8 * hidden // 3 // 64 * 64 if gated else 4 * hidden)


_POSITIONS = {"use_rotary_position_embeddings": "rope", "no_position_embedding": "none"}
_OLD: tuple[tuple[str, str, Mapping[str, object]], ...] = (
    ("num_key_value_heads", "num_query_groups", {"group_query_attention": True}),
    ("ds_sequence_parallel_size", "context_parallel_size", {"cp_comm_type": "a2a"}),
    ("activations_checkpoint_method", "recompute_method", {"recompute_granularity": "full"}),
    ("checkpoint_activations", "recompute_granularity", {"recompute_granularity": "full"}),
    *((old, "position_embedding_type", {}) for old in _POSITIONS),
)
"""Of Megatron-LM up to 3.0 and of Megatron-DeepSpeed -> its present name, and what goes with it."""


def _spell_forks_anew(document: Document) -> None:
    for old, new, beside in _OLD:
        value = document.get(old)
        if value is not None and document.get(new) is None:
            for key, said in {new: _POSITIONS.get(old, value), **beside}.items():
                document.put(key, said)


def _spell_stages_anew(document: Document) -> None:
    """Count chunks of a stage, not layers in them; and recomputed blocks by stage, not by chunk."""
    layers, pp, chunk, chunks, blocks = (
        int(text) if text.isdecimal() else 0
        for text in (
            str(document.get(key))
            for key in (
                *("num_layers", "pipeline_model_parallel_size"),
                *("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank"),
                "recompute_num_layers",
            )
        )
    )
    if layers and pp and chunk:
        chunks = max(1, layers // pp // chunk)
        document.put("num_virtual_stages_per_pipeline_rank", chunks)
    if chunks and pp > 1 and document.get("recompute_method") == "block":
        document.put("recompute_num_layers", blocks * chunks)


_MODULES = {
    "core_attn": ("attention",),
    "mlp": ("mlp",),
    "layernorm": ("norm",),
    "moe": ("moe",),
}
_MEGATRON_FSDP = {
    None: ("fsdp", None),
    "optim_grads_params": ("fsdp", None),
    "optim_grads": ("zero2", 2),
    "optim": ("zero1", 1),
    "no_shard": ("replicated", None),
}
"""--data-parallel-sharding-strategy of Megatron-FSDP -> data_parallel, zero_stage."""
_OF_FSDP2 = {"data_parallel": "fsdp"}
_IMPOSSIBLE = (
    NEEDS_GPUS,
    Impossible(
        when={**_OF_FSDP2, "model.tied_embeddings": True},
        reason="its FSDP2 wants a head of its own (--untie-embeddings-and-output-weights); give "
        "zero1",
    ),
    *(  # Megatron-FSDP, with which they would go, is read alone
        Impossible(
            when={**_OF_FSDP2, axis: MANY},
            reason=f"its FSDP2 goes with neither pp nor ep, and {axis} is above 1; give zero1",
        )
        for axis in ("pp", "ep")
    ),
    Impossible(
        when={"data_parallel": "zero2"},
        reason="its distributed optimizer is ZeRO-1; for ZeRO-3 it has FSDP",
    ),
    Impossible(
        when={**_OF_FSDP2, "precision": "fp16"},
        reason="its FSDP2 does not train in fp16; give bf16",
    ),
    Impossible(
        when={"offload_optimizer": True, "data_parallel": frozenset({"fsdp", "replicated"})},
        reason="it offloads the states of its distributed optimizer alone; give zero1",
    ),
    Impossible(
        when={"model.experts": MANY, "tp": MANY, "sequence_parallel": False},
        reason="beside tensor parallelism its experts need --sequence-parallel",
    ),
)
_ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": 1}
_NO_FSDP2 = frozenset({"replicated", "zero1"})

MEGATRON_LM = Format(
    trainer="megatron-lm",
    syntax="arguments",
    file="pretrain.sh",
    script="pretrain_gpt.py",
    dashes=True,
    signatures=(("num_layers", "hidden_size", "num_attention_heads"), ("micro_batch_size",)),
    command="bash {file}",
    left_open="data, tokenizer, learning rate, number of iterations",
    objectives={"perform_rl_step": ("*",)},
    conflicts=(("bf16", "fp16"), ("use_torch_fsdp2", "use_megatron_fsdp")),
    fixed={"use_mcore_models": True},
    unread={
        "hybrid_layer_pattern": "blocks of Mamba are not known here",
        "encoder_num_layers": "an encoder beside a decoder is not known here",
    },
    spell_anew=spell_anew,
    lacks={
        "lora_rank": "its pre-training script trains all parameters",
        "quantization": "its weights are not quantized",
        "model": "its arguments cannot build such blocks",
        "zero_stage": "its distributed optimizer is ZeRO-1; for ZeRO-3 it has FSDP",
    },
    impossible=_IMPOSSIBLE,
    companions=(
        Companion(when=_OF_FSDP2, keys={"no_gradient_accumulation_fusion": True}),
        Companion(when={"offload_optimizer": True}, keys={"use_precision_aware_optimizer": True}),
        Companion(
            when={"recompute": "full", "recompute_some": False}, keys={"recompute_num_layers": 1}
        ),
        Companion(when=_OF_MLA, keys={"qk_layernorm": True}),
    ),
    environment=(  # its check before Blackwell; FSDP2 wants several connections
        Companion(when={"tp": MANY, "data_parallel": _NO_FSDP2}, keys=_ONE_CONNECTION),
        Companion(when={"cp": MANY, "data_parallel": _NO_FSDP2}, keys=_ONE_CONNECTION),
    ),
    harmless=(
        *("no_gradient_accumulation_fusion", "use_precision_aware_optimizer"),
        *("save*", "load*", "log_*", "eval*", "tokenizer_*", "lr*", "*min_lr", "weight_decay"),
        *("adam_*", "init_method_std", "*_dropout", "rotary_*", "train_*", "exit_*", "manual_gc*"),
        *("distributed_timeout*", "distributed_backend", "use_mcore_models", "fp8_*", "ckpt_*"),
        *("clip_grad", "attention_softmax_in_fp32", "no_masked_softmax_fusion", "rope_*"),
        *("max_position_embeddings", "seed", "moe_router_load*", "moe_aux*", "moe_token_disp*"),
        *("no_load_*", "no_save_*", "data_*", "split", "vocab_file", "merge_file", "mock_data"),
        *("attention_backend", "num_workers", "group_query_attention", "transformer_impl"),
        *("decoupled*", "use_rope_scaling", "apply_layernorm_1p", "calculate_per_token_loss"),
        *("overlap_param_gather", "make_vocab_size_divisible_by", "no_create_attention*"),
        *("use_flash_attn", "tensorboard*", "async_*", "empty_unused*", "recompute_activations"),
    ),
    groups=(
        Group(source=f"{_CONFIG}; {_ARGUMENTS}", rules=_SHAPE),
        Group(
            source=f"{_ARGUMENTS}; megatron/training/config/training_config.py",
            rules=(
                Number(key="seq_length", field="seq_len"),
                Number(key="max_position_embeddings", field="positions"),
                Number(key="micro_batch_size", field="micro_batch", default=1),
                Number(key="global_batch_size", field="global_batch"),
                Number(key="tensor_model_parallel_size", field="tp", default=1),
                Number(key="pipeline_model_parallel_size", field="pp", default=1),
                Number(key="context_parallel_size", field="cp", default=1),
                Number(key="expert_model_parallel_size", field="ep", default=1),
                Number(key="expert_tensor_parallel_size", field="expert_tp", when={"ep": MANY}),
                Choice(  # Megatron-DeepSpeed's; it is read, not written
                    keys=("zero_stage",),
                    fields=("data_parallel", "zero_stage"),
                    rows=(
                        ((None,), (ANY, ANY)),
                        *(((stage,), (f"zero{stage}", stage)) for stage in (1, 2, 3)),
                        ((0,), (ANY, ANY)),
                    ),
                ),
                Choice(
                    keys=(
                        *("use_distributed_optimizer", "use_torch_fsdp2", "use_megatron_fsdp"),
                        "data_parallel_sharding_strategy",
                    ),
                    fields=("data_parallel", "zero_stage", "pp", "ep"),
                    rows=(
                        ((True, None, None, None), ("zero1", 1, ANY, ANY)),
                        ((None, True, None, None), ("fsdp", None, 1, 1)),
                        ((None, None, None, None), ("replicated", None, ANY, ANY)),
                        *(
                            ((ANY, None, True, word), (*kind, ANY, ANY))
                            for word, kind in _MEGATRON_FSDP.items()
                        ),
                        ((True, None, None, ANY), ("zero1", 1, ANY, ANY)),
                        ((None, None, None, ANY), ("replicated", None, ANY, ANY)),
                    ),
                ),
                switch(
                    "torch_fsdp2_no_reshard_after_forward",
                    "reshard_after_forward",
                    when={"data_parallel": "fsdp"},
                    is_opposite=True,
                ),
                switch("sequence_parallel", "sequence_parallel", when={"tp": MANY}),
                Choice(
                    keys=("cp_comm_type",),
                    fields=("cp_method",),
                    when={"cp": MANY},
                    rows=(
                        (("p2p",), ("ring",)),
                        (("a2a",), ("ulysses",)),
                        ((None,), ("ring",)),
                    ),
                ),
                Number(
                    key="num_virtual_stages_per_pipeline_rank",
                    field="virtual_stages",
                    default=1,
                    when={"pp": MANY},
                    written_when={"virtual_stages": MANY},
                ),
                Choice(
                    keys=(),
                    fields=("schedule", "virtual_stages"),
                    when={"pp": MANY},
                    rows=(((), ("1f1b", 1)), ((), ("interleaved", ANY))),
                ),
                Choice(
                    keys=("recompute_granularity", "recompute_method"),
                    fields=("recompute", "recompute_some"),
                    rows=(
                        (("full", "uniform"), ("full", False)),
                        (("full", None), ("full", False)),
                        (("full", "block"), ("full", True)),
                        (("selective", None), ("selective", ANY)),
                        (("selective", ANY), ("selective", ANY)),
                        ((None, ANY), ("none", ANY)),
                    ),
                ),
                Number(
                    key="recompute_num_layers",
                    field="recompute_layers",
                    when={"recompute_some": True},
                ),
                Names(
                    key="recompute_modules",
                    field="recompute_parts",
                    words=_MODULES,
                    when={"recompute": "selective"},
                ),
                Choice(
                    keys=("bf16", "fp16", "fp8_format"),
                    fields=("precision",),
                    rows=(
                        ((True, None, None), ("bf16",)),
                        ((None, True, None), ("fp16",)),
                        ((True, None, "hybrid"), ("fp8",)),
                        ((True, None, ANY), ("fp8",)),
                        ((None, None, None), ("fp32",)),
                    ),
                ),
                switch("overlap_grad_reduce", "overlap_gradients"),
                switch("tp_comm_overlap", "overlap_tp", when={"tp": MANY}),
                Choice(
                    keys=("optimizer", "optimizer_cpu_offload"),
                    fields=("optimizer", "offload_optimizer"),
                    rows=(
                        (("adam", None), ("adamw-fused", False)),
                        (("sgd", None), ("sgd", False)),
                        (("adam", True), ("adamw-fused", True)),
                        ((None, None), ("adamw-fused", False)),
                        ((None, True), ("adamw-fused", True)),
                    ),
                ),
                Choice(
                    keys=("grad_reduce_in_bf16",),
                    fields=("gradient_bytes",),
                    rows=(((True,), (2,)), ((None,), (ANY,))),
                ),
                switch("cross_entropy_loss_fusion", "compiled_loss"),
                Choice(
                    keys=("moe_grouped_gemm",),
                    fields=("grouped_experts",),
                    when={"model.experts": MANY},
                    rows=(((True,), (True,)), ((None,), (ANY,))),
                ),
            ),
        ),
    ),
)

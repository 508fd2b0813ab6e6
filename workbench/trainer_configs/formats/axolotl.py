"""Axolotl's YAML."""

from __future__ import annotations

from workbench.trainer_configs.document import Document
from workbench.trainer_configs.format import Format, Group
from workbench.trainer_configs.formats import deepspeed, transformers
from workbench.trainer_configs.limits import OPTIMIZERS, Impossible
from workbench.trainer_configs.rules import ANY, MANY, Choice, Names, Number, below, switch, texts

_SCHEMA = "axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/config.py, fsdp.py 0.18"
_LIGER = "axolotl.integrations.liger.LigerPlugin"
_CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
_IN_GROUPS = {"data_parallel": "hsdp"}
_OF_LORA = {"lora": True}
_WORDS = {name: words for name, words in transformers.PROJECTIONS.items() if "all" not in name}
_SWITCHES = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}


def spell_anew(document: Document) -> None:
    """Give keys of older releases their names in 0.18, and switches of attention their value."""
    for old, new in (
        ("sequence_parallel_degree", "context_parallel_size"),
        ("fsdp_config.fsdp_version", "fsdp_version"),
        ("fsdp_config.version", "fsdp_version"),
        ("liger_swiglu", "liger_glu_activation"),
    ):
        document.move(old, new)
    for key, _ in [*document.unknown()]:
        if key.startswith("fsdp_config.fsdp_"):
            document.move(key, key.replace(".fsdp_", "."))
    for key, name in _SWITCHES.items():
        if document.get(key) is True and document.get("attn_implementation") is None:
            document.put("attn_implementation", name)
    _spell_sharding_anew(document)
    _spell_batches_and_offload_anew(document)
    if document.get("adapter") == "qlora":
        document.put("adapter", "lora")
    if str(document.get("bf16")) in {"auto", "full"}:
        document.put("bf16", value=True)


def _spell_batches_and_offload_anew(document: Document) -> None:
    """Batches of a rank as accumulation; and each kind of offload as one."""
    batch, micro = (str(document.get(key)) for key in ("batch_size", "micro_batch_size"))
    if document.get("gradient_accumulation_steps") is None and batch.isdecimal():
        micros = int(micro) if micro.isdecimal() else 1
        document.put("gradient_accumulation_steps", max(1, int(batch) // max(1, micros)))
    if str(document.get("gradient_checkpointing")) in {"offload", "offload_disk"}:
        document.put("gradient_checkpointing", value=True)
        document.put("activation_offloading", value=True)
    if str(document.get("activation_offloading")) in {"legacy", "disk"}:
        document.put("activation_offloading", value=True)


def _spell_sharding_anew(document: Document) -> None:
    """The words of ``fsdp`` and FSDP1's strategy: what is sharded, and when weights are freed."""
    words = texts(document.get("fsdp"))
    if any(word in words for word in transformers.SHARDING_WORDS):
        if document.get("fsdp_version") is None:
            document.put("fsdp_version", 1)  # the default where only `fsdp` was given
        if "offload" in words:
            document.put("fsdp_config.offload_params", value=True)
    elif document.get("fsdp_version") is None and document.get("fsdp_config"):
        document.put("fsdp_version", 1)
    if document.get("fsdp_version") != 1:
        return
    strategy_word = str(document.get("fsdp_config.sharding_strategy") or "").lower()
    sharding_words = [
        word for word in (strategy_word, *words) if word in transformers.SHARDING_WORDS
    ]
    kind = sharding_words[0] if sharding_words else "full_shard"
    if document.get("fsdp_config.reshard_after_forward") is None:
        document.put("fsdp_config.reshard_after_forward", transformers.SHARDING_WORDS[kind])
    if kind == "hybrid_shard":
        document.notes.append("hybrid_shard is read as full_shard over all GPUs")


AXOLOTL = Format(
    trainer="axolotl",
    syntax="yaml",
    file="axolotl.yaml",
    signatures=(("base_model",),),
    command="axolotl train {file} --launcher torchrun -- --nnodes {nodes} --nproc_per_node {gpus}",
    documents={"deepspeed": "deepspeed.json"},
    completed=transformers.TRANSFORMERS.completed,
    conflicts=(
        *(("bf16", "fp16"), ("load_in_4bit", "load_in_8bit"), ("deepspeed", "fsdp_version")),
        *(("bf16", "float32"), ("fp16", "float32")),
    ),
    spell_anew=spell_anew,
    left_open="data sets, learning rate, number of epochs",
    lacks={
        "pp": "it has no pipeline parallelism",
        "ep": "its expert parallelism is not known here",
        "tp": "its tensor parallelism is DeepSpeed's AutoTP, which is not known here",
    },
    objectives=dict.fromkeys(("rl", "reward_model", "process_reward_model"), ("*",)),
    impossible=(
        *OPTIMIZERS,
        Impossible(
            when={
                "optimizer": frozenset({"adamw-8bit", "paged-adamw-8bit", "lion-8bit"}),
                "engine": "fsdp1",
                "offload_parameters": True,
            },
            reason="under FSDP1 it does not offload beside 8-bit optimizers; give adamw-fused",
        ),
    ),
    unread=transformers.UNREAD
    | {
        "tensor_parallel_size": "its tensor parallelism is DeepSpeed's AutoTP, which is not known "
        "here",
        "expert_parallel_size": "its expert parallelism is not known here",
    },
    adapters={"adapter": (None, "", "lora"), "peft_use_dora": (None, False)},
    harmless=(
        *transformers.HARMLESS,
        *("datasets*", "dataset_*", "plugins", "fsdp", "fsdp_version", "ddp_*"),
        *("lora_*_kernel", "lora_model_dir", "lora_fan_in_fan_out", "lora_on_cpu"),
        *("val_set_size", "tokenizer_*", "model_type", "special_tokens*", "fsdp_config.final_*"),
        *("peft_*", "fsdp_config.sharding_strategy", "flash_attn_*", "*_attention", "adapter"),
        *("sample_packing_*", "eval_sample_packing", "pad_to_sequence_len", "train_on_inputs"),
        *("group_by_length", "gc_steps", "chat_template*", "strict", "liger_layer_norm"),
        *("deepspeed.bf16.enabled", "deepspeed.zero_optimization.gather_16bit_weights*"),
    ),
    groups=(
        Group(
            source="axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/model.py 0.18",
            rules=(Number(key="base_model", field="model_text", is_text=True),),
        ),
        Group(
            source="axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/peft.py 0.18",
            rules=(
                Choice(
                    keys=("adapter", "load_in_4bit", "load_in_8bit"),
                    fields=("lora", "quantization"),
                    rows=(
                        (("lora", None, None), (True, "none")),
                        (("lora", True, None), (True, "nf4-dq")),
                        (("lora", None, True), (True, "int8")),
                        ((None, None, None), (False, "none")),
                    ),
                ),
                Number(key="lora_r", field="lora_rank", default=8, when=_OF_LORA),
                Choice(
                    keys=("lora_target_linear",),
                    fields=("lora_targets",),
                    when=_OF_LORA,
                    rows=(
                        ((True,), (("q", "k", "v", "o", "gate", "up", "down"),)),
                        ((None,), (ANY,)),
                    ),
                ),
                Names(key="lora_target_modules", field="lora_targets", words=_WORDS, when=_OF_LORA),
            ),
        ),
        Group(
            source="axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/training.py 0.18",
            rules=(
                Number(key="micro_batch_size", field="micro_batch", default=1),
                Number(key="gradient_accumulation_steps", field="accumulate", default=1),
            ),
        ),
        Group(
            source=_SCHEMA,
            rules=(
                Number(key="sequence_len", field="seq_len", default=512),
                Choice(
                    keys=("sample_packing",),
                    fields=("variable_length",),
                    rows=(((True,), (False,)), ((False,), (True,))),
                ),
                *below("deepspeed.", (deepspeed.STAGE,)),
                Choice(
                    keys=("fsdp_version",),
                    fields=("data_parallel", "engine"),
                    rows=(
                        ((2,), ("fsdp", None)),
                        ((2,), ("hsdp", None)),
                        ((1,), ("fsdp", "fsdp1")),
                        ((None,), ("replicated", ANY)),
                        *(((None,), (kind, ANY)) for kind in sorted(deepspeed.ZEROS)),
                    ),
                ),
                *below("deepspeed.", deepspeed.ZERO),
                Choice(
                    keys=("fsdp_config.reshard_after_forward",),
                    fields=("reshard_after_forward",),
                    when={"data_parallel": transformers.SHARDED},
                    rows=(((True,), (True,)), ((False,), (False,)), ((None,), (ANY,))),
                ),
                *below("fsdp_config.", transformers.FSDP_COMMON),
                Choice(
                    keys=("fsdp_config.offload_params",),
                    fields=("offload_optimizer", "offload_parameters"),
                    when={"data_parallel": transformers.SHARDED},
                    rows=(((True,), (True, True)), ((None,), (False, False))),
                ),
                Number(key="dp_shard_size", field="dp_shard", written_when=_IN_GROUPS),
                Number(key="dp_replicate_size", field="dp_replicate", written_when=_IN_GROUPS),
                Number(
                    key="context_parallel_size", field="cp", default=1, written_when={"cp": MANY}
                ),
                Choice(
                    keys=(
                        *("gradient_checkpointing", "activation_offloading"),
                        "fsdp_config.activation_checkpointing",
                    ),
                    fields=("recompute", "recompute_layers", "offload_activations", "lora"),
                    rows=(
                        # With adapters the offload stands in the place of recompute.
                        ((True, "hidden_states", None), ("full", None, True, True)),
                        ((True, True, None), ("none", ANY, True, True)),
                        ((True, True, None), ("full", None, True, False)),
                        ((True, None, None), ("full", None, False, ANY)),
                        ((False, None, None), ("none", ANY, False, ANY)),
                        ((True, "hidden_states", ANY), ("full", None, True, ANY)),
                        ((True, True, ANY), ("none", ANY, True, True)),
                        ((True, True, ANY), ("full", None, True, False)),
                        ((True, None, ANY), ("full", None, False, ANY)),
                        ((ANY, None, True), ("full", None, False, ANY)),
                        ((None, None, None), ("none", ANY, False, ANY)),
                    ),
                ),
                Choice(
                    keys=("bf16", "fp16", "float32", "bfloat16", "fp8"),
                    fields=("precision", "lora", "data_parallel"),
                    rows=(
                        ((True, None, None, None, None), ("bf16", True, ANY)),
                        ((True, None, None, None, None), ("bf16-pure", False, "replicated")),
                        ((True, None, None, None, None), ("bf16", ANY, ANY)),
                        ((True, None, None, None, True), ("fp8", ANY, ANY)),
                        ((None, None, None, None, True), ("fp8", ANY, ANY)),
                        ((None, True, None, None, None), ("fp16", ANY, ANY)),
                        ((None, None, True, None, None), ("fp32", ANY, ANY)),
                        ((None, None, None, True, None), ("bf16-pure", ANY, ANY)),
                        ((None, None, None, None, None), ("bf16", ANY, ANY)),
                    ),
                ),
                Choice(
                    keys=("attn_implementation",),
                    fields=transformers.ATTENTION.fields,
                    rows=transformers.ATTENTION.rows,
                ),
                Choice(
                    keys=(
                        *("plugins", "liger_rope", "liger_rms_norm", "liger_glu_activation"),
                        *("liger_fused_linear_cross_entropy", "cut_cross_entropy"),
                    ),
                    fields=("loss", "norm", "activation"),
                    rows=(
                        (([_LIGER], True, True, True, True, None), ("fused", "fused", "fused")),
                        (([_CUT], None, None, None, None, True), ("fused", ANY, ANY)),
                        ((ANY, ANY, True, True, True, ANY), ("fused", "fused", "fused")),
                        ((ANY, ANY, True, True, None, None), (ANY, "fused", "fused")),
                        ((ANY, ANY, ANY, ANY, True, ANY), ("fused", ANY, ANY)),
                        ((ANY, ANY, ANY, ANY, ANY, True), ("fused", ANY, ANY)),
                        ((ANY, None, None, None, None, None), (ANY, ANY, ANY)),
                    ),
                ),
                Choice(
                    keys=("chunked_cross_entropy",),
                    fields=("loss",),
                    rows=(((True,), ("chunked",)), ((None,), (ANY,))),
                ),
                switch("torch_compile", "compiled"),
                switch("tiled_mlp", "tiled_mlp"),
            ),
        ),
        Group(  # after the sharding, which decides between two libraries' 8-bit states
            source="axolotl-ai-cloud/axolotl src/axolotl/utils/schemas/training.py 0.18",
            rules=(
                Choice(
                    keys=("optimizer",),
                    fields=transformers.OPTIMIZER.fields,
                    rows=(
                        *transformers.OPTIMIZER.rows,
                        (("muon",), ("muon", ANY, ANY, ANY)),
                    ),
                ),
            ),
        ),
    ),
)

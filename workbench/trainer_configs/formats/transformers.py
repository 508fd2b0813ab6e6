"""Hugging Face's TrainingArguments, and arguments of the scripts around it, TRL's among them."""

from __future__ import annotations

from workbench.describe.workload import LORA_TARGETS
from workbench.trainer_configs.document import Document, is_on
from workbench.trainer_configs.format import Companion, Format, Group
from workbench.trainer_configs.formats import deepspeed
from workbench.trainer_configs.limits import OPTIMIZERS
from workbench.trainer_configs.rules import ANY, Choice, Names, Number, below, switch, texts

_ALL = LORA_TARGETS[:-1]
PROJECTIONS = {
    **{f"{word}_proj": (word,) for word in _ALL},
    "lm_head": ("head",),
    "all-linear": _ALL,
    "all": _ALL,
    **dict.fromkeys(("c_attn", "Wqkv", "qkv_proj", "query_key_value"), ("q", "k", "v")),
    "gate_up_proj": ("gate", "up"),
}
"""Names of a model's modules -> the layers that they are."""
NAMES_OF_OPTIMIZERS = (
    (("adamw_torch_fused",), ("adamw-fused",)),
    (("adamw_torch",), ("adamw",)),
    (("adamw_8bit",), ("adamw-8bit",)),
    (("adamw_bnb_8bit",), ("adamw-8bit",)),
    (("adamw_torch_8bit",), ("adamw-8bit",)),
    (("adamw_torch_4bit",), ("adamw-4bit",)),
    (("paged_adamw_32bit",), ("paged-adamw",)),
    (("paged_adamw_8bit",), ("paged-adamw-8bit",)),
    (("adafactor",), ("adafactor",)),
    (("lion_32bit",), ("lion",)),
    (("lion_8bit",), ("lion-8bit",)),
    (("sgd",), ("sgd",)),
)
"""Names of OptimizerNames -> the optimizer; adamw says by itself that it is not the fused one."""
OPTIMIZER = Choice(
    keys=("optim",),
    fields=("optimizer", "fused_optimizer", "data_parallel", "engine"),
    rows=(
        # bitsandbytes' 8-bit states do not know FSDP2's sharded tensors, torchao's do.
        *((("adamw_torch_8bit",), ("adamw-8bit", ANY, kind, None)) for kind in ("fsdp", "hsdp")),
        *(
            (keys, (*values, False if values == ("adamw",) else ANY, ANY, ANY))
            for keys, values in NAMES_OF_OPTIMIZERS
        ),
    ),
)
_KERNELS = (("flash-attn2", 2), ("flash-attn", 2), ("flash-attn3", 3), ("vllm-flash-attn3", 3))
"""FlashAttention built on the hub (huggingface/kernels-community) -> its release."""
ATTENTION = Choice(
    keys=("attn_implementation",),
    fields=("attention", "flash_version"),
    rows=(
        (("sdpa",), ("sdpa", ANY)),
        (("flash_attention_2",), ("flash", 2)),
        (("flash_attention_3",), ("flash", 3)),
        (("eager",), ("eager", ANY)),
        *(((f"kernels-community/{name}",), ("flash", release)) for name, release in _KERNELS),
    ),
)
_PURE = (("bfloat16", "bf16-pure"), ("float16", "fp16-pure"), ("auto", "bf16-pure"))
PRECISION = Choice(
    keys=("bf16", "fp16", "dtype"),
    fields=("precision", "low_precision_weights", "lora", "data_parallel"),
    rows=(
        ((True, None, "bfloat16"), ("bf16", ANY, True, ANY)),
        # Accelerate under FSDP, and DeepSpeed, make what is trained fp32 where bf16 is on.
        ((True, None, "bfloat16"), ("bf16-pure", ANY, False, "replicated")),
        ((True, None, "auto"), ("bf16-pure", ANY, False, "replicated")),
        ((True, None, "float32"), ("bf16", False, ANY, ANY)),
        ((None, True, "float32"), ("fp16", False, False, ANY)),
        ((None, True, "float16"), ("fp16", ANY, True, ANY)),
        ((None, None, "float32"), ("fp32", ANY, ANY, ANY)),
        ((True, None, ANY), ("bf16", ANY, ANY, ANY)),
        ((None, True, ANY), ("fp16", ANY, ANY, ANY)),
        ((None, None, None), ("fp32", ANY, ANY, ANY)),
        *(
            ((None, None, dtype), (precision, ANY, ANY, kind))
            for dtype, precision in _PURE
            for kind in ("replicated", "fsdp", "hsdp")
        ),
    ),
)
CONVERTED = Choice(
    keys=("use_liger_kernel", "torch_compile"),
    fields=("loss", "norm", "activation", "compiled"),
    rows=(
        ((True, None), ("fused", "fused", "fused", False)),
        ((True, True), ("fused", "fused", "fused", True)),
        ((None, True), (ANY, "fused", "fused", True)),
        ((None, None), (ANY, ANY, ANY, ANY)),
    ),
)
QUANTIZED = Choice(
    keys=("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant"),
    fields=("quantization",),
    rows=(
        ((True, None, "nf4", True), ("nf4-dq",)),
        ((True, None, "nf4", None), ("nf4",)),
        ((True, None, None, True), ("nf4-dq",)),
        ((True, None, None, None), ("nf4",)),
        ((None, True, ANY, ANY), ("int8",)),
        ((None, None, ANY, ANY), ("none",)),
    ),
)
DATA_PARALLEL = Choice(
    keys=("fsdp",),
    fields=("data_parallel",),
    rows=(
        (("full_shard auto_wrap",), ("fsdp",)),
        ((True,), ("fsdp",)),
        ((None,), ("replicated",)),
        *(((None,), (kind,)) for kind in sorted(deepspeed.ZEROS)),
    ),
)
SHARDED = frozenset({"fsdp", "hsdp"})
_OF_FSDP = {"data_parallel": SHARDED}
FSDP_COMMON = (
    Choice(
        keys=("state_dict_type",),
        fields=("state_dict",),
        when=_OF_FSDP,
        rows=(
            (("SHARDED_STATE_DICT",), ("sharded",)),
            (("FULL_STATE_DICT",), ("full",)),
            ((None,), (ANY,)),
        ),
    ),
    switch("cpu_ram_efficient_loading", "meta_init", when=_OF_FSDP),
    Choice(
        keys=("auto_wrap_policy",),
        fields=("wrap_min_parameters",),
        when=_OF_FSDP,
        rows=(
            (("TRANSFORMER_BASED_WRAP",), (None,)),
            (("SIZE_BASED_WRAP",), (ANY,)),
            ((None,), (ANY,)),
        ),
    ),
    Number(key="min_num_params", field="wrap_min_parameters", when={"engine": "fsdp1"}),
)
"""fsdp_config, as Axolotl has it too."""
FSDP = (
    Choice(
        keys=("version", "reshard_after_forward"),
        fields=("engine", "reshard_after_forward"),
        when=_OF_FSDP,
        rows=(
            ((2, True), (None, True)),
            ((2, False), (None, False)),
            ((1, "full_shard"), ("fsdp1", True)),
            ((1, "shard_grad_op"), ("fsdp1", False)),
            ((2, None), (None, ANY)),
            ((1, None), ("fsdp1", ANY)),
            ((None, True), (ANY, True)),
            ((None, False), (ANY, False)),
            ((None, None), (ANY, ANY)),
        ),
    ),
    *FSDP_COMMON,
    Choice(
        keys=("cpu_offload",),
        fields=("offload_optimizer", "offload_parameters"),
        when=_OF_FSDP,
        rows=(((True,), (True, True)), ((None,), (False, False))),
    ),
)
"""fsdp_config, whose keys are Accelerate's without their prefix."""
RECOMPUTE = Choice(
    keys=(
        "gradient_checkpointing",
        "activation_checkpointing",
        "fsdp_config.activation_checkpointing",
    ),
    fields=("recompute", "recompute_layers"),
    rows=(
        ((True, ANY, ANY), ("full", None)),
        ((ANY, True, ANY), ("full", None)),
        ((ANY, ANY, True), ("full", None)),
        ((False, None, None), ("none", ANY)),
        ((None, False, None), ("none", ANY)),
    ),
)
SIZES = (
    Number(key="per_device_train_batch_size", field="micro_batch", default=8),
    Number(key="gradient_accumulation_steps", field="accumulate", default=1),
)
LORA = (
    switch("use_peft", "lora"),
    Number(key="lora_r", field="lora_rank", default=16, when={"lora": True}),
    Names(key="lora_target_modules", field="lora_targets", words=PROJECTIONS, when={"lora": True}),
    QUANTIZED,
)
TRAINING_ARGUMENTS = "huggingface/transformers src/transformers/training_args.py 5.23"
HARMLESS = (
    "use_cpu",
    *("lora_alpha", "lora_dropout", "*lora_task_type", "use_rslora", "per_device_eval_batch_size"),
    *("eval_*", "save_*", "logging_*", "dataloader_*", "optim_args"),
    *("gradient_checkpointing_kwargs*", "activation_checkpointing_kwargs*", "ddp_timeout"),
    *("ddp_backend", "local_rank", "resume_from_checkpoint", "use_fast_tokenizer", "*seed"),
    *("*transformer_layer_cls_to_wrap", "fsdp_config.*prefetch", "fsdp_config.xla*"),
    *("fsdp_config.use_orig_params", "fsdp_config.sync_module_states", "fsdp_config.limit_all_*"),
    *("preprocessing_*", "bnb_4bit_compute_dtype", "bf16_full_eval", "low_cpu_mem_usage"),
    *("validation_*", "max_grad_norm", "load_best_model_at_end", "loss_scale*"),
    *(f"deepspeed.{pattern}" for pattern in deepspeed.HARMLESS),
)


ON_CPU = (Companion(when={"device": "cpu"}, keys={"use_cpu": True}),)
"""Of a host with GPUs, which are taken otherwise."""
SHARDING_WORDS = {"full_shard": True, "shard_grad_op": False, "hybrid_shard": True}
"""Words in ``fsdp`` -> whether gathered weights are freed after forward."""


def _switch_off(document: Document) -> None:
    """Read ``--no_X``, by which HfArgumentParser switches off what is on by default."""
    for key, value in [*document.unknown()]:
        if key.startswith("no_") and is_on(value):
            document.known_keys.add(key)
            document.put(key.removeprefix("no_"), value=False)


def spell_anew(document: Document) -> None:
    """Spell what older releases wrote as texts of ``fsdp`` and ``torch_dtype`` as 5.23 does."""
    _switch_off(document)
    document.move("torch_dtype", "dtype")
    document.move("max_seq_length", "max_length")
    for key, _ in [*document.unknown()]:
        if key.startswith("fsdp_config.fsdp_"):
            document.move(key, key.replace(".fsdp_", "."))
    document.move("fsdp_config.offload_params", "fsdp_config.cpu_offload")
    words = texts(document.get("fsdp"))
    sharded = next((word for word in words if word in SHARDING_WORDS), None)
    if sharded is None:
        return
    values: dict[str, object] = {"fsdp": "full_shard auto_wrap"}
    if "offload" in words:
        values["fsdp_config.cpu_offload"] = True
    version = document.get("fsdp_config.version")
    if version is None:
        values["fsdp_config.version"] = 2
    if document.get("fsdp_config.reshard_after_forward") is None:
        kind = sharded if str(version) == "1" else SHARDING_WORDS[sharded]
        values["fsdp_config.reshard_after_forward"] = kind
    if sharded == "hybrid_shard":
        document.notes.append("fsdp=hybrid_shard is read as full_shard over all GPUs")
    for key, value in values.items():
        document.put(key, value)


GROUPS = (
    Group(
        source="huggingface/transformers examples/pytorch/language-modeling/run_clm.py 5.23",
        rules=(
            Number(
                key="model_name_or_path",
                field="model_text",
                other_keys=("model_id", "config_name"),
                is_text=True,
            ),
        ),
    ),
    Group(source="huggingface/trl trl/trainer/model_config.py 1.9", rules=(*LORA, ATTENTION)),
    Group(
        source=TRAINING_ARGUMENTS,
        rules=(
            *SIZES,
            *below("deepspeed.", (deepspeed.STAGE,)),
            DATA_PARALLEL,
            *below("deepspeed.", deepspeed.ZERO),
            *below("fsdp_config.", FSDP),
            RECOMPUTE,
            PRECISION,
            OPTIMIZER,
            CONVERTED,
        ),
    ),
)

AGREEING = {
    "deepspeed.train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "deepspeed.gradient_accumulation_steps": "gradient_accumulation_steps",
    "deepspeed.bf16.enabled": "bf16",
    "deepspeed.fp16.enabled": "fp16",
}
"""Keys of the DeepSpeed file that must be "auto" or say what the arguments say."""
UNREAD = {f"deepspeed.{key}": reason for key, reason in deepspeed.UNREAD.items()}
LACKS = {
    "precision": "it has fp32, bf16 and fp16, and bf16-pure and fp16-pure outside DeepSpeed, which "
    "keeps an fp32 copy of the weights",
    "tp": "it has no tensor parallelism among its arguments",
    "pp": "it has no pipeline parallelism",
    "cp": "its context parallelism is an argument of Accelerate's launcher, not of the trainer",
    "ep": "it has no expert parallelism among its arguments",
    "dp_replicate": "its arguments do not shard in groups (hsdp)",
}
OBJECTIVES: dict[str, tuple[str, ...]] = dict.fromkeys(
    (
        *("max_prompt_length", "max_completion_length", "num_generations", "reward_funcs"),
        *("precompute_ref_log_probs", "sync_ref_model", "ref_model_name_or_path"),
        *("reward_model_path", "reward_model_name_or_path", "sft_model_path"),
        *("desirable_weight", "undesirable_weight", "teacher_model_name_or_path"),
    ),
    ("*",),
)
"""Arguments that TRL's other trainers have, and its SFT has not."""
TRANSFORMERS = Format(
    trainer="transformers",
    other_trainers=("peft", "pytorch", "alst"),
    syntax="arguments",
    file="train.sh",
    signatures=(
        ("per_device_train_batch_size",),
        ("model_name_or_path", "output_dir"),
        ("model_name_or_path",),
    ),
    command="bash {file}",
    parsed_by="transformers",
    documents={"fsdp_config": "fsdp.json", "deepspeed": "deepspeed.json"},
    completed=dict.fromkeys(
        (
            *("deepspeed.train_micro_batch_size_per_gpu", "deepspeed.gradient_accumulation_steps"),
            *("deepspeed.gradient_clipping", "deepspeed.bf16.enabled", "deepspeed.fp16.enabled"),
        ),
        "auto",
    ),
    conflicts=(("bf16", "fp16"), ("fsdp", "deepspeed"), ("load_in_4bit", "load_in_8bit")),
    agreeing=AGREEING,
    objectives=OBJECTIVES,
    impossible=OPTIMIZERS,
    unread=UNREAD,
    harmless=HARMLESS,
    fixed={"output_dir": "out"},
    companions=ON_CPU,
    lacks=LACKS,
    spell_anew=spell_anew,
    groups=(
        *GROUPS,
        Group(
            source="huggingface/transformers examples/pytorch/language-modeling/run_clm.py 5.23",
            rules=(
                Number(
                    key="block_size",
                    field="seq_len",
                    other_keys=("max_length", "model_max_length"),
                ),
            ),
        ),
    ),
)

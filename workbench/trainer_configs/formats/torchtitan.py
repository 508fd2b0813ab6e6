"""torchtitan's TOML (up to 0.2; later releases are configured in Python)."""

from __future__ import annotations

from workbench.trainer_configs.document import Document
from workbench.trainer_configs.format import Format, Group
from workbench.trainer_configs.limits import NEEDS_GPUS, Impossible
from workbench.trainer_configs.rules import ANY, MANY, Choice, Number, switch, texts

_MODELS = (
    (("llama3", "8B"), ("llama-3-8b",)),
    (("llama3", "8B"), ("llama-3.1-8b",)),
    (("llama3", "70B"), ("llama-3-70b",)),
    (("llama3", "70B"), ("llama-3.1-70b",)),
    (("llama3", "405B"), ("llama-3.1-405b",)),
    *((("qwen3", size), (f"qwen3-{size.lower()}",)) for size in ("0.6B", "1.7B", "4B", "8B")),
    *((("qwen3", size), (f"qwen3-{size.lower()}",)) for size in ("14B", "32B")),
    *((("qwen3", size), (f"qwen3-{size.lower()}",)) for size in ("30B-A3B", "235B-A22B")),
    (("deepseek_v3", "16B"), ("deepseek-v2-lite",)),
    (("deepseek_v3", "236B"), ("deepseek-v2",)),
    (("deepseek_v3", "671B"), ("deepseek-v3",)),
    (("gpt_oss", "20b"), ("gpt-oss-20b",)),
    (("gpt_oss", "120b"), ("gpt-oss-120b",)),
)
_FLOAT8 = ["quantize.linear.float8"]
_GPT_OSS = frozenset({"gpt-oss-20b", "gpt-oss-120b"})
_UNSTAGED = _GPT_OSS | {ids[0] for (name, _), ids in _MODELS if name == "qwen3"}
_UNSHARDED = {"dp_shard": 1, "cp": 1}
_IMPOSSIBLE = (
    Impossible(
        when={"pp": MANY, "model_id": _UNSTAGED},
        reason="its Qwen 3 and GPT-OSS cannot be cut into pipeline stages; give fsdp",
    ),
    Impossible(
        when={"cp": MANY, "model_id": _GPT_OSS},
        reason="its GPT-OSS has no context parallelism; give fsdp",
    ),
    *(
        Impossible(
            when={"optimizer_in_backward": True, axis: MANY},
            reason=f"its optimizer in backward goes with neither pp nor ep, and {axis} is above 1",
        )
        for axis in ("pp", "ep")
    ),
    *(
        Impossible(
            when={axis: MANY, "dp_replicate": MANY, **_UNSHARDED},
            reason=f"beside {axis} it does not replicate; give fsdp ranks, as fsdp4-tp2",
        )
        for axis in ("tp", "pp")
    ),
    *(
        Impossible(
            when={axis: MANY, "precision": frozenset({"bf16", "fp8"}), **_UNSHARDED},
            reason=f"beside {axis} it trains in mixed precision only where FSDP shards, else in "
            "fp32; give fsdp ranks, as fsdp4-tp2, or bf16-pure",
        )
        for axis in ("tp", "pp")
    ),
    Impossible(
        when={"tp": MANY, "overlap_tp": True, "compiled": False},
        reason="its asynchronous tensor parallelism needs the compiler; give compiled",
    ),
)
_JOB_CONFIG = "pytorch/torchtitan torchtitan/config/job_config.py 0.2.2"


def spell_anew(document: Document) -> None:
    """Give keys of 0.1 and 0.2.0 their names in 0.2.2."""
    for old, new in (
        ("training.compile", "compile.enable"),
        ("training.batch_size", "training.local_batch_size"),
        ("training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree"),
        ("training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree"),
        ("training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"),
        ("experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"),
        ("experimental.context_parallel_degree", "parallelism.context_parallel_degree"),
    ):
        document.move(old, new)
    if texts(document.get("model.converters")) == ["float8"]:
        document.put("model.converters", _FLOAT8)


TORCHTITAN = Format(
    trainer="torchtitan",
    syntax="toml",
    file="train.toml",
    signatures=(("model.flavor",), ("parallelism",), ("training.local_batch_size",)),
    command=(
        "torchrun --nnodes={nodes} --nproc-per-node={gpus} -m torchtitan.train "
        "--job.config_file {file}"
    ),
    assumed={"data_parallel": "fsdp"},
    impossible=(
        NEEDS_GPUS,
        *_IMPOSSIBLE,
        Impossible(
            when={},
            since="2026-09",
            reason="from 0.3 on it is configured in Python, not in a file; give torchtitan@0.2.2",
        ),
    ),
    note="For torchtitan up to 0.2.2 (pip install torchtitan==0.2.2): from 0.3 on it reads no "
    "such file.",
    lacks={
        "model": "it builds models from flavors of its own, and none known has this shape",
        "lora_rank": "it trains all parameters",
        "zero_stage": "it shards with FSDP2, not with ZeRO",
        "sequence_parallel": "its tensor parallelism splits the sequence too",
        "engine": "it has FSDP2 alone",
        "optimizer": "it has AdamW, fused or foreach",
        "cp_method": "its context parallelism is a ring",
    },
    spell_anew=spell_anew,
    harmless=(
        *("optimizer.lr", "optimizer.eps", "optimizer.beta*", "optimizer.weight_decay"),
        *("checkpoint.*", "lr_scheduler.*", "profiling.*", "metrics.*", "validation.*", "comm.*"),
        *("job.*", "training.mixed_precision_reduce", "quantize.*", "*dataset*"),
        *("compile.components", "compile.backend", "parallelism.context_parallel_load_balancer"),
        *("parallelism.context_parallel_rotate_method", "parallelism.expert_parallel_comm_backend"),
        *("activation_checkpoint.per_op*", "activation_checkpoint.selective_ac_option"),
        *("training.gc_*", "model.*_path", "model.print_*", "parallelism.disable_loss_parallel"),
    ),
    groups=(
        Group(
            source="pytorch/torchtitan torchtitan/models/*/__init__.py 0.2.2",
            rules=(
                Choice(keys=("model.name", "model.flavor"), fields=("model_id",), rows=_MODELS),
            ),
        ),
        Group(
            source=_JOB_CONFIG,
            rules=(
                Number(key="training.seq_len", field="seq_len", default=2048),
                Number(key="training.local_batch_size", field="local_batch", default=8),
                Number(key="training.global_batch_size", field="global_batch"),
                Number(
                    key="parallelism.data_parallel_replicate_degree",
                    field="dp_replicate",
                    default=1,
                ),
                Number(key="parallelism.data_parallel_shard_degree", field="dp_shard"),
                Number(key="parallelism.tensor_parallel_degree", field="tp", default=1),
                Number(key="parallelism.context_parallel_degree", field="cp", default=1),
                Number(key="parallelism.pipeline_parallel_degree", field="pp", default=1),
                Number(key="parallelism.expert_parallel_degree", field="ep", default=1),
                Number(
                    key="parallelism.expert_tensor_parallel_degree",
                    field="expert_tp",
                    default=1,
                    when={"ep": MANY},
                ),
                Number(
                    key="parallelism.pipeline_parallel_microbatch_size",
                    field="pipeline_batch",
                    default=1,
                    when={"pp": MANY},
                ),
                Choice(
                    keys=("parallelism.pipeline_parallel_schedule",),
                    fields=("schedule", "virtual_stages"),
                    when={"pp": MANY},
                    rows=(
                        (("1F1B",), ("1f1b", 1)),
                        (("GPipe",), ("gpipe", 1)),
                        (("Interleaved1F1B",), ("interleaved", 2)),
                        (("ZBVZeroBubble",), ("zero-bubble", 2)),
                        (("InterleavedZeroBubble",), ("zero-bubble", 2)),
                        ((None,), ("1f1b", 1)),
                    ),
                ),
                Choice(
                    keys=(), fields=("sequence_parallel",), when={"tp": MANY}, rows=(((), (True,)),)
                ),
                switch("parallelism.enable_async_tensor_parallel", "overlap_tp", when={"tp": MANY}),
                Choice(
                    keys=("parallelism.fsdp_reshard_after_forward",),
                    fields=("reshard_after_forward",),
                    rows=(
                        (("always",), (True,)),
                        (("never",), (False,)),
                        (("default",), (ANY,)),
                        ((None,), (ANY,)),
                    ),
                ),
                Choice(
                    keys=("training.enable_cpu_offload",),
                    fields=("offload_optimizer", "offload_parameters"),
                    rows=(((True,), (True, True)), ((None,), (False, False))),
                ),
                Choice(
                    keys=(
                        "training.dtype",
                        "training.mixed_precision_param",
                        "model.converters",
                    ),
                    fields=("precision",),
                    rows=(
                        (("float32", "bfloat16", None), ("bf16",)),
                        (("bfloat16", "bfloat16", None), ("bf16-pure",)),
                        (("float32", "float32", None), ("fp32",)),
                        (("float32", "bfloat16", _FLOAT8), ("fp8",)),
                        (("bfloat16", ANY, None), ("bf16-pure",)),
                        ((ANY, "float32", None), ("fp32",)),
                        ((ANY, ANY, None), ("bf16",)),
                        ((ANY, ANY, []), ("bf16",)),
                        ((ANY, ANY, _FLOAT8), ("fp8",)),
                    ),
                ),
                Choice(
                    keys=(
                        "activation_checkpoint.mode",
                        "activation_checkpoint.selective_ac_option",
                    ),
                    fields=("recompute", "recompute_parts", "recompute_layers"),
                    rows=(
                        (("none", None), ("none", ANY, None)),
                        (("full", None), ("full", ANY, None)),
                        (("selective", "op"), ("selective", ("op",), None)),
                        (("none", ANY), ("none", ANY, None)),
                        (("full", ANY), ("full", ANY, None)),
                        ((None, ANY), (ANY, ANY, ANY)),
                    ),
                ),
                switch("compile.enable", "compiled"),
                Choice(
                    keys=("optimizer.name", "optimizer.implementation"),
                    fields=("optimizer", "fused_optimizer"),
                    rows=(
                        (("AdamW", "fused"), ("adamw-fused", ANY)),
                        (("AdamW", "foreach"), ("adamw", False)),
                        (("AdamW", None), ("adamw-fused", ANY)),
                        ((None, None), ("adamw-fused", ANY)),
                        ((None, "fused"), ("adamw-fused", ANY)),
                        ((None, "foreach"), ("adamw", False)),
                    ),
                ),
                switch("optimizer.early_step_in_backward", "optimizer_in_backward"),
            ),
        ),
    ),
)

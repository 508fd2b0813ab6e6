"""Accelerate's own YAML, as ``accelerate config`` writes it: how the work is spread."""

from __future__ import annotations

from workbench.trainer_configs.document import Document
from workbench.trainer_configs.format import Companion, Format, Group
from workbench.trainer_configs.formats import deepspeed, transformers
from workbench.trainer_configs.rules import ANY, MANY, Choice, Number, below

_MESH = "parallelism_config.parallelism_config"
_FILE = "deepspeed_config.deepspeed_config_file"
_ZERO = "deepspeed_config"
_FSDP = "fsdp_config.fsdp_"
_RESHARD = {"1": "full_shard", "2": "shard_grad_op", "4": "full_shard", "5": "shard_grad_op"}


def spell_anew(document: Document) -> None:
    """Give keys of FSDP their prefix, and those of ZeRO their place in DeepSpeed's own file."""
    for key, _ in [*document.unknown()]:
        if key.startswith("fsdp_config.") and not key.startswith(_FSDP):
            document.move(key, key.replace("fsdp_config.", _FSDP))
    for old, new in (
        (f"{_FSDP}sharding_strategy", f"{_FSDP}reshard_after_forward"),
        (f"{_ZERO}.zero_stage", f"{_FILE}.zero_optimization.stage"),
        (
            f"{_ZERO}.offload_optimizer_device",
            f"{_FILE}.zero_optimization.offload_optimizer.device",
        ),
        (f"{_ZERO}.offload_param_device", f"{_FILE}.zero_optimization.offload_param.device"),
    ):
        document.move(old, new)
    if document.get("fsdp_config") is not None:
        document.move("fsdp_version", f"{_FSDP}version")
        if document.get(f"{_FSDP}version") is None:
            document.put(f"{_FSDP}version", 1)
    kind = _RESHARD.get(str(document.get(f"{_FSDP}reshard_after_forward")))
    if kind is not None:
        document.put(f"{_FSDP}reshard_after_forward", kind)


ACCELERATE = Format(
    trainer="accelerate",
    syntax="yaml",
    file="accelerate.yaml",
    signatures=(("distributed_type",),),
    command="accelerate launch --config_file {file} --num_machines {nodes} train.py",
    parsed_by="accelerate",
    documents={_FILE: "deepspeed.json"},
    completed=dict.fromkeys(
        (f"{_FILE}.train_micro_batch_size_per_gpu", f"{_FILE}.gradient_accumulation_steps"), "auto"
    ),
    spell_anew=spell_anew,
    unread={f"{_FILE}.{key}": reason for key, reason in deepspeed.UNREAD.items()}
    | {f"{_MESH}_sp_size": "its sequence parallelism (ALST, Ulysses) is not known here"}
    | dict.fromkeys(
        (f"megatron_lm_config.megatron_lm_{axis}_degree" for axis in ("tp", "pp")),
        "its training with Megatron-LM is not known here",
    ),
    fixed={"compute_environment": "LOCAL_MACHINE", "machine_rank": 0},
    environment=(  # MULTI_CPU and use_cpu start ranks with mpirun alone; so ranks on CPU start too
        Companion(
            when={"device": "cpu"},
            keys={"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""},
        ),
    ),
    outside=frozenset(
        {
            *("seq_len", "micro_batch", "accumulate", "optimizer", "attention", "loss"),
            *("lora_rank", "lora_targets", "quantization", "quantized_head", "trained_layers"),
            *("fused_optimizer", "low_precision_weights", "reduce_bucket", "gather_bucket"),
        }
    ),
    each_node="start it on each, with --machine_rank, --main_process_ip and --main_process_port",
    left_open="the model, batch sizes, optimizer, data",
    lacks={
        "pp": "pipeline parallelism is the script's",
        "ep": "it has no expert parallelism",
        "precision": "its mixed precision is no, bf16, fp16 or fp8, with fp32 weights",
        "zero_stage": "beside tp and cp it shards with FSDP",
        "recompute": "outside FSDP, recompute is the script's",
    },
    harmless=(
        *transformers.HARMLESS,
        *(f"{_FILE}.{pattern}" for pattern in deepspeed.HARMLESS),
        *("dynamo_*", "downcast_bf16", "gpu_ids", "main_*", "rdzv_backend", "same_network"),
        *("tpu_*", "deepspeed_config.deepspeed_multinode*", "deepspeed_config.zero3_*", "debug"),
        *("*_comm_strategy", "*_backend", "enable_cpu_affinity", "use_cpu", "machine_rank"),
    ),
    groups=(
        Group(
            source="huggingface/accelerate src/accelerate/commands/config/cluster.py, "
            "utils/dataclasses.py 1.15",
            rules=(
                Number(key="num_processes", field="world_size"),
                Number(key="num_machines", field="nodes"),
                *below(f"{_FILE}.", (deepspeed.STAGE,)),
                Choice(
                    keys=("distributed_type",),
                    fields=("data_parallel",),
                    rows=(
                        (("FSDP",), ("fsdp",)),
                        (("FSDP",), ("hsdp",)),
                        *((("DEEPSPEED",), (kind,)) for kind in sorted(deepspeed.ZEROS)),
                        (("MULTI_GPU",), ("replicated",)),
                        (("MULTI_CPU",), ("replicated",)),
                        (("NO",), ("replicated",)),
                        (("DEEPSPEED",), ("replicated",)),
                    ),
                ),
                *below(f"{_FILE}.", deepspeed.ZERO),
                *below(_FSDP, transformers.FSDP[:-1]),
                Choice(
                    keys=(f"{_FSDP}offload_params",),
                    fields=("offload_optimizer", "offload_parameters"),
                    when={"data_parallel": transformers.SHARDED},
                    rows=(((True,), (True, True)), ((None,), (False, False))),
                ),
                Choice(
                    keys=(f"{_FSDP}activation_checkpointing",),
                    fields=("recompute", "recompute_layers"),
                    when={"data_parallel": transformers.SHARDED},
                    rows=(((True,), ("full", None)), ((None,), ("none", ANY))),
                ),
                Number(key=f"{_MESH}_tp_size", field="tp", default=1, written_when={"tp": MANY}),
                Number(key=f"{_MESH}_cp_size", field="cp", default=1, written_when={"cp": MANY}),
                Number(
                    key=f"{_MESH}_dp_replicate_size",
                    field="dp_replicate",
                    written_when={"data_parallel": "hsdp"},
                ),
                Number(
                    key=f"{_MESH}_dp_shard_size",
                    field="dp_shard",
                    written_when={"data_parallel": "hsdp"},
                ),
                Number(
                    key=f"{_ZERO}.gradient_accumulation_steps",
                    field="accumulate",
                    when={"data_parallel": deepspeed.ZEROS},
                    written_when={"data_parallel": ""},
                ),
                Choice(
                    keys=("mixed_precision", f"{_FILE}.bf16.enabled", f"{_FILE}.fp16.enabled"),
                    fields=("precision",),
                    rows=(
                        (("bf16", ANY, ANY), ("bf16",)),
                        (("fp16", ANY, ANY), ("fp16",)),
                        (("fp8", ANY, ANY), ("fp8",)),
                        (("no", ANY, ANY), ("fp32",)),
                        ((None, True, ANY), ("bf16",)),
                        ((None, ANY, True), ("fp16",)),
                        ((None, ANY, ANY), (ANY,)),
                    ),
                ),
            ),
        ),
    ),
)

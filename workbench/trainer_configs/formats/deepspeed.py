"""DeepSpeed's JSON: which key is which field of a job."""

from __future__ import annotations

from workbench.trainer_configs.format import Format, Group
from workbench.trainer_configs.limits import Companion, Impossible
from workbench.trainer_configs.rules import ANY, Choice, Number

NVME_PATH = "/local_nvme"
"""Where offloaded states go: the name that DeepSpeed's documentation uses for a local drive."""
_ZERO = "zero_optimization"

STAGE = Choice(
    keys=(f"{_ZERO}.stage",),
    fields=("data_parallel", "zero_stage"),
    rows=(
        *(((stage,), (f"zero{stage}", stage)) for stage in (1, 2, 3)),
        ((None,), (ANY, ANY)),
        ((0,), ("replicated", ANY)),
    ),
)
ZEROS = frozenset({"zero1", "zero2", "zero3"})
_OF_ZERO = {"data_parallel": ZEROS}
OFFLOAD = Choice(
    when=_OF_ZERO,
    keys=(
        f"{_ZERO}.offload_optimizer.device",
        f"{_ZERO}.offload_param.device",
        f"{_ZERO}.offload_optimizer.nvme_path",
        f"{_ZERO}.offload_param.nvme_path",
    ),
    fields=("offload_optimizer", "offload_parameters", "offload_device"),
    rows=(
        ((None, None, ANY, ANY), (False, False, ANY)),
        (("cpu", None, ANY, ANY), (True, False, "cpu")),
        ((None, "cpu", ANY, ANY), (False, True, "cpu")),
        (("cpu", "cpu", ANY, ANY), (True, True, "cpu")),
        (("nvme", None, NVME_PATH, None), (True, False, "nvme")),
        ((None, "nvme", None, NVME_PATH), (False, True, "nvme")),
        (("nvme", "nvme", NVME_PATH, NVME_PATH), (True, True, "nvme")),
        (("nvme", None, ANY, ANY), (True, False, "nvme")),
        ((None, "nvme", ANY, ANY), (False, True, "nvme")),
        ((ANY, "nvme", ANY, ANY), (True, True, "nvme")),
        (("nvme", ANY, ANY, ANY), (True, True, "nvme")),
    ),
)
OVERLAP = Choice(
    when=_OF_ZERO,
    keys=(f"{_ZERO}.overlap_comm",),
    fields=("overlap_gradients",),
    rows=(((True,), (True,)), ((False,), (False,)), ((None,), (None,))),
)
ZERO = (
    OFFLOAD,
    OVERLAP,
    Number(key=f"{_ZERO}.reduce_bucket_size", field="reduce_bucket", when=_OF_ZERO),
    Number(
        key=f"{_ZERO}.stage3_prefetch_bucket_size", field="gather_bucket", when={"zero_stage": 3}
    ),
    Number(
        key=f"{_ZERO}.allgather_bucket_size",
        field="gather_bucket",
        when={"zero_stage": frozenset({1, 2})},
    ),
    Number(
        key=f"{_ZERO}.stage3_max_live_parameters", field="live_parameters", when={"zero_stage": 3}
    ),
)
"""The part about ZeRO, beside its stage, which every trainer on DeepSpeed takes."""
ZERO_SOURCE = "deepspeedai/DeepSpeed deepspeed/runtime/zero/config.py, offload_config.py 0.19.8"
UNREAD = {
    "tensor_parallel.autotp_size": "its tensor parallelism (AutoTP) is not known here",
    "expert_parallel.autoep_size": "its expert parallelism (AutoEP) is not known here",
    "sequence_parallel_size": "its sequence parallelism (Ulysses) is not known here",
}
"""Refused wherever the file is named, too."""
HARMLESS = (
    *("*contiguous_gradients", "*sub_group_size", "*stage3_max_reuse_distance", "*pin_memory"),
    *("*stage3_gather_16bit_weights_on_model_save", "*stage3_param_persistence_threshold"),
    *("*round_robin_gradients", "*reduce_scatter", "*allgather_partitions", "*buffer_count"),
    *("*zero_allow_untested_optimizer", "*zero_force_ds_cpu_optimizer", "*optimizer.params.*"),
    *("*scheduler.*", "*wall_clock_breakdown", "*steps_per_print", "*loss_scale*", "*min_loss_*"),
    *("*gradient_clipping", "*flops_profiler*", "*fast_init", "*ratio", "*hysteresis"),
    *("*initial_scale_power", "*fp16.auto_cast", "*monitor_config.*"),
)

DEEPSPEED = Format(
    trainer="deepspeed",
    syntax="json",
    file="deepspeed.json",
    signatures=((_ZERO,), ("train_micro_batch_size_per_gpu",)),
    command="deepspeed --num_nodes {nodes} --num_gpus {gpus} train.py --deepspeed_config {file}",
    parsed_by="deepspeed",
    impossible=(
        Impossible(
            when={
                "optimizer": frozenset({"sgd", "adamw-8bit", "paged-adamw", "adafactor", "muon"}),
                "offload_optimizer": True,
                "data_parallel": ZEROS,
            },
            reason="with offloaded states it trains with its own CPU optimizers; give adamw-fused "
            "or lion",
        ),
    ),
    companions=(
        Companion(  # the script's own AdamW, which is refused beside the offload without this
            when={"optimizer": "adamw", "offload_optimizer": True, "data_parallel": ZEROS},
            keys={"zero_force_ds_cpu_optimizer": False},
        ),
    ),
    conflicts=(("bf16.enabled", "fp16.enabled"),),
    unread=UNREAD,
    harmless=HARMLESS,
    outside=frozenset(
        {
            *("seq_len", "lora_rank", "lora_targets", "quantization", "attention", "loss"),
            *("recompute", "recompute_layers", "trained_layers", "quantized_head"),
        }
    ),
    lacks={
        "tp": "tensor parallelism is the script's",
        "pp": "its pipeline engine is configured in the script",
        "dp_shard": "it shards with ZeRO, not with FSDP; give zero1, zero2 or zero3",
        "precision": "it has fp32, bf16 and fp16 with an fp32 copy of the weights",
    },
    each_node="start it on one, with --hostfile",
    left_open="the model, sequence length, data, learning rate",
    groups=(
        Group(
            source="deepspeedai/DeepSpeed deepspeed/runtime/config.py, constants.py 0.19.8",
            rules=(
                Number(key="train_micro_batch_size_per_gpu", field="micro_batch"),
                Number(key="gradient_accumulation_steps", field="accumulate"),
                Number(key="train_batch_size", field="global_batch"),
                Choice(
                    keys=("bf16.enabled", "fp16.enabled"),
                    fields=("precision",),
                    rows=(
                        ((True, None), ("bf16",)),
                        ((None, True), ("fp16",)),
                        ((None, None), ("fp32",)),  # before "auto", which any precision fits
                        (("auto", ANY), (ANY,)),
                        ((ANY, "auto"), (ANY,)),
                    ),
                ),
            ),
        ),
        Group(source=ZERO_SOURCE, rules=(STAGE, *ZERO)),
        Group(
            source="deepspeedai/DeepSpeed deepspeed/runtime/engine.py _configure_basic_optimizer",
            rules=(
                Choice(
                    keys=("optimizer.type",),
                    fields=("optimizer",),
                    rows=(
                        (("AdamW",), ("adamw-fused",)),
                        (("Adam",), ("adamw-fused",)),
                        (("SGD",), ("sgd",)),
                        (("Lion",), ("lion",)),
                        ((None,), (ANY,)),
                    ),
                ),
            ),
        ),
    ),
)

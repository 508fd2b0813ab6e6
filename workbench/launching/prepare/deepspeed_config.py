"""A ZeRO strategy as DeepSpeed's JSON config file.

Names and defaults: deepspeed/runtime/zero/config.py of DeepSpeed 0.19.8. What the training script
knows better stays "auto": Accelerate fills in accumulation, clipping (1.0) and precision, the
script its micro-batch (Accelerate reads that from a DataLoader only).
"""

from __future__ import annotations

import json

from workbench.describe import Strategy

DEEPSPEED_NAME = "deepspeed.json"
GATHERS_ON_SAVE = "stage3_gather_16bit_weights_on_model_save"
NVME_PATH = "/local_nvme"
"""Where offloaded states go: the name that DeepSpeed's documentation uses for a local drive."""


def deepspeed_text(strategy: Strategy, device: str) -> str:
    """The config file of a strategy that DeepSpeed runs."""
    values: dict[str, object] = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": _zero(strategy, device),
    }
    if strategy.offload and device == "cpu":
        # DeepSpeedCPUAdam is compiled at first use; where all is on the CPU, torch's does as well.
        values["zero_force_ds_cpu_optimizer"] = False
    return json.dumps(values, indent=2) + "\n"


def _zero(strategy: Strategy, device: str) -> dict[str, object]:
    last, own = strategy.zero_stage == 3, strategy.deepspeed
    chosen = {
        "overlap_comm": strategy.overlap_gradients,
        "reduce_bucket_size": strategy.reduce_bucket,
        "stage3_prefetch_bucket_size" if last else "allgather_bucket_size": own.gather_bucket,
        "stage3_max_live_parameters": own.live_parameters,
    }
    values: dict[str, object] = {"stage": strategy.zero_stage}
    values |= {key: value for key, value in chosen.items() if value is not None}
    if last:  # else nothing can save the weights whole: neither get_state_dict nor save_pretrained
        values[GATHERS_ON_SAVE] = True
    for part, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param")):
        if part in strategy.offload:
            values[key] = _offload(strategy.deepspeed.offload_device, device)
    return values


def _offload(target: str, device: str) -> dict[str, object]:
    values: dict[str, object] = {"device": target, "pin_memory": device != "cpu"}
    return values | {"nvme_path": NVME_PATH} if target == "nvme" else values

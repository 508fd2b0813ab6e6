"""What DeepSpeed asks of a script that has no DataLoader."""

# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
from typing import Any

from accelerate import Accelerator


def tell_micro_batch(accelerator: Accelerator, micro_batch: int) -> None:
    """DeepSpeed wants the size of the batch, and Accelerate finds it in a DataLoader only."""
    plugin: Any = accelerator.deepspeed_plugin
    if plugin is not None and plugin.is_auto("train_micro_batch_size_per_gpu"):
        plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = micro_batch

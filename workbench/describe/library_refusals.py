"""What FSDP, DeepSpeed and Accelerate's meshes do not do, each with the reason and what to do.

Read in, or run with, Accelerate 1.15, DeepSpeed 0.19.8 and torch 2.13.
"""

from __future__ import annotations

from workbench.describe.strategy import Strategy
from workbench.errors import UsageError

_TOGETHER = {"optimizer", "parameters"}


def check_fsdp(strategy: Strategy, device: str) -> None:
    """Refuse what FSDP2, or FSDP1 where that is asked for, does not do."""
    if strategy.offload:
        _check_fsdp_offload(strategy, device)
    if strategy.engine != "fsdp1":
        return
    if strategy.dp_replicate > 1:
        raise UsageError(
            f"FSDP1 shards within a machine and replicates between machines, so {strategy.name!r} "
            "on one machine would not be hybrid. Leave engine fsdp1 out."
        )
    if device == "cpu" and strategy.fsdp.state_dict == "full":
        raise UsageError(
            "FSDP1 gathers a full state dict through an accelerator; on CPU ranks it fails. Use "
            "state dict sharded, or leave engine fsdp1 out."
        )
    if device == "cpu" and strategy.fsdp.meta_init:
        raise UsageError(
            "FSDP1's meta init sends weights between accelerators; on CPU ranks Accelerate says "
            "'There are currently no available devices found'. Leave engine fsdp1 out."
        )


def _check_fsdp_offload(strategy: Strategy, device: str) -> None:
    offloaded = set(strategy.offload)
    if strategy.deepspeed.offload_device == "nvme":
        raise UsageError("FSDP offloads to host memory only. Use offload device cpu, or zero3.")
    if offloaded - _TOGETHER == {"activations"}:
        if strategy.recompute != "full" or strategy.engine == "fsdp1" or device == "cpu":
            raise UsageError(
                "Accelerate offloads activations for FSDP2 with recompute full on an accelerator "
                "(it copies to pinned memory). Use those, or leave offload activations out."
            )
        offloaded -= {"activations"}
    if offloaded and offloaded != _TOGETHER:
        raise UsageError(
            f"FSDP offloads weights and optimizer states together, not {strategy.offload}. "
            "Use offload optimizer,parameters."
        )
    if offloaded and strategy.engine == "fsdp1" and device == "cpu":
        raise UsageError(
            "FSDP1 offloads from an accelerator; on CPU ranks it says 'Cannot access accelerator "
            "device'. Leave engine fsdp1 out."
        )


def check_offloaded_weights(strategy: Strategy) -> None:
    """Refuse to count weights as gone that ZeRO-1 and -2 leave on the card."""
    if strategy.zero_stage in {1, 2} and "parameters" in strategy.offload:
        raise _weights_stay(strategy)


def _weights_stay(strategy: Strategy) -> UsageError:
    return UsageError(
        f"Offload {','.join(strategy.offload)}: DeepSpeed moves weights to the host in ZeRO-3, "
        f"with the optimizer's states; asked for is zero{strategy.zero_stage}. Use zero3 with "
        "optimizer,parameters."
    )


def check_deepspeed(strategy: Strategy, device: str) -> None:
    """Refuse what DeepSpeed's ZeRO of that stage does not do."""
    stage, offloaded = strategy.zero_stage, set(strategy.offload)
    if "activations" in offloaded:
        raise UsageError(
            "DeepSpeed offloads activations only where the script calls its checkpointing. Use "
            "offload optimizer or optimizer,parameters."
        )
    if "parameters" in offloaded and "optimizer" not in offloaded:
        raise _weights_stay(strategy)
    check_offloaded_weights(strategy)
    if strategy.deepspeed.offload_device == "nvme" and (stage != 3 or not offloaded):
        raise UsageError(
            f"DeepSpeed offloads to NVMe in ZeRO-3 only; asked for is zero{stage} with offload "
            f"{','.join(strategy.offload) or 'none'}. Use zero3 with offload optimizer."
        )
    if strategy.deepspeed.offload_device == "nvme" and device == "cpu":
        raise UsageError(
            "DeepSpeed compiles its asynchronous I/O when it first offloads to NVMe (libaio, g++, "
            "ninja); CPU ranks compile nothing. Use offload device cpu, or a GPU."
        )


def check_mesh(strategy: Strategy, device: str) -> None:
    """Refuse what Accelerate's ParallelismConfig does not do for a script."""
    if strategy.dp_replicate > 1 and strategy.dp_shard == 1:
        raise UsageError(
            f"{strategy.name!r}: Accelerate refuses tensor or context parallelism beside plain "
            "replicas ('Please set dp_shard_size > 1'). Use fsdp instead of dp."
        )
    if strategy.cp > 1 and strategy.context.cp_method == "ulysses":
        raise UsageError(
            "Ulysses needs a script that exchanges heads. Use the recipe gpt, or cp method ring."
        )
    if strategy.cp > 1 and device == "cpu":
        raise UsageError(
            "Accelerate's context parallelism fails on CPU ranks: torch has no sharding rule for "
            "the CPU's flash attention. Use the recipe gpt, or a GPU."
        )

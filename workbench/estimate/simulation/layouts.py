"""A `Strategy` applied to the module: precision, adapters, recompute, tensor parallel, FSDP2, DDP.

Everything happens on the meta device outside the fake mode (device meshes do not work inside it);
`materialise` then gives every parameter a fake CPU storage.
"""
# ruff: noqa: SLF001 - parameters are replaced in place, and FSDP2 must be told
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownLambdaType=false, reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from workbench.describe import Strategy, Workload
from workbench.estimate.simulation.build import Trainee, blocks_of
from workbench.estimate.simulation.refusal import CannotSimulateError

LOW = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-pure": torch.bfloat16,
    "fp16-pure": torch.float16,
}


def device_mesh(strategy: Strategy) -> DeviceMesh | None:
    """The mesh of one pipeline stage with the dimensions that are larger than one."""
    sizes = {
        "replicate": strategy.dp_replicate,
        "shard": strategy.dp_shard,
        "tensor": strategy.tp,
    }
    used = {name: size for name, size in sizes.items() if size > 1}
    if not used:
        return None
    return init_device_mesh("cpu", tuple(used.values()), mesh_dim_names=tuple(used))


def set_precision(trainee: Trainee, workload: Workload) -> None:
    """Cast the weights: all of them for pure bf16, the frozen base for LoRA."""
    low = LOW.get(workload.precision)
    if low is not None and (workload.precision.endswith("-pure") or workload.lora_rank):
        for module in trainee.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    parameter.data = parameter.data.to(low)
                    module._parameters[name] = parameter


def freeze(trainee: Trainee, workload: Workload, *, first: bool) -> None:
    """Train only the last blocks and the head, where `trained_layers` says so."""
    if workload.trained_layers is None:
        return
    blocks = blocks_of(trainee)
    del first
    trainee.requires_grad_(requires_grad=False)
    for block in blocks[len(blocks) - workload.trained_layers :]:
        block.requires_grad_(requires_grad=True)
    if trainee.head is not None:
        trainee.head.requires_grad_(requires_grad=True)
    norm = getattr(trainee.body, "norm", getattr(trainee.body, "ln_f", None))
    if isinstance(norm, nn.Module):
        norm.requires_grad_(requires_grad=True)


def add_adapters(trainee: Trainee, workload: Workload) -> None:
    """LoRA through PEFT: freezes the base and puts adapters beside the named linears."""
    if not workload.lora_rank:
        return
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415  (slow, rarely needed)

    names = {
        "q": ("q_proj", "query", "c_attn"),
        "k": ("k_proj", "key"),
        "v": ("v_proj", "value"),
        "o": ("o_proj", "c_proj"),
        "gate": ("gate_proj",),
        "up": ("up_proj", "c_fc", "fc1"),
        "down": ("down_proj", "fc2"),
        "head": ("head",),
    }
    linear_names = [name for target in workload.lora_targets for name in names[target]]
    if not {"q_proj"} & {name.rsplit(".", 1)[-1] for name, _ in trainee.named_modules()}:
        raise CannotSimulateError("LoRA is only built for models with rotary positions.")
    config = LoraConfig(r=workload.lora_rank, target_modules=linear_names, lora_dropout=0.0)
    inject_adapter_in_model(config, trainee)
    width = workload.adapter_bytes or (2 if workload.precision.endswith("-pure") else 4)
    for name, parameter in trainee.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.to(torch.bfloat16 if width == 2 else torch.float32)


def split_tensors(trainee: Trainee, strategy: Strategy, mesh: DeviceMesh) -> None:
    """Tensor parallelism as torchtitan and torch's tutorial lay it out, the loss split as well."""
    sequence = strategy.sequence_parallel
    inside = Shard(1) if sequence else Replicate()
    block: dict[str, ParallelStyle] = {
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "self_attn.o_proj": RowwiseParallel(output_layouts=inside),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=inside),
    }
    if sequence:
        block["self_attn"] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        )
        block["mlp"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        )
    root: dict[str, ParallelStyle] = {}
    if isinstance(getattr(trainee.body, "embed_tokens", None), nn.Embedding):
        root["body.embed_tokens"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=inside
        )
    if trainee.head is not None:
        root["head"] = ColwiseParallel(
            input_layouts=inside, output_layouts=Shard(-1), use_local_output=False
        )
    for module in blocks_of(trainee):
        norms = [name for name, _ in module.named_children() if name.endswith("layernorm")]
        plan = block | ({name: SequenceParallel() for name in norms} if sequence else {})
        parallelize_module(module, mesh, plan)
    if sequence and not isinstance(getattr(trainee.body, "norm", None), nn.Identity):
        root["body.norm"] = SequenceParallel()
    parallelize_module(trainee, mesh, root)


def shard(trainee: Trainee, workload: Workload, strategy: Strategy, mesh: DeviceMesh) -> None:
    """FSDP2: every block is a group, the rest is the root group."""
    low = LOW.get(workload.precision)
    policy = MixedPrecisionPolicy()
    if workload.precision in {"bf16", "fp16"}:
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    names = tuple(name for name in ("replicate", "shard") if name in (mesh.mesh_dim_names or ()))
    part = mesh if names == mesh.mesh_dim_names else mesh[names]
    reshards = not strategy.keeps_gathered_weights
    for block in blocks_of(trainee):
        fully_shard(block, mesh=part, mp_policy=policy, reshard_after_forward=reshards)
    fully_shard(trainee, mesh=part, mp_policy=policy, reshard_after_forward=reshards)


def materialise(trainee: nn.Module) -> None:
    """Give every parameter and buffer an uninitialised storage; call inside the fake mode."""
    replacements: dict[int, nn.Parameter] = {}
    for module in trainee.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in replacements:
                replacements[id(parameter)] = nn.Parameter(
                    _empty_like(parameter), requires_grad=parameter.requires_grad
                )
            module._parameters[name] = replacements[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _empty_like(buffer)
    for module in trainee.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            for parameter in group.fsdp_params if group else ():
                parameter.reset_sharded_param()


def _empty_like(tensor: Any) -> Any:
    if not isinstance(tensor, DTensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    local = torch.empty(tensor._local_tensor.shape, dtype=tensor.dtype)
    return DTensor(local, tensor._spec, requires_grad=False)

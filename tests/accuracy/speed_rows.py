"""A published throughput, scaling or cost row -> the workbench's own values.

As rows.py: what a framework does is translated into named assumptions by the kind of
implementation, never by source or row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from tests.accuracy.rows import (
    GPUS,
    Case,
    NotExpressedError,
    Row,
    generation,
    kernels_of,
    number,
    strategy_of,
    stratum,
    whole,
    workload_of,
)
from workbench.describe import Cluster, ImplementationAssumptions, Network, Strategy, Workload
from workbench.errors import WorkbenchError
from workbench.estimate import training_memory
from workbench.estimate.flops import flops_per_token


@dataclass(frozen=True)
class Speed:
    """One throughput row, described, with its measured value."""

    case: Case
    tokens_per_second_per_gpu: float


def speed_of(row: Row) -> Speed:
    """Describe a throughput row.

    Raises:
        NotExpressedError: with the reason.
    """
    case = speed_case(row)
    return Speed(case, measured_rate(row, case))


def speed_case(row: Row) -> Case:
    """Workload, strategy and cluster of a row whose recompute may be unstated.

    Raises:
        NotExpressedError: with the reason.
    """
    try:
        cluster = cluster_of(row)
        act = row["act_ckpt"] if is_stated(row["act_ckpt"]) else least_recompute(row)
        strategy, workload = _described({**row, "act_ckpt": act})
    except WorkbenchError as error:
        raise NotExpressedError(str(error)) from error
    return Case(workload=workload, strategy=strategy, cluster=cluster, stratum=stratum(row))


def cluster_of(row: Row) -> Cluster:
    name = row["gpu"]
    if name not in GPUS:
        raise NotExpressedError(f"GPU {name!r}")
    gpus = whole(row, "n_gpus", 1)
    per_node = whole(row, "gpus_per_node", 0) or min(8, gpus)
    per_node = min(per_node, gpus)
    if gpus % per_node:
        per_node = gpus
    inside = row.get("intra_node_link", "").lower()
    link = "pcie" if "pcie" in inside and "nvlink" not in inside.replace("no nvlink", "") else ""
    return Cluster.rented(
        GPUS[name],
        per_node,
        gpus // per_node,
        network=network_of(row, per_node),
        link=link or "catalog",
    )


def network_of(row: Row, per_node: int) -> Network | None:
    """The fabric as the row words it; None where it does not give a rate."""
    text = row.get("inter_node_link", "").lower()
    kind = "infiniband"
    for word, name in (
        ("roce", "roce"),
        ("efa", "efa"),
        ("tcpx", "tcpx"),
        ("omni", "omni-path"),
        ("rdma", "roce"),
    ):
        if word in text:
            kind = name
            break
    rate = 0.0
    if found := re.search(r"(\d+)\s*x\s*(?:hdr|ndr|edr)?\s*(?:ib)?\s*(\d+)\s*gb?", text):
        rate = float(found[1]) * float(found[2])
    elif found := re.search(r"(\d+)\s*gb(?:ps|/s)?[^,]*per gpu", text):
        rate = float(found[1]) * per_node
    elif found := re.search(r"(\d+)\s*gb(?:ps|/s)?[^,]*per node", text):
        rate = float(found[1])
    elif found := re.search(r"(\d+)\s*tb/s[^,]*per node", text):
        rate = float(found[1]) * 1000
    elif kind == "tcpx":
        rate = 800.0  # an A3 High node has four ports of 200 Gbit/s
    elif kind == "efa":
        rate = 3200.0  # p5: 32 ports of 100 Gbit/s
    return Network(name=text, kind=kind, bytes_per_second=rate * 0.125e9) if rate else None


LADDER = ("none", "selective: core_attn+norm", "selective: core_attn+norm+moe+mlp", "full")


def is_stated(act: str) -> bool:
    """Whether a row says what is recomputed."""
    text = act.lower()
    return bool(text) and not re.search(r"not stated|unknown|not read|not set|per recipe", text)


def least_recompute(row: Row) -> str:
    """The lightest of `LADDER` with which the row's job fits its card."""
    cluster = cluster_of(row)
    for choice in LADDER[:-1]:
        strategy, workload = _described({**row, "act_ckpt": choice})
        if training_memory(workload, strategy, cluster).fits:
            return choice
    return LADDER[-1]


def _described(row: Row) -> tuple[Strategy, Workload]:
    """Strategy and workload with what the implementation adds to both."""
    strategy = strategy_of(row)
    strategy = strategy.with_options(**_spread(row, strategy), **_overlap(row))
    workload = workload_of(row, strategy)
    eager = row.get("flash_attn", "").lower() == "no"
    return strategy, replace(
        workload, kernels=_kernels(row), attention="eager" if eager else "flash"
    )


def _spread(row: Row, strategy: Strategy) -> dict[str, Any]:
    """Recompute and sharding in words that the memory rows do not have."""
    act, shard = row.get("act_ckpt", "").lower(), row.get("shard", "").lower()
    options: dict[str, Any] = {}
    if "layer-wise" in act:
        options = {"recompute": "full", "recompute_layers": whole(row, "layers") // 2}
    elif "minimal_with_context" in act:
        options = {"recompute": "selective", "recompute_parts": ("mlp",)}
    elif act == "selective":
        options = {"recompute": "selective", "recompute_parts": ("attention",)}
    ranks = strategy.data_ranks
    if strategy.pp > 1 and "fsdp" in shard:  # torch's and Meta's pipelines keep gathered weights
        options |= {"reshard_after_forward": False}
    if "hsdp" in shard:
        size = min(8, ranks)
        return options | {"dp_shard": size, "dp_replicate": ranks // size}
    if "grad_op" in shard or "zero-2-like" in shard:
        kept = {"zero_stage": None, "reshard_after_forward": False}
        return options | kept | {"dp_shard": ranks, "dp_replicate": 1}
    if found := re.search(r"group (\d+)", shard):  # ZeRO-1 within groups, replicas between them
        size = min(int(found[1]), ranks)
        return options | {"dp_shard": size, "dp_replicate": ranks // size}
    return options


def _overlap(row: Row) -> dict[str, bool]:
    """What runs beside compute, by the implementation's generation."""
    framework, release = row.get("framework", "").lower(), row.get("release", "").lower()
    text = f"{row.get('strategy', '')} {row.get('notes', '')}".lower()
    if any(word in framework for word in ("nemo", "bridge", "swift")) or "core" in release:
        user_buffers = "bridge" in framework or "nemo" in framework
        interleaved = "bridge" in framework and whole(row, "vpp", 1) > 1
        return {"overlap_gradients": True, "overlap_tp": user_buffers, "overlap_ep": interleaved}
    if "megatron" in framework or "nanotron" in framework:  # reduced after the last backward
        return {"overlap_gradients": False}
    return {"overlap_tp": True} if re.search(r"async ?tp", text) else {}


def _kernels(row: Row) -> ImplementationAssumptions:
    """rows.py's assumptions, and those that only time depends on."""
    framework, release = row.get("framework", "").lower(), row.get("release", "").lower()
    said = f"{framework} {row.get('notes', '')} {row.get('flash_attn', '')}".lower()
    base = kernels_of(row)
    own = bool(re.search(r"llm\.c|fused (ops|kernels)", said))
    return replace(
        base,
        norm="fused" if own else base.norm,
        activation="fused" if own else base.activation,
        compiled_loss=own or base.compiled_loss,
        flash_version=_flash(row),
        reduce_bytes=2 if "fms-fsdp" in framework else None,  # its policy reduces in bf16
        expert_imbalance=2.0 if "natural routing" in said else 1.0,  # else synthetic data
        grouped_experts="bridge" in framework and bool(re.search(r"26\.(0[5-9]|x)", release)),
        compiled=base.compiled or row.get("compile", "") == "XLA",
    )


def _flash(row: Row) -> int:
    text = row.get("flash_attn", "").lower()
    if re.search(r"te\b|cudnn|fa3|fa4|flex", text):
        return 3
    framework = row.get("framework", "").lower()
    if "nemo" in framework:
        return 3
    release = row.get("release", "")
    if "flashattention-2" not in text and "v2" not in text and release == "2023":
        return 1  # FlashAttention-2 came in July 2023; frameworks took it up by the year's end
    blackwell = generation(row["gpu"]) == "Blackwell"  # torch's sdpa takes cuDNN there
    return 3 if "titan" in framework and blackwell else 2


def measured_rate(row: Row, case: Case) -> float:
    """Measured tokens per second and GPU, from whichever figure the source prints."""
    if "torchtune" in row["framework"].lower() and whole(row, "n_gpus", 1) > 1:
        raise NotExpressedError("whether tokens/s are per GPU or of all GPUs is not stated")
    for column in ("tok_s_gpu", "derived_tok_s_gpu"):
        if row.get(column, "").strip():
            return number(row, column)
    gpus = whole(row, "n_gpus", 1)
    if row.get("step_s", "").strip():
        tokens = case.workload.tokens_per_step(case.strategy.data_ranks)
        return tokens / number(row, "step_s") / gpus
    flops = number(row, "tflops_gpu") * 1e12
    return flops / _convention(row, case.workload, case.strategy)


def _convention(row: Row, workload: Workload, strategy: Strategy) -> float:
    """FLOPs per token as the source counts them (truth/README.md, conventions 1 and 2)."""
    text = row.get("tflops_convention", "").lower()
    framework = row.get("framework", "").lower()
    causal = "causal" in text and "non-causal" not in text
    causal = causal or "bridge" in framework
    total = flops_per_token(workload.model, workload.seq_len, causal=causal)
    if "hardware" in text and strategy.recompute == "full":
        total *= 4 / 3
    return total

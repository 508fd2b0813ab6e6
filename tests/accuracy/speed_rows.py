"""A published throughput, scaling or cost row -> the workbench's own values, as rows.py."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.accuracy.rows import (
    GPUS,
    Case,
    NotExpressedError,
    Row,
    is_stated,
    job_of,
    low,
    number,
    per_node,
    stratum,
    whole,
)
from workbench.describe import Cluster, Network, Strategy, Workload
from workbench.errors import WorkbenchError
from workbench.estimate.flops import flops_per_token
from workbench.estimate.memory import training_memory

FABRICS = {"roce": "roce", "efa": "efa", "tcpx": "tcpx", "omni": "omni-path", "rdma": "roce"}
USUAL_RATES = {"tcpx": 800.0, "efa": 3200.0}
"""Gbit/s of a node: A3 High has four ports of 200, p5 32 of 100."""
LADDER = ("none", "selective: core_attn+norm", "selective: core_attn+norm+moe+mlp", "full")


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
        job = job_of({**row, "act_ckpt": act})
    except WorkbenchError as error:
        raise NotExpressedError(str(error)) from error
    return Case(job.workload, job.strategy, cluster, stratum(row))


def cluster_of(row: Row) -> Cluster:
    name = row["gpu"]
    if name not in GPUS:
        raise NotExpressedError(f"GPU {name!r}")
    size = per_node(row)
    inside = row.get("intra_node_link", "").lower()
    link = "pcie" if "pcie" in inside and "nvlink" not in inside.replace("no nvlink", "") else ""
    return Cluster.rented(
        GPUS[name],
        size,
        whole(row, "n_gpus", 1) // size,
        network=network_of(row, size),
        link=link or "catalog",
    )


def network_of(row: Row, size: int) -> Network | None:
    """The fabric as its column words it; None where it does not give a rate."""
    text = low(row, "inter_node_link")
    kind = next((name for word, name in FABRICS.items() if word in text), "infiniband")
    rate = _rate(text, size) or USUAL_RATES.get(kind, 0.0)
    return Network(name=text, kind=kind, bytes_per_second=rate * 0.125e9) if rate else None


def _rate(text: str, size: int) -> float:
    """Gbit/s of a node, such as of "8 x HDR 200 Gb/s", "400 Gb/s per GPU"; 0 = not given."""
    if found := re.search(r"(\d+)\s*x\s*(?:hdr|ndr|edr)?\s*(?:ib)?\s*(\d+)\s*gb?", text):
        return float(found[1]) * float(found[2])
    if found := re.search(r"(\d+)\s*(g|t)b(?:ps|/s)?[^,]*per (gpu|node)", text):
        several = size if found[3] == "gpu" else 1
        return float(found[1]) * several * (1000 if found[2] == "t" else 1)
    return 0.0


def least_recompute(row: Row) -> str:
    """The lightest of `LADDER` with which the row's job fits its card."""
    cluster = cluster_of(row)
    for choice in LADDER[:-1]:
        job = job_of({**row, "act_ckpt": choice})
        if training_memory(job.workload, job.strategy, cluster).fits:
            return choice
    return LADDER[-1]


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
    """FLOPs per token as the source counts them."""
    text = row.get("tflops_convention", "").lower()
    framework = row.get("framework", "").lower()
    causal = "causal" in text and "non-causal" not in text
    causal = causal or "bridge" in framework
    total = flops_per_token(workload.model, workload.seq_len, causal=causal)
    if "hardware" in text and strategy.recompute == "full":
        total *= 4 / 3
    return total

"""A published row in the truth files' columns -> the workbench's own values.

What a framework does is translated into `ImplementationAssumptions` and `Workload` fields here, by
the kind of implementation, never by source or row: the estimator sees only the described values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from workbench.describe import Cluster, Gpu, ImplementationAssumptions, Model, Strategy, Workload
from workbench.describe import catalog as shapes
from workbench.describe.workload import LORA_TARGETS
from workbench.errors import WorkbenchError

Row = dict[str, str]

# GPU names of the files -> ids of the catalog.
GPUS = {
    "A100-SXM-80GB": "a100-sxm-80",
    "A100-SXM-40GB": "a100-sxm-40",
    "A800-80GB": "a800-80",
    "H100-SXM-80GB": "h100-sxm",
    "H100-SXM-96GB-HBM2e": "h100-sxm-96",
    "H200-SXM-141GB": "h200-sxm",
    "B200": "b200-sxm",
    "B300": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "A10G": "a10g",
    "RTX3090": "rtx-3090",
    "RTX4090": "rtx-4090",
    "RTX4070TiSUPER": "rtx-4070ti-super",
    "RTX-A5000": "rtx-a5000",
    "RTX-A6000": "rtx-a6000",
    "RTX-6000-Ada": "rtx-6000-ada",
    "L40S": "l40s",
    "MI300X": "mi300x",
    "V100-SXM-32GB": "v100-sxm2-32",
    "V100-SXM-16GB": "v100-sxm2-16",
}
GENERATIONS = {
    "Hopper": ("H100", "H200", "GH200", "H800"),
    "Blackwell": ("B200", "B300", "GB200", "GB300", "RTX50"),
    "Ampere": ("A100", "A800", "A10", "RTX30", "A6000", "RTX-A", "A40"),
    "Ada": ("RTX40", "L40", "L4", "RTX-6000-Ada"),
    "CDNA": ("MI",),
    "Volta": ("V100",),
}


def counts(row: Row, kinds: frozenset[str]) -> bool:
    """Whether a row is scored: one row per configuration, described in full, of these kinds."""
    described = row["primary"] == "1" and row["full_config"] not in {"", "0"}
    return described and row["kind"] in kinds


class NotExpressedError(Exception):
    """The model has no words for this row; the message says what is missing."""


@dataclass(frozen=True)
class Case:
    """One row, described."""

    workload: Workload
    strategy: Strategy
    cluster: Cluster
    stratum: str


def number(row: Row, column: str, default: float | None = None) -> float:
    text = row.get(column, "").strip()
    if not text:
        if default is None:
            raise NotExpressedError(f"{column} is not given")
        return default
    try:
        return float(text)
    except ValueError as error:
        raise NotExpressedError(f"{column} = {text!r} is no number") from error


def whole(row: Row, column: str, default: int | None = None) -> int:
    return int(number(row, column, default))


def generation(gpu: str) -> str:
    for name, prefixes in GENERATIONS.items():
        if any(gpu.startswith(prefix) for prefix in prefixes):
            return name
    return gpu or "unknown"


def stratum(row: Row) -> str:
    nodes = number(row, "n_nodes", 0) or (2 if number(row, "n_gpus", 1) > 8 else 1)
    kind = "MoE" if number(row, "n_experts", 0) else "dense"
    multi = "multi-node" if nodes > 1 else "one node"
    return f"{generation(row['gpu'])} | {multi} | {kind} | {row['task'] or 'pretrain'}"


def model_of(row: Row) -> Model:
    """The shape: the catalog's where its sizes are the row's, else built from the columns."""
    inner = whole(row, "ffn", 0) or 4 * whole(row, "hidden")
    if inner % 128:  # published as hidden x 8 / 3; implementations round it up
        inner = -(-inner // 256) * 256
    size = {
        "layers": whole(row, "layers"),
        "hidden": whole(row, "hidden"),
        "heads": whole(row, "heads"),
        "mlp_hidden": inner,
        "vocab": whole(row, "vocab"),
    }
    for known in shapes.models():
        same = all(getattr(known, name) == value for name, value in size.items())
        if same and known.key_value_heads == whole(row, "kv_heads", size["heads"]):
            longer = max(known.max_positions, whole(row, "seq_len"))  # a table for what was run
            table = longer if known.position == "learned" else known.max_positions
            return replace(known, tied_embeddings=tied(row), max_positions=table)
    return _from_columns(row, size)


def tied(row: Row) -> bool:
    """LitGPT has a head of its own for every model."""
    return row.get("tied_emb") == "1" and "litgpt" not in row.get("framework", "").lower()


def _from_columns(row: Row, size: dict[str, int]) -> Model:
    family, name = row.get("arch_family", "").lower(), row.get("model", "").lower()
    bloom = "bloom" in family or "gpt" in family
    experts = whole(row, "n_experts", 0)
    base = Model(
        name=row.get("model") or "row",
        **size,
        kv_heads=whole(row, "kv_heads", size["heads"]),
        norm="layernorm" if bloom else "rmsnorm",
        position="alibi" if "bloom" in name or "alibi" in family else "rope",
        tied_embeddings=tied(row),
        qkv_bias=bloom,
        out_bias=bloom,
        mlp_bias=bloom,
        embedding_norm="bloom" in name,
        experts=experts,
        experts_per_token=whole(row, "moe_topk", 0),
        expert_hidden=whole(row, "moe_ffn", 0) if experts else 0,
        gated_mlp=not bloom,
        head_dim=128 if size["hidden"] % size["heads"] else None,
    )
    stated = number(row, "params_b", 0) * 1e9
    if not stated:
        return base
    options = [replace(base, gated_mlp=gated) for gated in (base.gated_mlp, not base.gated_mlp)]
    return min(options, key=lambda one: round(abs(one.parameters / stated - 1), 2))


def kernels_of(row: Row) -> ImplementationAssumptions:
    """What the implementation keeps for backward, by kind of implementation."""
    framework = row.get("framework", "").lower()
    notes = (row.get("notes", "") + " " + row.get("framework", "")).lower()
    optimizer = row.get("optimizer", "").lower()
    compiled = row.get("compile", "").lower().startswith("y")
    liger = "liger" in notes and "no liger" not in notes and "without liger" not in notes
    megatron = any(word in framework for word in ("megatron", "nanotron", "internevo", "nemo"))
    deepspeed = "deepspeed" in framework and "megatron" in framework
    own_master = "fp32 master" in optimizer or "distributed optimizer" in optimizer
    flat = deepspeed or "internevo" in framework  # their optimizers flatten low-precision gradients
    low = "bridge" in framework  # its recipes reduce gradients in bf16
    gradient = 2 if flat or low else 4
    if "fp32 grad" in row["precision"]:
        gradient = 6 if deepspeed else 4
    return ImplementationAssumptions(
        norm="fused" if megatron or liger or compiled else "upcast",
        activation="fused" if (megatron or liger) and "nanotron" not in framework else "separate",
        compiled=compiled,
        logits_fp32="litgpt" not in framework,
        logits_copies=5 if "nanotron" in framework else 3,
        compiled_loss=low or (compiled and "titan" in framework and row["release"] >= "2025"),
        gradient_bytes=gradient if megatron else None,
        master_copy=True if megatron or own_master else None,
        gathered_inputs=not megatron,
        fp8_inputs="bridge" in framework,  # Transformer Engine
        lora_dropout="litgpt" in framework,
        fp32_logits_returned=before_2025(row),
        whole_before_sharding="litgpt" in framework and "lora" in row["task"],
        tiled_mlp="tiled mlp" in notes,
        optimizer_in_backward="in-backward" in optimizer or optimizer == "lomo",
        expandable_segments="expandable" in notes,
    )


OPTIMIZERS = (
    ("paged.*8bit", "paged-adamw-8bit"),
    ("paged", "paged-adamw"),
    ("8-?bit", "adamw-8bit"),
    ("4-?bit", "adamw-4bit"),
    ("galore", ""),
    ("lomo", "sgd"),
    ("momentum", "sgd-momentum"),
    ("sgd", "sgd"),
    ("adafactor", "adafactor"),
    ("lion", "lion"),
    ("muon", "muon"),
    ("fused|distributed", "adamw-fused"),
    ("differs|not stated", ""),
    ("adam|^$", "adamw"),
)


def optimizer_of(row: Row) -> str:
    text = row.get("optimizer", "").lower()
    own = ("megatron", "deepspeed", "nanotron", "swift")  # bring or ask for a fused Adam
    framework = row.get("framework", "").lower()
    zero = "zero" in row.get("shard", "") and "fsdp" not in row.get("shard", "")
    if text.startswith("adamw (") and zero and any(word in framework for word in own):
        text = "fused"
    for pattern, name in OPTIMIZERS:
        if re.search(pattern, text):
            if not name:
                break
            return name
    raise NotExpressedError(f"optimizer {row['optimizer']!r}")


def before_2025(row: Row) -> bool:
    """transformers before 4.45 (September 2024) turned all logits to fp32 and handed them out."""
    framework = row.get("framework", "").lower()
    theirs = any(word in framework for word in ("swift", "transformers", "qlora", "hf"))
    year = re.search(r"20\d\d", row.get("release", ""))
    return theirs and year is not None and int(year[0]) < 2025


def precision_of(row: Row) -> str:
    text = row.get("precision", "").lower()
    if row.get("optimizer") == "LOMO":
        return "bf16-pure"  # two bytes per weight and nothing else
    if re.search(r"fp8|float8|mxfp8|nvfp4", text):
        return "fp8"
    if re.search(r"pure|bf16-true|bf16 adapters", text):
        return "bf16-pure"
    if "fp16" in text:
        return "fp16"
    if "bf16" in text or "16-bit" in text:
        return "bf16"
    if "fp32" in text or "tf32" in text:
        return "fp32"
    raise NotExpressedError(f"precision {row['precision']!r}")


QUANTIZATIONS = (
    ("nf4-dq", "nf4-dq"),
    (r"nf4|int4 \(bnb\)|fp4", "nf4"),
    ("int8", "int8"),
    ("int4", "int4"),
)
TARGETS = (
    ("all linear|all-linear", ("q", "k", "v", "o", "gate", "up", "down")),
    ("default", ("q", "k", "v")),
    ("fc1|proj,mlp|projection", ("q", "k", "v", "o", "gate", "up", "down")),
)


def lora_of(row: Row) -> dict[str, object]:
    task = row.get("task", "")
    if task not in {"lora", "qlora", "dora"}:
        if task in {"adapter", "adapterv2", "adalora", "ia3", "ln_tuning", "loha", "lokr", "oft"}:
            raise NotExpressedError(f"adapter method {task!r}")
        return {}
    text = row.get("lora_targets", "").lower()
    targets: tuple[str, ...] = ()
    for pattern, found in TARGETS:
        if re.search(pattern, text):
            targets = found
            break
    else:
        words = {"query": "q", "key": "k", "value": "v", "q_proj": "q", "k_proj": "k"}
        words |= {"v_proj": "v", "o_proj": "o", "gate_proj": "gate", "up_proj": "up"}
        words |= {"down_proj": "down", "qkv": "q"}
        targets = tuple(words.get(one.strip(), one.strip()) for one in text.split(",") if one)
        if not set(targets) <= set(LORA_TARGETS):  # "per the reference": attention's projections
            targets = ("q", "k", "v", "o")
    if "head" in text:
        targets += ("head",)
    quant = row.get("quant", "").lower()
    found = [name for pattern, name in QUANTIZATIONS if re.search(pattern, quant)]
    return {
        "lora_rank": whole(row, "lora_rank", 8),
        "lora_targets": targets or ("q", "v"),
        "quantization": found[0] if found else "none",
        "quantized_head": "litgpt" in row.get("framework", "").lower(),
    }


def workload_of(row: Row, strategy: Strategy) -> Workload:
    framework = row.get("framework", "").lower()
    notes = row.get("notes", "").lower()
    if "seq_len is only the cap" in notes:
        raise NotExpressedError("sequence length is only a cap")
    micro = whole(row, "micro_batch", 1)
    accumulate = whole(row, "grad_accum", 0)
    if not accumulate:
        whole_batch = number(row, "global_batch", micro * strategy.data_ranks)
        accumulate = max(1, round(whole_batch / (micro * strategy.data_ranks)))
    fused_loss = "liger" in (notes + framework) and not re.search("no liger|without liger", notes)
    return Workload(
        model=model_of(row),
        seq_len=whole(row, "seq_len"),
        micro_batch=micro,
        accumulate=accumulate,
        precision=precision_of(row),
        optimizer=optimizer_of(row),
        attention="eager" if row.get("flash_attn", "").lower() == "no" else "flash",
        keep_logits=before_2025(row),
        variable_length="truncated at" in notes,
        loss="fused" if fused_loss else _plain_loss(row),
        kernels=kernels_of(row),
        **lora_of(row),
    )


def _plain_loss(row: Row) -> str:
    """torchtune's recipes split the output into chunks since autumn 2024."""
    theirs = "torchtune" in row.get("framework", "").lower()
    return "chunked-output" if theirs and row.get("release", "") >= "2024-09" else "full"


RECOMPUTE = (
    (r"^full", ("full", ())),
    (r"op-level", ("selective", ("op",))),
    (r"^none", ("none", ())),
)


def strategy_of(row: Row) -> Strategy:
    shard, layout = row.get("shard", "").lower(), row.get("strategy", "").lower()
    gpus = whole(row, "n_gpus", 1)
    tp, pp, cp = (whole(row, one, 1) for one in ("tp", "pp", "cp"))
    ep = whole(row, "ep", 1)
    dp = whole(row, "dp", max(1, gpus // (tp * pp * cp)))
    stage = re.search(r"zero-?([123])", shard)
    fsdp = "fsdp" in shard
    sharded = fsdp or stage is not None
    if fsdp and dp == 1 and tp * pp * cp < gpus:
        dp = gpus // (tp * pp * cp)
    act = row.get("act_ckpt", "").lower()
    if not act or "not stated" in act or "unknown" in act:
        raise NotExpressedError("recompute is not stated")
    recompute, parts = next((r for p, r in RECOMPUTE if re.search(p, act)), ("", ()))
    if not recompute:
        parts = _selective(act)
        recompute = "selective" if parts else "none"
    away = row.get("offload", "").lower()
    offload = tuple(
        name
        for name, word in (
            ("optimizer", "optim"),
            ("parameters", "param"),
            ("activations", "activ"),
        )
        if word in away
    )
    chunks = whole(row, "vpp", 1) or 1
    theirs = (
        row.get("framework", "").lower() == "nemo"
    )  # splits experts by tp unless told otherwise
    expert_tp = tp if theirs and ep > 1 and dp * cp % ep == 0 else 1
    strategy = Strategy(
        name=row.get("strategy") or "row",
        dp_replicate=1 if sharded else dp,
        dp_shard=dp if sharded else 1,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        expert_tp=expert_tp,
        zero_stage=int(stage[1]) if stage and not fsdp else None,
        sequence_parallel=row.get("seq_parallel", "").lower().startswith("y"),
        recompute=recompute,
        recompute_parts=parts or ("attention",),
        offload=offload,
    )
    return strategy.with_options(
        schedule="naive" if "naive" in layout else ("interleaved" if chunks > 1 else "1f1b"),
        virtual_stages=chunks,
        embedding_as_layer="embedding layers balanced" in row.get("precision", ""),
        **_buckets(row, stage),
    )


def _selective(act: str) -> tuple[str, ...]:
    words = (("attention", "core_attn|attention"), ("mlp", "mlp"), ("norm", "norm"), ("moe", "moe"))
    return tuple(part for part, word in words if re.search(word, act))


def _buckets(row: Row, stage: re.Match[str] | None) -> dict[str, int]:
    """transformers' "auto" sizes for its own trainers; Megatron's optimizer has no such buckets."""
    framework = row.get("framework", "").lower()
    if stage is None:
        return {}
    if framework.startswith(("megatron-bridge", "nanotron", "internevo")):
        return {"reduce_bucket": 40_000_000, "gather_bucket": 40_000_000}
    if any(word in framework for word in ("hf", "swift", "transformers", "arctic")):
        square = whole(row, "hidden") ** 2
        return {"reduce_bucket": square, "gather_bucket": square * 9 // 10}
    return {}


def card_of(row: Row) -> int:
    gpu = row.get("gpu", "")
    if gpu in GPUS:
        return shapes.gpu(GPUS[gpu]).memory_bytes
    size = number(row, "gpu_vram_gb", 0)
    if not size:
        raise NotExpressedError(f"GPU {gpu!r}")
    return int(size * 2**30 * 0.99)


def case_of(row: Row) -> Case:
    """Describe a row.

    Raises:
        NotExpressedError: with the reason.
    """
    try:
        strategy = strategy_of(row)
        workload = workload_of(row, strategy)
        card = card_of(row)
    except WorkbenchError as error:
        raise NotExpressedError(str(error)) from error
    cluster = Cluster(name=row["gpu"], gpus=(Gpu(index=0, name=row["gpu"], memory_bytes=card),))
    return Case(workload=workload, strategy=strategy, cluster=cluster, stratum=stratum(row))


def has_fixed_shape(row: Row, case: Case) -> bool:
    """Whether every batch had the stated shape and the metric is one of PyTorch's or nvidia-smi's.

    Not: batches of the data's own lengths, torchtune's early tables (unpacked), metrics that the
    source does not define.
    """
    known = re.match(r"max_allocated|max_reserved|max_active|nvidia-smi", row["mem_metric"])
    unpacked = "torchtune" in row["framework"] and row["release"] < "2024-09"
    varies = case.workload.variable_length or "longest in batch" in row["notes"]
    return bool(known) and not unpacked and not varies


def metric_of(row: Row) -> str:
    """Which of the three numbers the row's metric is: allocated, reserved or on_card."""
    text = row.get("mem_metric", "").lower()
    if "reserved" in text and "allocated" not in text:
        return "reserved"
    if re.search(r"max_allocated$|max_active", text):
        return "allocated"
    if "nvidia-smi" in text or "device memory" in text:
        return "on_card"
    return "reserved" if "torchtune" not in text else "allocated"

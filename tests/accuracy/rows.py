"""A published row in the truth files' columns -> what a user types, `--trainer` among it.

Nothing of a framework is known here but its trainer's name: what that does by default stands in
the product (`workbench/describe/trainers`). Source, title, notes and id are never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from workbench.describe import Cluster, Gpu, Model, Strategy, Workload
from workbench.describe import catalog as shapes
from workbench.describe.job import Job
from workbench.describe.trainers import preset
from workbench.describe.workload import LORA_TARGETS
from workbench.errors import UsageError, WorkbenchError

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

# A word of the framework column -> the trainer's name; the first that is there counts.
TRAINERS = {
    "megatron-swift": "ms-swift",
    "ms-swift": "ms-swift",
    "megatron-deepspeed": "megatron-deepspeed",
    "megatron-bridge": "megatron-bridge",
    "nemo": "nemo",
    "megatron": "megatron-lm",
    "litgpt": "litgpt",
    "lit-gpt": "litgpt",
    "peft": "peft",
    "internevo": "internevo",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
    "torchao": "torchao",
    "fsdp_qlora": "fsdp_qlora",
    "fms-fsdp": "fms-fsdp",
    "arctic": "alst",
    "liger": "transformers",
    "+hf": "transformers",
    "transformers": "transformers",
    "lomo": "lomo",
    "deepspeed": "deepspeed",
    "nanotron": "nanotron",
    "llm-foundry": "llm-foundry",
    "olmo-core": "olmo-core",
    "llm.c": "llm.c",
    "nanochat": "nanochat",
    "pytorch": "pytorch",
}
OPTIMIZERS = {
    "galore": "",
    "not stated": "",
    "pagedadamw8bit": "paged-adamw-8bit",
    "pagedadamw": "paged-adamw",
    "8bit": "adamw-8bit",
    "8-bit": "adamw-8bit",
    "4bit": "adamw-4bit",
    "lomo": "sgd",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "lion": "lion",
    "muon": "muon",
    "fused": "adamw-fused",
    "adam": "adamw",
}
PRECISIONS = {
    "nvfp4": "fp8",
    "fp8": "fp8",
    "float8": "fp8",
    "fp16 (pure": "fp16-pure",
    "pure": "bf16-pure",
    "bf16": "bf16",
    "16-bit": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "tf32": "fp32",
}
QUANTIZATIONS = {"nf4-dq": "nf4-dq", "nf4": "nf4", "(bnb)": "nf4", "int8": "int8", "int4": "int4"}
TARGETS = {
    "all linear": ("q", "k", "v", "o", "gate", "up", "down"),
    "qkv,proj": ("q", "k", "v", "o", "gate", "up", "down"),
    "projection": ("q", "k", "v", "o", "gate", "up", "down"),
    "qkv": ("q", "k", "v"),
    "attention": ("q", "k", "v", "o"),
    "reference": ("q", "k", "v", "o"),
}
PARTS = {
    "core_attn": "attention",
    "attention": "attention",
    "mlp": "mlp",
    "norm": "norm",
    "moe": "moe",
    "op-level": "op",
    "minimal_with_context": "mlp",
}
OFFLOADS = {"optim": "optimizer", "param": "parameters", "activ": "activations"}
NEWER_ATTENTION = ("fa3", "fa4", "cudnn", "te)", "flex")
UNSTATED = ("not stated", "unknown", "not read", "not set", "per recipe")


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
    return row.get("tied_emb") == "1"


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


def low(row: Row, column: str) -> str:
    return (row.get(column) or "").lower()


def first(words: dict[str, Any], text: str, default: Any = None) -> Any:
    """The value of the first word that a text has."""
    return next((value for word, value in words.items() if word in text), default)


def every(words: dict[str, str], text: str) -> tuple[str, ...]:
    """The values of all words that a text has, each once."""
    return tuple(dict.fromkeys(value for word, value in words.items() if word in text))


def trainer_of(row: Row) -> str | None:
    """The row's framework as ``--trainer`` takes it, with its release where that is known."""
    framework = low(row, "framework")
    name = "lomo" if low(row, "optimizer") == "lomo" else first(TRAINERS, framework)
    if name is None:
        return None
    for word in [*_numbers(framework), *_numbers(low(row, "release"))]:
        try:
            return preset(f"{name}@{word}").text
        except UsageError:
            continue
    return name


def _numbers(text: str) -> Iterable[str]:
    """Words that start with a digit, or with v or r and one."""
    for word in text.replace("(", " ").split():
        number = word[1:] if word[0] in "vr" else word
        if number[:1].isdigit():
            yield number


def strategy_name(row: Row) -> str:
    """As ``--strategy`` takes it.

    Raises:
        NotExpressedError: its degrees do not multiply to the GPUs.
    """
    gpus = whole(row, "n_gpus", 1)
    tp, pp, cp, ep = (whole(row, one, 1) for one in ("tp", "pp", "cp", "ep"))
    shard, rest = low(row, "shard"), tp * pp * cp
    dp = whole(row, "dp", max(1, gpus // rest))
    if dp == 1 and shard not in {"", "none"}:
        dp = max(1, gpus // rest)
    if dp * rest != gpus:
        raise NotExpressedError("degrees do not multiply to the GPUs")
    stage = next((one for one in "123" if f"zero{one}" in shard or f"zero-{one}" in shard), "")
    fsdp = "fsdp" in shard or "hsdp" in shard
    split = dp
    if "hsdp" in shard or "group" in shard:
        split = min(dp, 4 if "group 4" in shard else 8)
    if rest == ep == 1 and split == dp:
        kept = "grad_op" in shard or "zero-2-like" in shard
        plain = "ddp" if gpus > 1 else "single"
        return "fsdp-grad-op" if kept else "fsdp" if fsdp else f"zero{stage}" if stage else plain
    sharded = f"fsdp{split}" if fsdp else f"zero{stage}x{split}" if stage else ""
    degrees = {"dp": dp // split if sharded else dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep}
    parts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    return "-".join([sharded, *parts] if sharded else parts)


def per_node(row: Row) -> int:
    """GPUs of each node; all of them where they do not divide over nodes."""
    gpus = whole(row, "n_gpus", 1)
    found = min(gpus, whole(row, "gpus_per_node", 0) or 8)
    return gpus if gpus % found else found


def layout_of(row: Row) -> dict[str, Any]:
    """Strategy and machines."""
    gpus, chunks = whole(row, "n_gpus", 1), whole(row, "vpp", 1) or 1
    layout = low(row, "strategy")
    nodes = gpus // per_node(row)
    words: dict[str, Any] = {
        "strategy": strategy_name(row),
        "gpus": gpus // nodes,
        "nodes": nodes,
    }
    if whole(row, "tp", 1) > 1 and low(row, "seq_parallel").startswith("y"):
        words["sequence_parallel"] = True
    if whole(row, "pp", 1) > 1:
        zero_bubble = "zero-bubble" if "zero bubble" in layout or "zb" in layout.split() else ""
        naive = "naive" if "naive" in layout else zero_bubble
        words["schedule"] = naive or ("interleaved" if chunks > 1 else "1f1b")
        words["virtual_stages"] = chunks
    if whole(row, "cp", 1) > 1 and "ulysses" in layout:
        words["cp_method"] = "ulysses"
    if "async tp" in layout or "asynctp" in layout:
        words["overlap_tp"] = True
    return words


def recompute_of(row: Row) -> dict[str, Any]:
    """What is recomputed.

    Raises:
        NotExpressedError: the row does not say.
    """
    act = low(row, "act_ckpt")
    if not is_stated(act):
        raise NotExpressedError("recompute is not stated")
    if "every 2nd" in act or "layer-wise" in act:
        layers = whole(row, "recompute_layers", whole(row, "layers") // 2)
        return {"recompute": "full", "recompute_layers": max(1, layers // whole(row, "pp", 1))}
    if act.startswith(("none", "full")):
        return {"recompute": act[:4]}
    parts = every(PARTS, act)
    return {"recompute": "selective"} | ({"recompute_parts": parts} if parts else {})


def is_stated(act: str) -> bool:
    """Whether a row says what is recomputed."""
    text = act.lower()
    return bool(text) and not any(word in text for word in UNSTATED)


def adapters_of(row: Row) -> dict[str, Any]:
    """LoRA.

    Raises:
        NotExpressedError: another adapter method.
    """
    task = row.get("task", "")
    if task not in {"lora", "qlora", "dora"}:
        if task and not task.startswith(("pretrain", "sft")):
            raise NotExpressedError(f"adapter method {task!r}")
        return {}
    text = low(row, "lora_targets")
    names = {"query": "q", "key": "k", "value": "v"}
    listed = [one.strip().removesuffix("_proj") for one in text.split(",") if one.strip()]
    targets = tuple(names.get(one, one) for one in listed)
    if not set(targets) <= set(LORA_TARGETS):
        head = ("head",) if "head" in text else ()
        targets = (*first(TARGETS, text, ("q", "v")), *head)
    words: dict[str, Any] = {"lora_rank": whole(row, "lora_rank", 8)}
    words |= {"lora_targets": targets} if targets else {}
    return words | {"quantization": first(QUANTIZATIONS, low(row, "quant"), "none")}


def batch_of(row: Row, data_ranks: int) -> dict[str, int]:
    """Micro-batch, accumulation and length."""
    micro = whole(row, "micro_batch", 1)
    accumulate = whole(row, "grad_accum", 0)
    if not accumulate:
        whole_batch = number(row, "global_batch", micro * data_ranks)
        accumulate = max(1, round(whole_batch / (micro * data_ranks)))
    return {"micro_batch": micro, "accumulate": accumulate, "seq_len": whole(row, "seq_len")}


def kernels_of(row: Row) -> dict[str, Any]:
    """Attention (and whether sequences are packed for it), torch.compile, Liger."""
    words: dict[str, Any] = {}
    attention, compiled = low(row, "flash_attn"), low(row, "compile")
    if attention:
        words["attention"] = "eager" if attention == "no" else "flash"
    if any(word in attention for word in NEWER_ATTENTION):
        words["flash_version"] = 3
    if "packed" in attention:
        words["variable_length"] = False
    if compiled.startswith(("y", "xla")):
        words["kernels"] = "compiled"
    elif compiled.startswith("n"):
        words["compiled"] = False
    if "liger" in low(row, "framework"):
        words |= {"kernels": "fused", "loss": "fused"}
    return words


def options_of(row: Row) -> dict[str, Any]:
    """The options of a job by name, without model and GPU.

    Raises:
        NotExpressedError: with what the columns lack.
    """
    optimizer = first(OPTIMIZERS, low(row, "optimizer"), "adamw")
    precision = first(PRECISIONS, low(row, "precision"))
    if not optimizer or precision is None:
        name = "precision" if precision is None else "optimizer"
        raise NotExpressedError(f"{name} {row[name]!r}")
    layout = layout_of(row)
    strategy = Strategy.parse(layout["strategy"], layout["gpus"] * layout["nodes"])
    words = layout | batch_of(row, strategy.data_ranks) | recompute_of(row) | adapters_of(row)
    words |= {"precision": precision, "optimizer": optimizer, "trainer": trainer_of(row)}
    if "in-backward" in low(row, "optimizer") or low(row, "optimizer") == "lomo":
        words["optimizer_in_backward"] = True
    if offload := every(OFFLOADS, low(row, "offload")):
        words["offload"] = offload
    if "embedding layers balanced" in low(row, "precision"):
        words["embedding_as_layer"] = True
    return words | kernels_of(row)


def job_of(row: Row, *, named: bool = True) -> Job:
    """The job that a user would describe; without its trainer if not `named`.

    A card that is not in the catalog is left out.

    Raises:
        NotExpressedError: with the reason.
    """
    words = options_of(row) | ({} if named else {"trainer": None})
    gpu = GPUS.get(row.get("gpu", ""))
    return Job.of(model_of(row), gpu=gpu, cpu=gpu is None, **words)


def card_of(row: Row) -> int:
    gpu = row.get("gpu", "")
    if gpu in GPUS:
        return shapes.gpu(GPUS[gpu]).memory_bytes
    size = number(row, "gpu_vram_gb", 0)
    if not size:
        raise NotExpressedError(f"GPU {gpu!r}")
    return int(size * 2**30 * 0.99)


def case_of(row: Row, *, named: bool = True) -> Case:
    """Describe a row; without its trainer if not `named`.

    Raises:
        NotExpressedError: with the reason.
    """
    try:
        card, job = card_of(row), job_of(row, named=named)
    except WorkbenchError as error:
        raise NotExpressedError(str(error)) from error
    cluster = Cluster(name=row["gpu"], gpus=(Gpu(index=0, name=row["gpu"], memory_bytes=card),))
    return Case(job.workload, job.strategy, cluster, stratum(row))


def has_fixed_shape(row: Row, case: Case) -> bool:
    """Whether every batch had the stated shape and the metric is one of PyTorch's or nvidia-smi's.

    Not: batches of the data's own lengths, metrics that the source does not define.
    """
    known = ("max_allocated", "max_reserved", "max_active", "nvidia-smi")
    return row["mem_metric"].startswith(known) and not case.workload.variable_length


def metric_of(row: Row) -> str:
    """Which of the three numbers the row's metric is: allocated, reserved or on_card."""
    text = low(row, "mem_metric")
    if "reserved" in text and "allocated" not in text:
        return "reserved"
    if text.endswith("max_allocated") or "max_active" in text:
        return "allocated"
    if "nvidia-smi" in text or "device memory" in text:
        return "on_card"
    return "allocated" if "torchtune" in text else "reserved"

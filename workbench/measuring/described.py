"""The records of one or two probes as a `Workload`: the model, its blocks, the step as it was."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.describe import Model, Traced, Workload
from workbench.describe.measured import Measured, PerBatch
from workbench.measuring.fit import line, moments, work

Record = Mapping[str, Any]
Row = Mapping[str, Any]

_BARE = frozenset(
    {
        *("Linear", "Bilinear", "Embedding", "EmbeddingBag", "LayerNorm", "GroupNorm", "Conv1d"),
        *("Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
    }
)  # layers, of which a list makes blocks only where there is nothing better
_OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "adamw8bit": "adamw-8bit",
    "adam8bit": "adamw-8bit",
    "adafactor": "adafactor",
    "lion": "lion",
    "muon": "muon",
    "sgd": "sgd",
}
_BY_STATE = ((6.0, "adamw"), (2.5, "sgd-momentum"), (1.5, "adamw-8bit"), (0.0, "sgd"))
"""Least bytes of state per element -> the optimizer that another one is counted as."""
_AUTOCAST = {"bfloat16": "bf16", "float16": "fp16"}
QUIET_SHARE = 0.05
"""Of a step for which its threads may have waited for a core: the probe times others then."""
_SHARDED = ("FSDP", "FullyShardedDataParallel")
"""Names of classes that fully_shard makes, and of FSDP1's."""
_FEW_OPERATORS = 8
"""A backward pass has more; fewer is a regulariser or a hook."""


def workload_of(
    script: str,
    records: Sequence[Record],
    batches: Sequence[int],
    *,
    cpu: str = "",
    notes: Sequence[str] = (),
) -> Workload:
    """What the script trains, per micro-batch and rank.

    Args:
        script: Its name.
        records: Of the probes, the one at the script's own batch size first.
        batches: Samples per micro-batch of each.
        cpu: Name and cores of the CPU, as `Measured.cpu`.
        notes: What else is to be said of the measurement.
    """
    measured, micro_batches = _measured(script, records, batches), _each_accumulation(records)
    measured = replace(measured, cpu=cpu, notes=(*measured.notes, *notes))
    saved = [record["saved_bytes"] for record in records]
    saved_per_sample = _per_sample(
        [bytes_ / count for bytes_, count in zip(saved, micro_batches, strict=True)], batches
    )
    blocks = _blocks(records[0])
    elements = sum(records[0][kind]["elements"] for kind in ("trained", "frozen"))
    model = Model(
        name=script,
        kind="module",
        layers=max(1, len(blocks)),
        hidden=1,
        heads=1,
        mlp_hidden=1,
        vocab=1,
        traced=Traced(
            parameters=elements,
            largest_block_parameters=max((row["parameters"] for row in blocks), default=elements),
            blocks=max(1, len(blocks)),
            saved_bytes=saved_per_sample,
            largest_block_saved_bytes=_of_blocks(records, batches, "saved_bytes", max),
            boundary_bytes=_of_blocks(records, batches, "input_bytes", sum),
            precision_bytes=measured.compute_bytes,
            measured=measured,
        ),
    )
    return Workload(
        model=model,
        seq_len=sequence_length(records[0], batches[0]),
        micro_batch=batches[0],
        accumulate=micro_batches[0],
        precision=measured.precision,
        optimizer=measured.optimizer,
    )


def _measured(script: str, records: Sequence[Record], batches: Sequence[int]) -> Measured:
    first, blocks = records[0], _blocks(records[0])
    optimizer, notes = _optimizer(first["optimizers"])
    if len(records) == 1:
        notes.append("one batch size was measured: all activations count as growing with the batch")
    if not all(map(_quiet, records)) and first["step_seconds"]:
        notes.append(
            "other processes kept the cores busy: its time is that of one thread without the "
            "waiting, too long where more threads help; measure again when the host is quiet"
        )
    if any(row["class"].startswith(_SHARDED) for tree in first["roots"] for row in tree):
        notes.append(
            "the script shards its model itself: the gathered copies of its weights count as "
            "activations, and once more where the strategy is fsdp"
        )
    if first["uncounted"]:
        notes.append(f"FLOPs of {', '.join(first['uncounted'])} are not counted")
    micro_batches = _each_accumulation(records)
    trained, frozen = first["trained"], first["frozen"]
    inside = sum(row["parameters"] for row in blocks)
    return Measured(
        source=_source(script, first, batches),
        batches=tuple(batches),
        precision=_precision(first),
        optimizer=optimizer,
        optimizer_bytes=_state_bytes(first["optimizers"]),
        trained=trained["elements"],
        frozen_bytes=frozen["bytes"],
        root=max(0, trained["elements"] + frozen["elements"] - inside) if blocks else 0,
        moments=moments(records, batches, micro_batches),
        forward=work(records, batches, "forward", micro_batches),
        backward=work(records, batches, "backward", micro_batches),
        seconds=_seconds(records, batches, micro_batches),
        device=first["device"],
        notes=tuple(notes),
    )


def accumulation(record: Record) -> int:
    """Micro-batches per optimizer step: as many as backward passes, where each has its forward."""
    runs: list[tuple[str, int]] = record["phases"]
    passes = sum(phase == "backward" and count > _FEW_OPERATORS for phase, count in runs)
    calls: list[int] = record["calls"]
    return passes if len(calls) == 1 and calls[0] == passes else 1


def _each_accumulation(records: Sequence[Record]) -> list[int]:
    """Of each probe: a script that holds its global batch makes more of smaller ones."""
    return [accumulation(record) for record in records]


def samples_of(record: Record, batch_size: int | None = None) -> int:
    """Samples of a micro-batch.

    The loader's, fewer in the incomplete batch at a dataset's end, and a share of them where the
    script takes its micro-batches out of one batch. Without a loader the batch size that the script
    was asked for, where a module's inputs have a dimension of that size (it need not be the first);
    else their first dimension.
    """
    shapes: list[list[int]] = [shape for leaves in record["inputs"] for shape, _ in leaves if shape]
    if record.get("loader_batch"):
        samples = int(record.get("short_batch") or record["loader_batch"])
        share, rest = divmod(samples, accumulation(record))
        sliced = not rest and not any(samples in shape for shape in shapes)
        return share if sliced and any(shape[0] == share for shape in shapes) else samples
    if batch_size is not None and any(batch_size in shape for shape in shapes):
        return batch_size
    return shapes[0][0] if shapes else 1


def sequence_length(record: Record, samples: int) -> int:
    """Tokens per sequence, where a module reads integers of [samples, tokens]; else 1."""
    for leaves in record["inputs"]:
        for shape, dtype in leaves:
            if dtype in {"int64", "int32"} and len(shape) == 2 and shape[0] == samples:
                return int(shape[1])
    return 1


def _source(script: str, record: Record, batches: Sequence[int]) -> str:
    sizes = " and ".join(map(str, sorted(batches)))
    date = time.strftime("%Y-%m-%d")
    plural = "es" if len(batches) > 1 else ""
    return f"{script} on {record['device']}, batch{plural} of {sizes}, {date}"


def _precision(record: Record) -> str:
    if record["autocast"] in _AUTOCAST:
        return _AUTOCAST[record["autocast"]]
    dtypes: Mapping[str, int] = record["trained"]["dtypes"]
    main = max(dtypes, key=lambda name: dtypes[name], default="float32")
    return {"bfloat16": "bf16-pure", "float16": "fp16"}.get(main, "fp32")


def _state_bytes(optimizers: Sequence[Mapping[str, Any]]) -> float:
    elements = sum(optimizer["elements"] for optimizer in optimizers)
    return sum(optimizer["state_bytes"] for optimizer in optimizers) / max(1, elements)


def _optimizer(optimizers: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """The optimizer's name here, and what to say where it has none."""
    main = max(optimizers, key=lambda optimizer: optimizer["elements"])
    per_element = _state_bytes(optimizers)
    optimizer_name = _OPTIMIZERS.get(main["class"].lower())
    if optimizer_name == "adamw" and main["fused"]:
        optimizer_name = "adamw-fused"
    if optimizer_name == "sgd" and per_element > 0:
        optimizer_name = "sgd-momentum"
    if optimizer_name is not None:
        return optimizer_name, []
    nearest = next(name for least, name in _BY_STATE if per_element >= least)
    note = (
        f"{main['class']} counts as {nearest} with {per_element:.3g} bytes of state per parameter"
    )
    return nearest, [note]


def _seconds(
    records: Sequence[Record], batches: Sequence[int], micro_batches: Sequence[int]
) -> PerBatch | None:
    """The step of each probe by micro-batch, as a line that noise never turns negative."""
    times = [_step_seconds(record) for record in records]
    if not all(times):
        return None
    medians = [time / count for time, count in zip(times, micro_batches, strict=True)]
    fitted = line(medians, batches)
    return fitted if fitted.constant >= 0 else line(medians[:1], batches[:1])


def _step_seconds(record: Record) -> float:
    """The median step of those in which other processes left it its cores; 0.0 = none timed.

    Threads of one step wait for one another, so that one without a core holds all of them up: a
    step of 1 ms takes 60 ms. Where that is so in all steps, it is that of one thread.
    """
    times: Sequence[float] = record["step_seconds"]
    fastest = min(times, default=0.0)
    quiet = _quiet(record) or [min(fastest, seconds) for seconds in record["one_thread_seconds"]]
    counted = sorted(quiet or times)
    return counted[(len(counted) - 1) // 2] if counted else 0.0


def _quiet(record: Record) -> list[float]:
    """Seconds of the steps that no other process has held up."""
    times: Sequence[float] = record["step_seconds"]
    queued: Sequence[float] = record["queued_seconds"]
    if record["device"] != "cpu":  # its steps end when the device does
        return list(times)
    return [
        wall for wall, waited in zip(times, queued, strict=True) if waited <= QUIET_SHARE * wall
    ]


def _per_sample(values: Sequence[float], batches: Sequence[int]) -> int:
    return round(line(values, batches).per_sample)


def _blocks(record: Record) -> list[Row]:
    """The repeated blocks of the largest module that the script called: outermost first.

    They are the children of the list that has most of one class.
    """
    trees: list[list[Row]] = record["roots"]
    rows = max(trees, key=lambda tree: tree[0]["parameters"]) if trees else []
    by_parent: dict[str, list[Row]] = {}
    for row in rows:
        if row["path"] and row["parameters"]:
            by_parent.setdefault(row["path"].rpartition(".")[0], []).append(row)
    lists = [
        by_parent[row["path"]]
        for row in rows
        if row["container"] and len(by_parent.get(row["path"], ())) > 1
    ]
    chosen: list[Row] = max(lists, key=_rank) if lists else []
    kinds = {row["class"] for row in chosen} - _BARE
    if not kinds:
        return []
    return [
        row
        for row in rows
        if row["class"] in kinds and not _inside_another(row["path"], rows, kinds)
    ]


def _rank(children: Sequence[Row]) -> tuple[bool, int, int]:
    """Blocks before bare layers, then the longest run of one class, then the most parameters."""
    name, count = Counter(row["class"] for row in children).most_common(1)[0]
    return name not in _BARE and count > 1, count, sum(row["parameters"] for row in children)


def _inside_another(path: str, rows: Sequence[Row], kinds: set[str]) -> bool:
    return any(row["class"] in kinds and path.startswith(row["path"] + ".") for row in rows)


def _of_blocks(
    records: Sequence[Record], batches: Sequence[int], key: str, together: Any
) -> int | None:
    """Bytes of all blocks, or of the largest, per sample."""
    values: list[float] = []
    for record in records:
        blocks = _blocks(record)
        if not blocks:
            return None
        values.append(together(row[key] / max(1, row["calls"]) for row in blocks))
    return _per_sample(values, batches)

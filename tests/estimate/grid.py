"""A seeded random grid of small trainings that the simulator can run, for the closed form to meet.

    python -m tests.estimate.grid [--worst N]     prints the errors by layout

Shapes are small but not degenerate: activations, weights, loss and buffers all get to be the peak.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from workbench.describe import Model, Strategy, Workload
from workbench.estimate.memory import training_memory
from workbench.estimate.simulate import Simulation, simulate_many

SEED = 20261121
LLAMA = Model(name="llama", layers=4, hidden=512, heads=8, kv_heads=2, mlp_hidden=1536, vocab=8000)
TIED = replace(LLAMA, name="tied", tied_embeddings=True, vocab=16000, kv_heads=8)
NORMED = replace(LLAMA, name="qk-norm", qk_norm=True, head_dim=96)
GPT = Model(
    name="gpt",
    layers=4,
    hidden=512,
    heads=8,
    mlp_hidden=2048,
    vocab=8000,
    gated_mlp=False,
    norm="layernorm",
    position="learned",
    max_positions=1024,
    fused_qkv=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    tied_embeddings=True,
)
COUNTS = {
    "single": 70,
    "fsdp": 50,
    "fsdp-grad-op": 15,
    "hsdp": 10,
    "ddp": 12,
    "tp": 18,
    "fsdp4-tp2": 10,
    "pp": 20,
    "fsdp2-pp2": 10,
}
STAGED = ("pp", "fsdp2-pp2")
EXACT = ("single", "fsdp", "fsdp-grad-op", "hsdp")
"""Layouts held to 2 %; the others to 5 %."""
Pair = tuple[Workload, Strategy]


def pairs(seed: int = SEED) -> list[Pair]:
    """The grid: the same for the same seed."""
    chance = random.Random(seed)
    return [pair for name, count in COUNTS.items() for pair in _some(chance, name, count)]


def _some(chance: random.Random, name: str, count: int) -> Iterator[Pair]:
    for _ in range(count):
        yield _workload(chance, name), _strategy(chance, name)


def _workload(chance: random.Random, name: str) -> Workload:
    # The simulator has no tied embeddings on two ranks, and no per-head norms under TP.
    several = {"tp": [LLAMA], "fsdp4-tp2": [LLAMA]} | {key: [LLAMA, NORMED] for key in STAGED}
    model = chance.choice(several.get(name, [LLAMA, TIED, NORMED, GPT]))
    model = replace(model, layers=chance.choice([4, 6] if name in STAGED else [2, 4, 6]))
    lora = name == "single" and chance.random() < 0.2 and model.gated_mlp
    precisions = ["fp32", "bf16", "bf16-pure"]
    targets = [("q", "v"), ("q", "k", "v", "o", "gate", "up", "down")]
    return Workload(
        model=model,
        seq_len=chance.choice([128, 256, 512]),
        micro_batch=chance.choice([1, 2, 4]),
        accumulate=chance.choice([2, 4]) if name in STAGED else chance.choice([1, 1, 1, 3]),
        precision=chance.choice(precisions[1:] if lora else precisions),
        optimizer=chance.choice(["adamw", "adamw", "adamw-fused", "sgd", "sgd-momentum"]),
        lora_rank=8 if lora else 0,
        lora_targets=chance.choice(targets),
        attention="eager" if name == "single" and chance.random() < 0.15 else "sdpa",
        loss="chunked" if name in {"single", "fsdp"} and chance.random() < 0.3 else "full",
        keep_logits=chance.random() < 0.1,
    )


def _strategy(chance: random.Random, name: str) -> Strategy:
    fixed = {"single": 1, "tp": 2, "fsdp4-tp2": 8, "pp": 2, "fsdp2-pp2": 4}
    ranks = fixed.get(name, chance.choice([4, 8]))
    return Strategy.parse(name, ranks).with_options(
        recompute=chance.choice(["none", "full"]),
        sequence_parallel="tp" in name and chance.random() < 0.5,
        sync_every_micro_batch=False if name == "fsdp" and chance.random() < 0.2 else None,
        schedule=chance.choice(["1f1b", "gpipe"]),
        bucket_views=chance.random() < 0.5,
    )


def offloaded(seed: int = SEED, count: int = 12) -> list[Pair]:
    """Pairs whose blocks keep what backward needs in host memory; sequences long enough to count."""
    chance = random.Random(seed)
    chosen = [pair for pair in pairs(seed) if pair[1].name in {"single", "fsdp"}]
    return [
        (
            replace(work, seq_len=2 * work.seq_len, attention="sdpa"),
            how.with_options(
                offload=("activations",), recompute=chance.choice(["none", "none", "full"])
            ),
        )
        for work, how in chance.sample(chosen, count)
    ]


def describe(pair: Pair) -> str:
    """One line that says which case it is."""
    work, how = pair
    return (
        f"{how.name}{how.world_size} {work.model.name}{work.model.layers} {work.precision} "
        f"{how.recompute} s{work.seq_len} b{work.micro_batch} a{work.accumulate} {work.loss} "
        f"{work.attention} {work.optimizer} r{work.lora_rank}x{len(work.lora_targets)} "
        f"keep={work.keep_logits:d} sync={how.sync_every_micro_batch} {how.pipeline.schedule} "
        f"sp={how.sequence_parallel:d} views={how.ddp.bucket_views:d}"
    )


def errors(chosen: list[Pair]) -> list[tuple[float, float, str]]:
    """(error of allocated, error of reserved, case) of the closed form for every pair."""
    with ThreadPoolExecutor() as two:  # each waits for a process of its own
        halves = two.map(
            lambda half: simulate_many(half, timeout_seconds=1200), (chosen[::2], chosen[1::2])
        )
        found: list[Simulation] = [None] * len(chosen)  # type: ignore[list-item]
        found[::2], found[1::2] = halves
    lines: list[tuple[float, float, str]] = []
    for pair, exact in zip(chosen, found, strict=True):
        ours = training_memory(*pair)
        text = f"{describe(pair)} | ours {ours.peak}, exact {exact.peak} {exact.allocated_bytes / 2**20:.0f} MiB"
        lines.append(
            (
                ours.allocated_bytes / exact.allocated_bytes - 1,
                ours.reserved_bytes / exact.reserved_bytes - 1,
                text,
            )
        )
    return lines


def main() -> None:
    lines = errors(pairs())
    for name in COUNTS:
        mine = [line for line in lines if line[2].startswith(tuple(f"{name}{n} " for n in "1248"))]
        for column, label in ((0, "allocated"), (1, "reserved")):
            sizes = [abs(line[column]) for line in mine]
            print(
                f"{name:<14}{label:<10}{len(sizes):>4}  median {statistics.median(sizes):.2%}"
                f"  worst {max(sizes):.2%}"
            )
    worst = int(sys.argv[sys.argv.index("--worst") + 1]) if "--worst" in sys.argv else 0
    for error, _, text in sorted(lines, key=lambda line: -abs(line[0]))[:worst]:
        print(f"{error:+.2%}  {text}")


if __name__ == "__main__":
    main()

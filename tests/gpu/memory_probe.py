"""One training in this process: real steps, then peaks and step time as one JSON line.

    python tests/gpu/memory_probe.py CASE [--device cpu]

CASE is a name of `CASES`. Every case gets a process of its own, so that nothing is left over from
the one before. On CPU the steps run too (a check of this script), without peaks to report.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from workbench.describe import Model, Strategy, Workload

LLAMA_1B = Model.catalog("llama-3.2-1b")
TINY = replace(LLAMA_1B, name="0.1b", layers=8, hidden=768, heads=12, kv_heads=4, mlp_hidden=2048)
CHECK = replace(TINY, layers=2, vocab=1000)
LLAMA_3B = Model.catalog("llama-3.2-3b")
LLAMA_8B = Model.catalog("llama-3-8b")
GPT2 = Model.catalog("gpt2")
ALL = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Case:
    """What is run and predicted."""

    workload: Workload
    recompute: str = "none"

    @property
    def strategy(self) -> Strategy:
        return Strategy.parse("single", 1).with_options(recompute=self.recompute)


def work(model: Model, **extra: Any) -> Workload:
    given = {"model": model, "seq_len": 2048, "micro_batch": 1, "precision": "fp32"}
    return Workload(**(given | extra))


CASES = {
    "0.1b-check": Case(work(CHECK, seq_len=64, precision="bf16-pure", lora_rank=4), "full"),
    "0.1b-fp32": Case(work(TINY, precision="fp32", micro_batch=4)),
    "0.1b-autocast": Case(work(TINY, precision="bf16", micro_batch=4)),
    "0.1b-autocast-recompute": Case(work(TINY, precision="bf16", micro_batch=4), "full"),
    "0.1b-accumulate": Case(work(TINY, precision="bf16", micro_batch=4, accumulate=4)),
    "0.1b-chunked": Case(work(TINY, precision="bf16", micro_batch=4, loss="chunked"), "full"),
    "gpt2-autocast": Case(work(GPT2, precision="bf16", micro_batch=8, seq_len=1024)),
    "1b-autocast": Case(work(LLAMA_1B, precision="bf16")),
    "1b-pure": Case(work(LLAMA_1B, precision="bf16-pure")),
    "1b-fused": Case(work(LLAMA_1B, precision="bf16", optimizer="adamw-fused")),
    "1b-8bit": Case(work(LLAMA_1B, precision="bf16-pure", optimizer="adamw-8bit"), "full"),
    "3b-pure-recompute": Case(work(LLAMA_3B, precision="bf16-pure"), "full"),
    "3b-lora": Case(work(LLAMA_3B, precision="bf16-pure", lora_rank=16, lora_targets=ALL)),
    "8b-lora-recompute": Case(
        work(LLAMA_8B, precision="bf16-pure", lora_rank=16, lora_targets=ALL), "full"
    ),
    "8b-qlora": Case(
        work(
            LLAMA_8B,
            precision="bf16-pure",
            lora_rank=16,
            lora_targets=ALL,
            quantization="nf4-dq",
        ),
        "full",
    ),
    "8b-pure-sgd": Case(work(LLAMA_8B, precision="bf16-pure", optimizer="sgd"), "full"),
}
NAMES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"} | {
    name: f"{name}_proj" for name in ("gate", "up", "down")
}


def build(case: Case, device: str) -> Any:
    """The transformers model of the case on `device`."""
    import torch

    from workbench.estimate.simulation.build import build as build_trainee

    work_ = case.workload
    low = torch.bfloat16 if work_.precision == "bf16-pure" else torch.float32
    trainee = build_trainee(work_, layers=work_.model.layers).to(low)
    on_card = device if work_.quantization == "none" else "cpu"  # quantized on the way to the card
    trainee.to_empty(device=on_card)
    if work_.model.tied_embeddings:
        trainee.head.weight = trainee.body.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in trainee.parameters():
            parameter.normal_(std=0.02) if parameter.dim() > 1 else parameter.fill_(1.0)
        for buffer in trainee.buffers():
            buffer.zero_()
    if work_.quantization != "none":
        quantize(trainee, device)
    if work_.lora_rank:
        from workbench.estimate.simulation.layouts import add_adapters, freeze

        add_adapters(trainee, work_)
        freeze(trainee, work_, first=True)
        trainee.to(device)
    if case.recompute == "full":
        from workbench.estimate.simulation.recompute import apply_recompute

        apply_recompute(trainee, case.strategy)
    return trainee


def quantize(trainee: Any, device: str) -> None:
    """Every linear of the blocks as bitsandbytes' 4-bit layer with double quantization."""
    import bitsandbytes as bnb
    import torch

    for module in list(trainee.body.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear:
                small = bnb.nn.Linear4bit(
                    child.in_features,
                    child.out_features,
                    bias=child.bias is not None,
                    compute_dtype=torch.bfloat16,
                    compress_statistics=True,
                    quant_type="nf4",
                    device="cpu",
                )
                small.weight = bnb.nn.Params4bit(
                    child.weight.data.cpu(), requires_grad=False, quant_type="nf4"
                )
                setattr(module, name, small.to(device))


def optimizer_of(case: Case, parameters: list[Any]) -> Any:
    import torch

    name = case.workload.optimizer
    if name == "adamw-8bit":
        import bitsandbytes as bnb

        return bnb.optim.AdamW8bit(parameters, lr=1e-5)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-5)
    return torch.optim.AdamW(parameters, lr=1e-5, fused=name == "adamw-fused")


def train(case: Case, device: str, steps: int) -> list[float]:
    """Train and return each step's seconds, the device's queue waited for."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    seconds: list[float] = []

    work_ = case.workload
    trainee = build(case, device)
    trainee.train()
    optimizer = optimizer_of(case, [p for p in trainee.parameters() if p.requires_grad])
    autocast = (
        torch.autocast(device, torch.bfloat16) if work_.precision == "bf16" else nullcontext()
    )
    shape = (work_.micro_batch, work_.seq_len)
    for _ in range(steps):
        wait()
        began = time.perf_counter()
        for _ in range(work_.accumulate):
            tokens = torch.randint(work_.model.vocab, shape, device=device)
            with autocast:
                loss, logits = trainee({"input_ids": tokens}, tokens)
                loss = loss / work_.accumulate
            del logits
            loss.backward()
            del loss
        optimizer.step()
        optimizer.zero_grad()
        wait()
        seconds.append(time.perf_counter() - began)
    return seconds


def versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "peft", "bitsandbytes"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    import torch

    on_card = options.device == "cuda"
    seconds = train(CASES[options.case], options.device, steps=12 if on_card else 3)
    peaks: dict[str, object] = {"case": options.case, "versions": versions()}
    if on_card:
        peaks |= {
            "device": torch.cuda.get_device_name(),
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "step_seconds": statistics.median(seconds[4:]),
        }
    json.dump(peaks, sys.stdout)


if __name__ == "__main__":
    main()

"""Memory calculators side by side: predictions per second and error against simulated peaks.

    python -m tests.benchmarks memory          (part of `make bench`)

llm-analysis, DeepSpeed's and Accelerate's estimators answer the same cases as well as each can
express them; the reference is the exact simulation of the same case in the same run. What a tool
does not claim to model (accelerate and DeepSpeed: anything but model states) is still what its
user sees. The peers come from `.venv/peers` (see the Makefile): llm-analysis asks for an old
transformers that the workbench cannot use.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.describe import Model, Strategy, Workload
from workbench.describe.counting import largest_block_parameters
from workbench.estimate.memory import training_memory
from workbench.estimate.simulate import simulate
from workbench.units import GIB

PEERS = Path(sys.prefix) / "peers"


@dataclass(frozen=True)
class Case:
    """One training that every calculator is asked about."""

    label: str
    workload: Workload
    strategy: Strategy


def cases() -> list[Case]:
    found: list[Case] = []
    for name in ("llama-3.2-1b", "llama-3-8b"):
        model = Model.catalog(name)
        work = Workload(model=model, seq_len=4096, micro_batch=1, precision="bf16")
        for recompute in ("none", "full"):
            strategy = Strategy.parse("fsdp", 8).with_options(recompute=recompute)
            found.append(Case(f"{name} FSDP 8, recompute {recompute}", work, strategy))
    small = Model.catalog("gpt2")
    work = Workload(model=small, seq_len=1024, micro_batch=8, precision="fp32")
    found.append(Case("gpt2 one GPU, fp32, b8", work, Strategy.parse("single", 1)))
    return found


def ours(case: Case) -> float:
    return training_memory(case.workload, case.strategy).allocated_bytes


def deepspeed_estimator() -> Callable[[Case], float]:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as three
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as two

    def predict(case: Case) -> float:
        model, ranks = case.workload.model, case.strategy.world_size
        if ranks == 1:
            return float(two(model.parameters, 1, 1, cpu_offload=False)[1])
        block = largest_block_parameters(model)
        return float(three(model.parameters, block, ranks, 1, cpu_offload=False)[1])

    return predict


def accelerate_estimator() -> Callable[[Case], float]:
    from accelerate.commands.estimate import estimate_training_usage

    def predict(case: Case) -> float:
        precision = "float32" if case.workload.precision == "fp32" else "bfloat16"
        usage = estimate_training_usage(4 * case.workload.model.parameters, precision)
        return float(max(usage.values()))

    return predict


def llm_analysis_shape(work: Workload) -> dict[str, Any]:
    """Arguments of llm-analysis' ModelConfig."""
    model = work.model
    return {
        "name": model.name,
        "num_layers": model.layers,
        "n_head": model.heads,
        "hidden_dim": model.hidden,
        "vocab_size": model.vocab,
        "max_seq_len": work.seq_len,
        "num_key_value_heads": model.key_value_heads,
        "ffn_embed_dim": model.mlp_hidden,
        "expansion_ratio": model.mlp_hidden / model.hidden,
    }


def llm_analysis() -> Callable[[Case], float]:
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import (
        DtypeConfig,
        ModelConfig,
        ParallelismConfig,
        get_gpu_config_by_name,
    )

    gpu = get_gpu_config_by_name("a100-sxm-80gb")
    parts = [
        *("weight_memory_per_gpu", "gradient_memory_per_gpu"),
        *("optimizer_state_memory_per_gpu", "activation_memory_per_gpu"),
    ]

    def predict(case: Case) -> float:
        work, model = case.workload, case.workload.model
        bits = 32 if work.precision == "fp32" else 16
        analysis = LLMAnalysis(
            ModelConfig(**llm_analysis_shape(work)),
            gpu,
            DtypeConfig(name="d", weight_bits=bits, activation_bits=bits, embedding_bits=bits),
            ParallelismConfig(dp_size=case.strategy.world_size),
            flops_efficiency=0.5,
            hbm_memory_efficiency=0.9,
        )
        summary = analysis.training(
            batch_size_per_gpu=work.micro_batch,
            gradient_accumulation_steps=work.accumulate,
            seq_len=work.seq_len,
            ds_zero=DSZeRO(3 if case.strategy.world_size > 1 else 0),
            activation_recomputation=(
                ActivationRecomputation.FULL
                if case.strategy.recompute == "full"
                else ActivationRecomputation.NONE
            ),
            mlp_gated_linear_units=model.gated_mlp,
        )
        return float(sum(summary[part] for part in parts))

    return predict


PREDICTORS: dict[str, Callable[[], Callable[[Case], float]]] = {
    "workbench, closed form": lambda: ours,
    "llm-analysis": llm_analysis,
    "DeepSpeed estimator": deepspeed_estimator,
    "accelerate estimate": accelerate_estimator,
}


def per_second(predict: Callable[[Case], object], case: Case) -> float:
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < 0.3:
        predict(case)
        count += 1
    return count / (time.perf_counter() - began)


def table(asked: Sequence[Case]) -> Iterator[dict[str, object]]:
    """One row per calculator: predictions per second and the error of every case."""
    if str(PEERS) not in sys.path:
        sys.path.append(str(PEERS))
    logging.disable(logging.WARNING)
    exact = {case.label: simulate(case.workload, case.strategy).allocated_bytes for case in asked}
    yield {"calculator": "simulated peak (reference)", "peaks": exact}
    for name, build in PREDICTORS.items():
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                predict = build()
                errors = {case.label: _error(predict, case, exact) for case in asked}
                speed = per_second(predict, asked[0])
        except ImportError as error:
            yield {"calculator": name, "missing": str(error)}
            continue
        yield {"calculator": name, "per_second": speed, "errors": errors}
    logging.disable(logging.NOTSET)


def _error(predict: Callable[[Case], float], case: Case, exact: dict[str, int]) -> float | None:
    """Relative error; None where the tool refuses the case (llm-analysis has no fp32)."""
    try:
        return predict(case) / exact[case.label] - 1
    except (AssertionError, ValueError):
        return None


def show(asked: Sequence[Case]) -> float:
    """Print the table and return our own worst error."""
    from rich.console import Console
    from rich.table import Table

    rows = list(table(asked))
    labels = [case.label for case in asked]
    grid = Table(title="Memory calculators against simulated peaks (error of the peak)")
    grid.add_column("calculator")
    grid.add_column("per second", justify="right")
    for label in labels:
        grid.add_column(label, justify="right")
    for row in rows:
        name = str(row["calculator"])
        if "peaks" in row:
            peaks: dict[str, int] = row["peaks"]  # type: ignore[assignment]
            grid.add_row(name, "", *(f"{peaks[label] / GIB:.2f} GiB" for label in labels))
        elif "missing" in row:
            grid.add_row(name, "n/a", *("not installed" for _ in labels))
        else:
            errors: dict[str, float | None] = row["errors"]  # type: ignore[assignment]
            shown = ("refused" if e is None else f"{e:+.1%}" for e in errors.values())
            grid.add_row(name, f"{row['per_second']:,.0f}", *shown)
    Console(width=150).print(grid)
    mine: dict[str, float] = rows[1]["errors"]  # type: ignore[assignment]
    return max(map(abs, mine.values()))


if __name__ == "__main__":
    show(cases())

"""The simulation of small models: exact sums, every layout, refusals, and the life of its process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import full_tests
from tests.estimate.simulation_child import SimulationChild
from workbench.describe import ImplementationAssumptions, Model, Strategy, Workload
from workbench.describe.job import Job
from workbench.errors import UsageError
from workbench.estimate.simulate import (
    Simulation,
    SimulationUnavailable,
    simulate,
    simulate_many,
    start_simulation,
)

LLAMA = Model(
    name="tiny-llama", layers=2, hidden=256, heads=4, kv_heads=2, mlp_hidden=512, vocab=1000
)
_CLASSIC: dict[str, Any] = {
    "layers": 2,
    "hidden": 256,
    "heads": 4,
    "mlp_hidden": 1024,
    "gated_mlp": False,
    "norm": "layernorm",
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "position": "learned",
}
GPT2 = Model(name="tiny-gpt2", vocab=1000, max_positions=256, tied_embeddings=True, **_CLASSIC)
BERT = Model(
    name="tiny-bert",
    kind="encoder",
    vocab=1000,
    max_positions=512,
    tied_embeddings=True,
    final_norm=False,
    embedding_norm=True,
    head_bias=True,
    mlm_head=True,
    token_types=2,
    **_CLASSIC,
)
VIT = Model(name="tiny-vit", kind="vision", vocab=100, image_size=64, patch_size=8, **_CLASSIC)
MIXTRAL = replace(LLAMA, name="tiny-moe", experts=4, experts_per_token=2, expert_hidden=256)
QWEN3 = replace(LLAMA, name="tiny-qwen3", qk_norm=True, head_dim=64)
SINGLE = Strategy(name="single")


def work(model: Model = LLAMA, **options: Any) -> Workload:
    given = {"model": model, "seq_len": 256, "micro_batch": 2, "precision": "fp32"}
    return Workload(**{**given, **options})


def layout(name: str, ranks: int, **options: Any) -> Strategy:
    return Strategy.parse(name, ranks).with_options(**options)


PAIRS: dict[str, tuple[Workload, Strategy]] = {
    "single": (work(), SINGLE),
    "fused": (work(optimizer="adamw-fused"), SINGLE),
    "sgd": (work(optimizer="sgd"), SINGLE),
    "momentum": (work(optimizer="sgd-momentum"), SINGLE),
    "lion": (work(optimizer="lion"), SINGLE),
    "adafactor": (work(optimizer="adafactor"), SINGLE),
    "muon": (work(optimizer="muon"), SINGLE),
    "pure": (work(precision="bf16-pure"), SINGLE),
    "autocast": (work(precision="bf16"), SINGLE),
    "eager": (work(attention="eager"), SINGLE),
    "mask": (work(attention_mask=True), SINGLE),
    "kept": (work(keep_logits=True), SINGLE),
    "chunked": (work(loss="chunked"), SINGLE),
    "chunked output": (work(loss="chunked-output"), SINGLE),
    "full": (work(), replace(SINGLE, recompute="full")),
    "full one": (work(), replace(SINGLE, recompute="full", recompute_layers=1)),
    "accumulate": (work(accumulate=2), SINGLE),
    "last block": (work(trained_layers=1), SINGLE),
    "lora": (work(lora_rank=8, precision="bf16"), SINGLE),
    "nf4": (work(lora_rank=8, precision="bf16", quantization="nf4"), SINGLE),
    "nf4 double": (work(lora_rank=8, precision="bf16", quantization="nf4-dq"), SINGLE),
    "8-bit": (work(precision="bf16-pure", optimizer="adamw-8bit"), SINGLE),
    "4-bit": (work(optimizer="adamw-4bit"), SINGLE),
    "lion 8-bit": (work(optimizer="lion-8bit"), SINGLE),
    "paged": (work(optimizer="paged-adamw"), SINGLE),
    "8-bit fsdp": (work(optimizer="adamw-8bit"), layout("fsdp", 4)),
    "gpt2": (work(GPT2), SINGLE),
    "gpt2 autocast, dropout, full": (
        work(replace(GPT2, dropout=0.1), precision="bf16"),
        replace(SINGLE, recompute="full"),
    ),
    "bert": (work(BERT), SINGLE),
    "bert dropout": (work(replace(BERT, dropout=0.1)), SINGLE),
    "vit": (work(VIT), SINGLE),
    "moe": (work(MIXTRAL), layout("fsdp", 4)),
    "qwen3": (work(QWEN3), SINGLE),
    "ddp": (work(accumulate=2), layout("ddp", 4)),
    "ddp views": (work(accumulate=2), layout("ddp", 4, bucket_views=True)),
    "fsdp": (work(), layout("fsdp", 4)),
    "fsdp mixed": (work(precision="bf16"), layout("fsdp", 4)),
    "grad-op": (work(), layout("fsdp-grad-op", 4)),
    "hsdp": (work(), layout("hsdp", 4)),
    "no sync": (work(accumulate=2), layout("fsdp", 4, sync_every_micro_batch=False)),
    "sync": (work(accumulate=2), layout("fsdp", 4)),
    "attention again": (work(), layout("fsdp", 4, recompute="selective")),
    "mlp again": (work(), layout("fsdp", 4, recompute="selective", recompute_parts=("mlp",))),
    "op": (work(), layout("fsdp", 4, recompute="selective", recompute_parts=("op",))),
    "tp": (work(), layout("tp", 2)),
    "tp sequence": (work(), layout("tp", 2, sequence_parallel=True)),
    "fsdp-tp": (work(precision="bf16"), layout("fsdp2-tp2", 4)),
    "1f1b": (work(accumulate=4), layout("pp", 2)),
    "gpipe": (work(accumulate=4), layout("pp", 2, schedule="gpipe")),
    "pp-fsdp": (work(accumulate=4), layout("pp2-fsdp2", 4)),
}


@pytest.fixture(scope="module")
def child() -> Iterator[SimulationChild]:
    kept = SimulationChild()
    yield kept
    kept.close()


QUICK = ("single", "gpt2", "bert", "vit", "qwen3", "pure", "momentum", "sgd", "fsdp", "tp", "1f1b")


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Simulation]:
    names = list(PAIRS) if full_tests(request) else QUICK
    return dict(zip(names, simulate_many([PAIRS[name] for name in names]), strict=True))


@pytest.mark.slow
def test_parts_sum_and_the_replays_are_ordered(found: dict[str, Simulation]) -> None:
    for name, each in found.items():
        assert sum(each.parts.values()) == each.allocated_bytes, name
        assert each.allocated_bytes <= each.smallest_card_bytes <= each.reserved_bytes, name
        assert each.allocated_bytes <= each.reserved_expandable_bytes, name
        assert len(each.timeline) <= 2000
        assert max(sum(parts.values()) for _, parts in each.timeline) == each.allocated_bytes
        assert each.method == "simulation"
        assert set(each.versions) == {"torch", "transformers"}


@pytest.mark.slow
def test_states_are_those_of_arithmetic(found: dict[str, Simulation]) -> None:
    def parts(name: str) -> dict[str, float]:
        count = PAIRS[name][0].model.parameters
        return {part: size / count for part, size in found[name].parts.items()}

    for name in ("single", "gpt2", "bert", "vit", "qwen3"):
        assert parts(name)["parameters"] == pytest.approx(4, rel=0.01)
        assert parts(name)["optimizer states"] == pytest.approx(8, rel=0.01)
    assert parts("pure")["parameters"] == pytest.approx(2, rel=0.01)
    assert parts("momentum")["optimizer states"] == pytest.approx(4, rel=0.01)
    assert "optimizer states" not in parts("sgd")
    assert parts("fsdp")["optimizer states"] == pytest.approx(8 / 4, rel=0.01)
    assert parts("tp")["parameters"] == pytest.approx(4 / 2, rel=0.01)


@pytest.mark.full
@pytest.mark.slow
def test_few_bits_are_those_of_bitsandbytes(found: dict[str, Simulation]) -> None:
    count = LLAMA.parameters
    matrices = 2 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 512)  # of both blocks
    adapters = 2 * (8 * (256 + 256) + 8 * (256 + 128))  # q and v
    rest = 2 * (count - matrices) + 4 * adapters
    packed = {"nf4": 0.5 + 4 / 64, "nf4 double": 0.5 + 1 / 64 + 4 / (64 * 256)}
    for name, each in packed.items():
        assert found[name].parts["parameters"] == pytest.approx(matrices * each + rest, rel=0.03)
    assert found["nf4"].allocated_bytes < found["lora"].allocated_bytes
    states = {
        "8-bit": 2 + 8 / 256,
        "4-bit": 1 + 8 / 128,
        "lion 8-bit": 1 + 4 / 256,
        "8-bit fsdp": (2 + 8 / 256) / 4,
    }
    for name, each in states.items():
        known = found[name].parts["optimizer states"] / count
        assert known == pytest.approx(each, rel=0.02), name
    small = 2 * (256 * 256 * 2 + 256 * 128 * 2)  # attention's matrices: too small for pages
    assert found["paged"].parts["optimizer states"] == pytest.approx(8 * small, rel=0.02)


@pytest.mark.full
@pytest.mark.slow
def test_what_costs_and_what_saves(found: dict[str, Simulation]) -> None:
    size = {name: each.allocated_bytes for name, each in found.items()}
    assert size["kept"] - size["single"] == 4 * 512 * 1000  # fp32: the logits live on, nothing else
    for less, more in [
        ("fsdp", "grad-op"),
        ("fsdp", "single"),
        ("full", "single"),
        ("full", "full one"),
        ("full one", "single"),
        ("single", "eager"),
        ("chunked", "single"),
        ("last block", "single"),
        ("ddp views", "ddp"),
        ("sync", "no sync"),
        ("single", "ddp"),
        ("tp sequence", "tp"),
        ("mlp again", "fsdp"),
        ("1f1b", "gpipe"),
        ("fsdp-tp", "fsdp mixed"),
    ]:
        assert size[less] < size[more], (less, more)


@pytest.mark.slow
def test_stages_are_simulated_one_by_one(found: dict[str, Simulation]) -> None:
    stages = found["1f1b"].per_stage
    assert [stage.layers for stage in stages] == [1, 1]
    assert max(stage.allocated_bytes for stage in stages) == found["1f1b"].allocated_bytes
    assert not found["single"].per_stage


@pytest.mark.slow
def test_the_document_is_json_and_reads_back(found: dict[str, Simulation]) -> None:
    for each in found.values():
        again = Simulation.parse(json.loads(json.dumps(each.document())))
        assert again.document() == json.loads(json.dumps(each.document()))
    text = str(found["1f1b"])
    assert "reserved" in text
    assert "peak" in text


REFUSED = [
    (work(), Strategy.parse("zero3", 4), "ZeRO"),
    (work(), Strategy.parse("cp", 2), "context"),
    (work(lora_rank=8, quantization="int8"), SINGLE, "int8"),
    (work(loss="fused"), SINGLE, "Liger"),
    (work(kernels=ImplementationAssumptions(norm="fused")), SINGLE, "norm"),
    (work(replace(LLAMA, parallel_block=True)), SINGLE, "parallel"),
    (work(replace(LLAMA, extra_parameters=5)), SINGLE, "outside the blocks"),
    (work(lora_rank=8, quantization="nf4"), Strategy.parse("fsdp", 2), "4-bit"),
    (work(GPT2), Strategy.parse("tp", 2), "tensor"),
    (work(), layout("tp", 2, offload=("optimizer",)), "offload"),
    (work(accumulate=4), layout("pp", 2, schedule="interleaved"), "interleaved"),
]


@pytest.mark.parametrize(("workload", "strategy", "word"), REFUSED)
def test_what_cannot_be_simulated_is_refused_with_its_reason(
    workload: Workload, strategy: Strategy, word: str
) -> None:
    from workbench.estimate.simulation.refusal import CannotSimulateError
    from workbench.estimate.simulation.support import refuse_unsupported

    with pytest.raises(CannotSimulateError, match=word):
        refuse_unsupported(workload, strategy)


@pytest.mark.slow
def test_a_refusal_reaches_the_caller() -> None:
    with pytest.raises(SimulationUnavailable, match="cannot be simulated: DeepSpeed"):
        simulate(work(), Strategy.parse("zero2", 4))


def test_a_wrong_number_of_parameters_is_refused(child: SimulationChild) -> None:
    odd = replace(LLAMA, head_bias=True, out_bias=True)  # no Llama has a bias there alone
    with pytest.raises(SimulationUnavailable, match="step function"):
        child.simulate(work(odd), SINGLE)


def test_nonsense_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        simulate(work(), steps=0)
    with pytest.raises(UsageError, match="function"):
        simulate(3)  # pyright: ignore[reportArgumentType]
    assert simulate_many([]) == []


def importable_job() -> Any:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.randn(64, 1024)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_step_functions_importable_and_local(child: SimulationChild) -> None:
    width = 1024

    def generator() -> Any:
        import torch

        model = torch.nn.Linear(width, width, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), foreach=True)
        yield
        while True:
            model(torch.ones(8, width)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    first, second = child.simulate(importable_job), child.simulate(generator)
    megabyte = 1024 * 1024
    assert first.parts["parameters"] == 4 * megabyte + 4096
    assert first.parts["optimizer states"] == 2 * (4 * megabyte + 4096)
    assert first.peak == "optimizer step"
    assert second.parts["parameters"] == second.parts["gradients"] == 4 * megabyte
    assert sum(first.parts.values()) == first.allocated_bytes


def test_a_step_function_that_reads_values_is_refused(child: SimulationChild) -> None:
    def job() -> Any:
        import torch

        model = torch.nn.Linear(4, 4)
        return lambda: model(torch.ones(1, 4)).sum().item()

    with pytest.raises(SimulationUnavailable, match="item"):
        child.simulate(job)


def test_what_a_step_function_raises_is_said(child: SimulationChild) -> None:
    def job() -> Any:
        print("noise on stdout must not disturb the answer")
        raise RuntimeError("my own mistake")

    with pytest.raises(SimulationUnavailable, match="my own mistake"):
        child.simulate(job)


def gone(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    return False


def sleepy() -> Any:
    subprocess.Popen(["sleep", "600"])
    time.sleep(600)


def test_cancel_leaves_no_process() -> None:
    process = start_simulation(sleepy)
    time.sleep(1)
    assert process.running
    threading.Timer(0.3, process.cancel).start()
    with pytest.raises(SimulationUnavailable, match="cancelled"):
        process.wait()
    assert gone(process.pid)


def test_a_timeout_kills_and_says_so() -> None:
    process = start_simulation(sleepy, timeout_seconds=1.0)
    with pytest.raises(SimulationUnavailable, match="longer than 1 s"):
        process.wait()
    assert gone(process.pid)


def test_the_death_of_the_child_is_reported() -> None:
    process = start_simulation(sleepy)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(SimulationUnavailable, match="SIGKILL"):
        process.wait()
    assert gone(process.pid)


def test_ctrl_c_kills_the_child() -> None:
    process = start_simulation(sleepy)

    def interrupt(_fraction: float, _text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process.wait(interrupt)
    assert gone(process.pid)


def test_the_child_dies_with_its_parent() -> None:
    code = (
        "import os, time; from tests.estimate.test_simulation import sleepy, start_simulation\n"
        "process = start_simulation(sleepy); time.sleep(1)\n"
        "print(process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.full
def test_a_job_is_simulated_as_its_workload_and_layout_and_progress_rises() -> None:
    job = Job.of(LLAMA, gpu="h100", gpus=4, strategy="fsdp2-pp2", accumulate=2, seq_len=128)
    told: list[tuple[float, str]] = []
    pairs = [(job, None), (job.workload, job.strategy)]
    whole, parts = simulate_many(pairs, on_progress=lambda *news: told.append(news))
    assert whole.allocated_bytes == parts.allocated_bytes
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] > 0.5  # of both, not of the second one alone
    assert len(fractions) > 1
    assert any("step" in text for _, text in told)


def test_the_parent_side_loads_no_torch() -> None:
    code = "import sys, workbench.estimate.simulate; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers", "numpy", "cloudpickle"} & set(loaded.stdout.split())

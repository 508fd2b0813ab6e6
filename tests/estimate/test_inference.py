"""Inference: golden numbers of weights and cache, and refusals."""

from __future__ import annotations

import pytest

import workbench as wb
from workbench.describe import catalog
from workbench.errors import UsageError
from workbench.estimate.inference import cache_bytes, cache_bytes_per_token

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-3-8b", 131_072),  # 32 layers x 2 x 8 heads x 128 x 2 bytes: 128 KiB, Meta's GQA
        ("llama-3-70b", 327_680),  # 80 x 2 x 8 x 128 x 2
        ("llama-2-7b", 524_288),  # 32 x 2 x 32 x 128 x 2: no GQA
        ("deepseek-v3", 70_272),  # 61 x (512 + 64) x 2: 70 KB, DeepSeek-V3's own figure
        ("bert-base-uncased", 0),
    ],
)
def test_cache_per_token_is_the_published_one(name: str, per_token: int) -> None:
    assert cache_bytes_per_token(catalog.model(name)) == per_token


def test_weights_are_the_parameters() -> None:
    model = catalog.model("llama-3-8b")
    parts = wb.inference_memory(model, 8192, 4).parts
    assert parts["weights"] == 2 * model.parameters
    assert parts["KV cache"] == 4 * GIB
    assert wb.inference_memory(model, 1, precision="fp32").parts["weights"] == 4 * model.parameters
    four = wb.inference_memory(model, 1, quantization="nf4").parts["weights"]
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    outside = model.parameters - matrices  # embedding, head and norms stay in bf16
    assert four == matrices // 2 + matrices * 4 // 64 + 2 * outside


def test_tensor_parallel_splits_weights_and_heads_but_not_mla() -> None:
    model = catalog.model("llama-3-8b")
    one, eight = (wb.inference_memory(model, 4096, tp=tp) for tp in (1, 8))
    assert eight.parts["weights"] == pytest.approx(one.parts["weights"] / 8, rel=0.01)
    assert eight.parts["KV cache"] == one.parts["KV cache"] / 8
    sixteen = wb.inference_memory(model, 4096, tp=16)
    assert sixteen.parts["KV cache"] == eight.parts["KV cache"]  # 8 key/value heads
    latent = catalog.model("deepseek-v3")
    assert cache_bytes(latent, 4096, tp=8) == cache_bytes(latent, 4096)


def test_it_says_what_is_left_out_and_answers_for_a_card() -> None:
    model = catalog.model("mistral-7b")
    estimate = wb.inference_memory(model, 8192, where=wb.Cluster.rented("l4", gpus=1))
    assert estimate.fits
    said = " ".join(estimate.assumptions)
    assert "32 of 32 layers keep the last 4,096 tokens alone" in said
    assert estimate.total_bytes == sum(estimate.parts.values())
    large = wb.inference_memory(model, 8192, 64, where=wb.Cluster.rented("l4", gpus=1))
    assert not large.fits


def test_an_image_is_as_long_as_in_training() -> None:
    model = catalog.model("vit-l-16")
    short, long = (wb.inference_memory(model, tokens, 8) for tokens in (197, 2048))
    assert short.parts == long.parts
    patch = short.parts["activations: prefill"] / (8 * 197)
    assert patch < 2 * 12 * model.hidden  # bf16; residual, MLP's input and output, a few logits


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seq_len": 0}, "seq_len must be at least 1"),
        ({"batch": -1}, "batch must be at least 1"),
        ({"tp": 3}, "cannot be split over tp = 3"),
        ({"precision": "bf61"}, "Did you mean bf16"),
        ({"quantization": "nf5"}, "Did you mean nf4"),
        ({"kv_bytes": 3}, "kv_bytes must be 1"),
    ],
)
def test_nonsense_is_refused(options: dict[str, object], sentence: str) -> None:
    values: dict[str, object] = {"seq_len": 128, **options}
    with pytest.raises(wb.UsageError, match=sentence):
        wb.inference_memory(catalog.model("llama-3-8b"), **values)


def test_a_model_may_be_named_and_its_positions_count() -> None:
    named = wb.inference_memory("llama-3-8b", 8192, 4)
    assert named.parts == wb.inference_memory(catalog.model("llama-3-8b"), 8192, 4).parts
    with pytest.raises(UsageError, match="has 1024 positions"):
        wb.inference_memory("gpt2", 5000)


def test_the_name_of_a_gpu_is_not_taken_for_a_kind_of_device() -> None:
    job = wb.Job.of("gpt2", gpu="h100")
    with pytest.raises(UsageError, match=r"Cluster\.rented\('h100', 8\)"):
        wb.training_memory(job.workload, job.strategy, "h100")
    with pytest.raises(UsageError, match="not a kind of device"):
        wb.inference_memory("gpt2", 100, where="h100")


def test_heads_are_shared_out_as_in_training() -> None:
    model = catalog.model("phi-4")  # 40 heads, 10 of keys and values: no server splits them by 4
    with pytest.raises(UsageError, match="10 key/value heads cannot be shared out over tp = 4"):
        wb.inference_memory(model, 4096, tp=4)
    halves, copied = (wb.inference_memory(model, 4096, tp=tp).parts["KV cache"] for tp in (10, 20))
    assert halves == copied

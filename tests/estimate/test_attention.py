"""Windows, chunks and linear attention in cache, FLOPs, time and memory, beside counts by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.describe import Cluster, Model, Strategy, Workload
from workbench.describe.recorded import from_document
from workbench.estimate.attention import causal_pairs
from workbench.estimate.flops import attention_flops, model_flops
from workbench.estimate.inference import (
    STATES,
    cache_bytes,
    cache_bytes_per_token,
    inference_memory,
)
from workbench.estimate.memory import training_memory
from workbench.estimate.step_time import step_time
from workbench.estimate.timing import COMMUNICATION

LLAMA = Model.catalog("llama-3.2-1b")
NODE = Cluster.rented("h100", 8)
ONE = Strategy.parse("single", 1)
LINEAR = {"linear_layers": 12, "linear_state": 32 * 128 * 128, "linear_conv": 8192 * 4}


def counted(length: int, window: int, *, chunked: bool, both: bool = False) -> int:
    """Pairs of query and key that the mask lets through, one by one (masking_utils.py)."""
    pairs = 0
    for query in range(length):
        for key in range(length):
            if both:
                pairs += abs(query - key) <= window // 2
            elif chunked:
                pairs += key <= query and key // window == query // window
            else:
                pairs += query - window < key <= query
    return pairs


def work(model: Model, length: int, **values: Any) -> Workload:
    return Workload(model=model, seq_len=length, micro_batch=1, precision="bf16", **values)


@given(
    length=st.integers(1, 70),
    window=st.integers(1, 90),
    windowed=st.integers(1, 12),
    linear=st.integers(0, 4),
    chunked=st.booleans(),
)
def test_flops_and_cache_are_those_of_every_block_by_itself(
    length: int,
    window: int,
    windowed: int,
    linear: int,
    chunked: bool,  # noqa: FBT001
) -> None:
    state = {"linear_layers": linear, "linear_state": 640} if linear else {}
    model = replace(LLAMA, window=window, windowed_layers=windowed, chunked_window=chunked, **state)
    pairs = windowed * counted(length, window, chunked=chunked)
    pairs += (16 - windowed - linear) * counted(length, length, chunked=False)
    diagonal = (16 - linear) * length  # the closed form leaves out half of it
    width = 2 * (model.query_width + model.attention_width)
    states = 6 * linear * length * 640
    found = 16 * attention_flops(work(model, length))
    assert (pairs - diagonal) * width + states <= found <= pairs * width + states
    kept = windowed * min(length, window) + (16 - windowed - linear) * length
    assert cache_bytes(model, length) == kept * 2 * (8 + 8) * 64


@pytest.mark.parametrize("window", [2, 10, 64, 100])
@pytest.mark.parametrize("length", [8, 33, 64])
def test_an_encoders_window_is_on_both_sides(length: int, window: int) -> None:
    bert = replace(Model.catalog("bert-base-uncased"), window=window, windowed_layers=12)
    width = 2 * (bert.query_width + bert.attention_width)
    pairs = counted(length, window, chunked=False, both=True)
    found = attention_flops(work(bert, length)) / width
    assert pairs - 2 * length <= found <= pairs


def test_a_window_as_long_as_the_sequence_changes_nothing() -> None:
    windowed = replace(LLAMA, window=8192, windowed_layers=16)
    for attention in ("sdpa", "flash", "eager"):
        one, other = (work(each, 8192, attention=attention) for each in (LLAMA, windowed))
        assert step_time(one, ONE, NODE) == step_time(other, ONE, NODE)
        assert training_memory(one, ONE) == training_memory(other, ONE)
    assert causal_pairs(100, 100) == causal_pairs(100, 100, chunked=True) == 5000


def test_the_cache_of_gemma_3_at_128k_is_a_sixth() -> None:
    model = Model.catalog("gemma-3-27b")
    everything = replace(model, window=0, windowed_layers=0)
    assert cache_bytes_per_token(model, 1024) == 62 * 2 * 16 * 128 * 2
    assert cache_bytes_per_token(model, 1025) == 10 * 2 * 16 * 128 * 2
    cache = inference_memory(model, 131_072).parts["KV cache"]
    # 10 of 62 layers keep all, 52 keep 1,024 tokens; 16 heads of 128 for keys and for values
    assert cache == (10 * 131_072 + 52 * 1024) * 2 * 16 * 128 * 2
    assert inference_memory(everything, 131_072).parts["KV cache"] / cache == pytest.approx(
        5.96, abs=0.01
    )


def test_a_linear_layer_keeps_a_state_whatever_the_length() -> None:
    model = replace(LLAMA, **LINEAR)
    short, long = (inference_memory(model, length, 3) for length in (128, 65_536))
    assert short.parts[STATES] == long.parts[STATES] == 3 * 12 * (4 * 2**19 + 2 * 2**15)
    assert long.parts["KV cache"] == 3 * 4 * 65_536 * 2 * 8 * 64 * 2
    assert inference_memory(model, 128, 3, tp=2).parts[STATES] == short.parts[STATES] // 2
    assert any("12 of 16 layers keep a state" in each for each in long.assumptions)
    assert STATES not in inference_memory(LLAMA, 128).parts


def test_flash_skips_what_a_window_hides_and_sdpa_does_not() -> None:
    windowed = replace(LLAMA, window=1024, windowed_layers=16)

    def attention(model: Model, kind: str) -> tuple[float, str]:
        step = step_time(work(model, 32_768, attention=kind), ONE, NODE)
        return step.parts["attention"], " ".join(step.assumptions)

    full, nothing = attention(LLAMA, "flash")
    flash, skips = attention(windowed, "flash")
    sdpa, masks = attention(windowed, "sdpa")
    assert flash < full / 8  # a sixteenth of the pairs, at the rate of short sequences
    assert sdpa == pytest.approx(2 * full, rel=0.01)  # the mask hides the causal half too
    assert attention(windowed, "eager")[0] == attention(LLAMA, "eager")[0]
    assert "16 of 16 blocks attend to a window of 1,024 tokens: the kernel skips" in skips
    assert "computes every pair" in masks
    assert "window" not in nothing
    needed = [model_flops(work(each, 32_768))["attention scores"] for each in (LLAMA, windowed)]
    assert needed[0] / needed[1] == pytest.approx(16.25, abs=0.01)  # s / 2 : w - w² / 2s


def test_linear_blocks_cost_the_same_for_every_token_and_keep_no_scores() -> None:
    linear = replace(LLAMA, **LINEAR)
    per_token = [
        model_flops(work(replace(LLAMA, **{**LINEAR, "linear_layers": 16}), length))[
            "attention scores"
        ]
        / length
        for length in (2048, 65_536)
    ]
    assert per_token[0] == per_token[1] == 3 * 16 * 6 * 2**19
    eager = [training_memory(work(each, 4096, attention="eager"), ONE) for each in (LLAMA, linear)]
    scores = 4096 * 4096 * 32 * 2  # bf16, one block
    assert eager[0].total_bytes - eager[1].total_bytes >= 11 * scores
    ring = Strategy.parse("cp8", 8).with_options(cp_method="ring")
    wide = Cluster.rented("h100", 1, 8, network="10 ethernet")
    waits = [
        step_time(work(each, 2048), ring, wide).parts[f"{COMMUNICATION}: cp"]
        for each in (LLAMA, linear)
    ]
    assert waits[1] == pytest.approx(waits[0] / 4)  # 4 of 16 blocks have keys and values to send


def test_a_model_of_an_older_record_has_no_windows() -> None:
    document = asdict(Model.catalog("gemma-3-1b"))
    for name in ("window", "windowed_layers", "chunked_window", *LINEAR):
        document.pop(name)
    old = from_document(Model, document)
    assert old == replace(Model.catalog("gemma-3-1b"), window=0, windowed_layers=0)

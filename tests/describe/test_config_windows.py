"""Windows, chunks and linear blocks of configs, beside the layer types of transformers' classes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.describe import Model, catalog, configs
from workbench.errors import UsageError

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 13,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 200,
}
FEW = {"num_local_experts": 6, "num_experts_per_tok": 2}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
USED = {"use_sliding_window": True, "sliding_window": 20}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((kind, {"sliding_window": 20}) for kind in ("gemma2", "gemma3_text", "cohere2", "olmo3")),
    *((kind, {}) for kind in ("gemma2", "gemma3_text", "cohere2", "olmo3", "cwm", "exaone4")),
    ("gemma3_text", {"sliding_window": 20, "sliding_window_pattern": 3}),
    ("cohere2", {"sliding_window": 20, "sliding_window_pattern": 2}),
    ("gemma3_text", {"layer_types": ["full_attention"] * 6 + ["sliding_attention"] * 7}),
    ("gpt_oss", FEW),
    ("mistral", {}),
    ("mistral", {"sliding_window": 20}),
    ("mistral", {"sliding_window": None}),
    ("mixtral", FEW),
    ("mixtral", {**FEW, "sliding_window": 20}),
    ("phi3", {"sliding_window": 20, "pad_token_id": 0}),
    ("phi3", {"pad_token_id": 0}),
    ("starcoder2", {"sliding_window": 20}),
    ("ministral", {"sliding_window": 20}),
    ("qwen2", {"sliding_window": 20, "max_window_layers": 5}),
    ("qwen2", {**USED, "max_window_layers": 5}),
    ("qwen2", USED),
    ("qwen3", {**USED, "max_window_layers": 0}),
    ("qwen2_moe", {**MOE, **USED, "max_window_layers": 5}),
    ("qwen3_moe", {**MOE, **USED}),
    ("qwen3_moe", {**MOE, "sliding_window": 20}),
    ("smollm3", {**USED, "pad_token_id": 0}),
    ("smollm3", {"sliding_window": 20, "pad_token_id": 0}),
    ("exaone4", {"sliding_window": 20, "sliding_window_pattern": 3}),
    ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 13}),
    ("llama4_text", {**FEW, "intermediate_size_mlp": 160}),
    ("llama4_text", {**FEW, "intermediate_size_mlp": 160, "attention_chunk_size": 32}),
    ("llama4_text", {**FEW, "intermediate_size_mlp": 160, "no_rope_layer_interval": 2}),
    ("qwen3_next", {**MOE, "head_dim": 16}),
    ("qwen3_next", {**MOE, "head_dim": 16, "full_attention_interval": 3}),
    ("qwen3_5_text", {"head_dim": 16, "linear_num_value_heads": 8, "linear_num_key_heads": 4}),
    ("minimax", {**FEW, "head_dim": 16}),
    ("modernbert", {}),
    ("modernbert", {"global_attn_every_n_layers": 5, "local_attention": 20}),
]
ALL_WINDOWED = ("mistral", "mixtral", "phi3", "starcoder2", "qwen3_moe")
"""Their modelling code gives every block the mask of the window; the config has no list."""


def kinds_of(config: Any) -> tuple[int, int, int]:
    """Blocks with a window, their window, and linear blocks, from transformers' own config."""
    layers = config.num_hidden_layers
    if config.model_type in ALL_WINDOWED:
        return (layers, config.sliding_window, 0) if config.sliding_window else (0, 0, 0)
    types = list(config.layer_types)
    local = types.count("sliding_attention") + types.count("chunked_attention")
    window = 0
    if "chunked_attention" in types:
        window = config.attention_chunk_size
    elif config.model_type == "modernbert":
        window = config.local_attention
    elif local:
        window = config.sliding_window
    return local, window if local else 0, types.count("linear_attention")


@pytest.mark.parametrize(("model_type", "keys"), CASES, ids=lambda one: str(one)[:50])
def test_kinds_are_those_of_the_real_class(
    model_type: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type, **SMALL, **keys)
    by_hand = {"model_type": model_type, **SMALL, **keys}  # as published files are: terse
    config.save_pretrained(tmp_path)
    for source in (config, by_hand, tmp_path):
        model = configs.read_config(source).model
        found = (model.windowed_layers, model.window, model.linear_layers)
        assert found == kinds_of(config)
        assert model.chunked_window == (model_type == "llama4_text" and model.window > 0)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5_text", "minimax"])
def test_a_linear_blocks_state_is_the_cache_of_the_real_model(model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    keys = {**SMALL, **FEW, **MOE, "num_hidden_layers": 4, "head_dim": 16}
    keys |= {"linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 16}
    keys |= {"linear_value_head_dim": 24}
    config = transformers.AutoConfig.for_model(model_type, **keys)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        cache = model(torch.zeros(1, 9, dtype=torch.long), use_cache=True).past_key_values
    read = configs.read_config(config).model
    kinds = list(config.layer_types)
    place = kinds.index("linear_attention")
    if model_type == "minimax":
        held: list[object] = [cache.linear_cache[place]]
    else:
        held = [*vars(cache.layers[place]).values()]
    sizes = set[int]()
    for value in held:
        tensors = value.values() if isinstance(value, dict) else (value,)
        sizes |= {each.numel() for each in tensors if isinstance(each, torch.Tensor)}
    assert read.linear_state in sizes
    assert not read.linear_conv or read.linear_conv in sizes


# Published config.json files, the keys that matter, written by hand: blocks and window.
PUBLISHED: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    (
        {
            "model_type": "kimi_linear",
            "hidden_size": 2304,
            "num_hidden_layers": 27,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "intermediate_size": 9216,
            "vocab_size": 163840,
            "num_experts": 256,
            "num_experts_per_token": 8,
            "moe_intermediate_size": 1024,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
        },
        (0, 0, 20),
    ),
    (
        {
            "model_type": "minimax_text_01",
            "hidden_size": 6144,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 9216,
            "vocab_size": 200064,
            "num_local_experts": 32,
            "num_experts_per_tok": 2,
            "attn_type_list": ([0] * 7 + [1]) * 10,
        },
        (0, 0, 70),
    ),
    (
        {
            **SMALL,
            "model_type": "exaone4",
            "sliding_window": 4096,
            "sliding_window_pattern": "LLLG",
            "num_hidden_layers": 64,
        },
        (48, 4096, 0),
    ),
    (
        {
            "model_type": "gpt_neo",
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "vocab_size": 50257,
            "max_position_embeddings": 2048,
            "window_size": 256,
            "attention_types": [[["global", "local"], 6]],
        },
        (6, 256, 0),
    ),
    ({**SMALL, "model_type": "unheard_of", "sliding_window": 32}, (0, 0, 0)),
    (
        {
            **SMALL,
            "model_type": "unheard_of",
            "sliding_window": 32,
            "layer_types": ["sliding_attention"] * 12 + ["full_attention"],
        },
        (12, 32, 0),
    ),
]


@pytest.mark.parametrize(("config", "kinds"), PUBLISHED, ids=lambda one: str(one)[:40])
def test_published_files_are_read(
    config: dict[str, Any], kinds: tuple[int, int, int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = configs.read_config(tmp_path).model
    assert (model.windowed_layers, model.window, model.linear_layers) == kinds


def test_the_catalogs_windows_are_those_of_the_classes() -> None:
    for name, model_type in [("gemma-2-9b", "gemma2"), ("gemma-3-27b", "gemma3_text")]:
        row = catalog.model(name)
        keys = {**SMALL, "model_type": model_type, "num_hidden_layers": row.layers}
        read = configs.read_config({**keys, "sliding_window": row.window}).model
        assert read.windowed_layers == row.windowed_layers
    assert catalog.model("mistral-7b").window == 4096
    assert not catalog.model("mistralai/Mistral-7B-Instruct-v0.2").window
    assert catalog.model("phi-3-mini").window == 2047
    assert not catalog.model("Phi-3.5-mini-instruct").window


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"layer_types": ["full_attention"]}, "names 1 blocks, but there are 13"),
        ({"layer_types": "full_attention"}, "must be a list"),
        ({"sliding_window": "wide"}, "must be a whole number"),
        ({"sliding_window_pattern": 0}, "must be between 1"),
    ],
)
def test_what_is_no_list_of_kinds_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        configs.read_config({**SMALL, "model_type": "gemma3_text", **keys})


def test_kinds_that_do_not_fit_the_model_are_refused() -> None:
    model = catalog.model("llama-3-8b")
    for values in ({"window": 5}, {"windowed_layers": 5}, {"linear_layers": 5}):
        with pytest.raises(UsageError, match="give both, or neither"):
            replace(model, **values)
    with pytest.raises(UsageError, match="more than the 32 layers"):
        replace(model, window=5, windowed_layers=20, linear_layers=20, linear_state=9)


def test_a_window_of_unknown_blocks_is_said_not_to_count() -> None:
    read = configs.read_config({**SMALL, "model_type": "unheard_of", "sliding_window": 4096})
    assert any("sliding window of 4,096 tokens is counted as full" in note for note in read.notes)
    assert isinstance(read.model, Model)

"""Readers of further families: StarCoder, Cohere, OLMo 3, Llama 4, GPT-Neo and their like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from workbench.describe import config_families as common
from workbench.describe.config_families import ALL_BIASES, PLAIN, Fields
from workbench.describe.config_keys import Keys
from workbench.errors import UsageError


def starcoder2(keys: Keys) -> Fields:
    """StarCoder 2: GPT-2's MLP and norms, rotary positions, grouped queries, tied."""
    bias = keys.switch("use_bias", default=True)
    return {
        **common.llama(keys, tie=True),
        **PLAIN,
        **dict.fromkeys(ALL_BIASES, bias),
    }


def gpt_bigcode(keys: Keys) -> Fields:
    """StarCoder 1, SantaCoder: GPT-2 with one key/value head."""
    shared = keys.switch("multi_query", default=True)
    return {**common.gpt2(keys), "kv_heads": 1 if shared else None}


def gpt_neo(keys: Keys) -> Fields:
    """GPT-Neo: GPT-2 without a bias on queries, keys and values."""
    hidden = keys.integer("hidden_size")
    return {
        **PLAIN,
        **ALL_BIASES,
        "layers": keys.integer("num_layers"),
        "hidden": hidden,
        "heads": keys.integer("num_heads"),
        "vocab": keys.integer("vocab_size"),
        "mlp_hidden": keys.integer("intermediate_size", default=4 * hidden),
        "qkv_bias": False,
        "position": "learned",
        "max_positions": keys.integer("max_position_embeddings"),
        "tied_embeddings": common.tied(keys, default=True),
        "dropout": keys.share("resid_dropout"),
    }


def cohere(keys: Keys) -> Fields:
    """Command R, R+, A: one norm without bias for attention and MLP, tied."""
    return {
        **common.llama(keys, tie=True),
        "norm": "layernorm-no-bias",
        "norms_per_block": 1,
        "parallel_block": True,
        "mlp_bias": False,
        "qk_norm_full": keys.switch("use_qk_norm", default=False),
    }


def ungated(keys: Keys) -> Fields:
    """Arcee's AFM: Llama with a squared ReLU without gate."""
    return {**common.llama(keys), "gated_mlp": False}


def nanochat(keys: Keys) -> Fields:
    """nanochat: the same, with norms without parameters."""
    return {**ungated(keys), "norm": "rmsnorm-plain"}


def apertus(keys: Keys) -> Fields:
    """Apertus: the same with normed queries and keys, and an activation with two weights."""
    fields = ungated(keys)
    return {**fields, "qk_norm": True, "extra_parameters": 2 * fields["layers"]}


def normed_heads(keys: Keys) -> Fields:
    """EXAONE 4, Hunyuan: queries and keys normed per head."""
    return {**common.llama(keys), "qk_norm": True}


def seed_oss(keys: Keys) -> Fields:
    """Seed-OSS: the bias of attention's output has a switch of its own."""
    return {
        **common.llama(keys),
        "head_dim": keys.integer("head_dim", default=128),
        "qkv_bias": keys.switch("attention_bias", default=True),
        "out_bias": keys.switch("attention_out_bias", default=False),
    }


def phimoe(keys: Keys) -> Fields:
    """Phi 3.5 MoE: Mixtral with LayerNorm and a switch for the head's bias."""
    return {
        **common.llama(keys),
        "norm": "layernorm",
        "head_bias": keys.switch("lm_head_bias", default=False),
    }


def glm4_moe(keys: Keys) -> Fields:
    """GLM 4.5 and 4.6: bias on q, k, v only; the larger ones norm queries and keys."""
    if keys.integer("num_nextn_predict_layers", default=0, least=0):
        keys.notes.append(f"{keys.label}: the multi-token-prediction block is left out.")
    return {
        **common.llama(keys),
        "out_bias": False,
        "qk_norm": keys.switch("use_qk_norm", default=False),
    }


def llama4(keys: Keys) -> Fields:
    """Llama 4's text part: a shared expert as wide as a routed one, dense blocks twice as wide."""
    layers, width = keys.integer("num_hidden_layers"), keys.integer("intermediate_size")
    step = keys.integer("interleave_moe_layer_step", default=1)
    moe_layers = keys.values.get("moe_layers")
    if moe_layers is not None and not isinstance(moe_layers, list | tuple):
        raise UsageError(f"moe_layers in {keys.label} must be a list, not {moe_layers!r}.")
    routed = layers // step if moe_layers is None else len(cast("list[Any]", moe_layers))
    fields = common.llama(keys)
    if not routed:
        names = ("experts", "experts_per_token", "expert_hidden", "dense_layers")
        fields = {name: value for name, value in fields.items() if name not in names}
        return {**fields, "mlp_hidden": keys.integer("intermediate_size_mlp")}
    return {
        **fields,
        "mlp_hidden": keys.integer("intermediate_size_mlp"),
        "expert_hidden": width,
        "shared_expert_hidden": width,
        "dense_layers": layers - routed,
    }


OTHERS: dict[str, Callable[[Keys], Fields]] = {
    "starcoder2": starcoder2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    **dict.fromkeys(("cohere", "cohere2"), cohere),
    "arcee": ungated,
    "apertus": apertus,
    **dict.fromkeys(("olmo3", "olmoe", "flex_olmo", "minimax_m2"), common.olmo2),
    **dict.fromkeys(("exaone4", "hunyuan_v1_dense"), normed_heads),
    "nanochat": nanochat,
    "seed_oss": seed_oss,
    "phimoe": phimoe,
    "glm4_moe": glm4_moe,
    "llama4_text": llama4,
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), common.qwen2),
    **dict.fromkeys(("qwen3_vl_text", "qwen3_vl_moe_text"), common.qwen3),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), common.qwen3_next),
}
"""model_type -> its reader."""

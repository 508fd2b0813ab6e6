"""Readers of families with habits of their own: Falcon, BLOOM, OPT, MPT, ViT; and the list.

`FAMILIES` maps a config's model_type to its reader; other types are read as Llama-like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from workbench.describe import config_families as newer
from workbench.describe.config_encoders import ENCODERS
from workbench.describe.config_families import ALL_BIASES, PLAIN, Fields
from workbench.describe.config_keys import Keys
from workbench.describe.config_others import OTHERS
from workbench.errors import UsageError


def falcon(keys: Keys) -> Fields:
    """Falcon: multi-query (7B) or grouped (40B, 11B) attention beside the MLP."""
    fields = newer.base_sizes(keys)
    grouped = keys.switch("new_decoder_architecture", default=False)
    parallel = grouped or keys.switch("parallel_attn", default=True)
    multi_query = keys.switch("multi_query", default=True)
    norms = keys.integer("num_ln_in_parallel_attn", default=2) if grouped else 2 - parallel
    bias = keys.switch("bias", default=False)
    return {
        **fields,
        **PLAIN,
        "mlp_hidden": newer.four_times(keys),
        "kv_heads": keys.integer("num_kv_heads", "n_head_kv", default=fields["heads"])
        if grouped
        else (1 if multi_query else None),
        "norms_per_block": norms,
        "parallel_block": parallel,
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": bias,
        "position": "alibi" if keys.switch("alibi", default=False) else "rope",
        "tied_embeddings": newer.tied(keys, default=True),
        "dropout": keys.share("hidden_dropout"),
    }


def bloom(keys: Keys) -> Fields:
    """BLOOM: ALiBi, a norm after the embedding, tied."""
    return {
        **newer.base_sizes(keys),
        **PLAIN,
        **ALL_BIASES,
        "mlp_hidden": newer.four_times(keys),
        "position": "alibi",
        "embedding_norm": True,
        "tied_embeddings": newer.tied(keys, default=True),
        "dropout": keys.share("hidden_dropout"),
    }


_OFFSET_OF_OPT = 2  # transformers' OPTLearnedPositionalEmbedding


def opt(keys: Keys) -> Fields:
    """OPT: GPT-2 with ReLU and a position table with two unused rows."""
    hidden = keys.integer("hidden_size")
    inner = keys.integer("word_embed_proj_dim", default=hidden)
    if inner != hidden:
        raise UsageError(
            f"{keys.label} has word embeddings of width {inner} in a model of width {hidden}. Only "
            "equal widths can be described (OPT-350M is the exception); use Model.from_module."
        )
    bias = keys.switch("enable_bias", default=True)
    return {
        **newer.base_sizes(keys),
        "gated_mlp": False,
        "norm": "layernorm"
        if keys.switch("layer_norm_elementwise_affine", default=True)
        else "layernorm-plain",
        "mlp_hidden": keys.integer("ffn_dim"),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": bias,
        "position": "learned",
        "max_positions": keys.integer("max_position_embeddings") + _OFFSET_OF_OPT,
        "unused_positions": _OFFSET_OF_OPT,
        "final_norm": keys.switch("do_layer_norm_before", default=True),
        "tied_embeddings": newer.tied(keys, default=True),
        "dropout": keys.share("dropout", default=0.1),
    }


def mpt(keys: Keys) -> Fields:
    """MPT: ALiBi, no biases, norms without bias, tied."""
    section = keys.values.get("attn_config")
    attention = cast("Mapping[str, Any]", section if isinstance(section, Mapping) else {})
    inner = Keys(values=attention, label=f"attn_config in {keys.label}", family=keys.family)
    hidden, bias = keys.integer("d_model"), not keys.switch("no_bias", default=True)
    alibi = inner.switch("alibi", default=True)
    return {
        "layers": keys.integer("n_layers"),
        "hidden": hidden,
        "heads": keys.integer("n_heads"),
        "vocab": keys.integer("vocab_size"),
        "kv_heads": inner.optional("kv_n_heads"),
        "mlp_hidden": hidden * keys.integer("expansion_ratio", default=4),
        "gated_mlp": False,
        "norm": "layernorm" if bias else "layernorm-no-bias",
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": bias,
        "position": "alibi" if alibi else "learned",
        "max_positions": 0 if alibi else keys.integer("max_seq_len"),
        "tied_embeddings": newer.tied(keys, default=True),
        "dropout": keys.share("resid_pdrop"),
    }


def vit(keys: Keys) -> Fields:
    """ViT with its classifier; the number of classes is that of the labels."""
    labels = keys.values.get("id2label")
    classes = len(cast("Mapping[str, str]", labels)) if isinstance(labels, Mapping) else 0
    hidden, patch = keys.integer("hidden_size"), keys.integer("patch_size", default=16)
    channels = keys.integer("num_channels", default=3)
    if channels < 3:
        raise UsageError(
            f"num_channels in {keys.label} is {channels}; images with 3 channels or more can be "
            "described. Use Model.from_module."
        )
    qkv = keys.switch("qkv_bias", default=True)
    return {
        **PLAIN,
        **ALL_BIASES,
        "kind": "vision",
        "layers": keys.integer("num_hidden_layers"),
        "hidden": hidden,
        "heads": keys.integer("num_attention_heads"),
        "mlp_hidden": keys.integer("intermediate_size"),
        "vocab": classes or keys.integer("num_labels", default=2),
        "qkv_bias": qkv,
        "position": "learned",
        "image_size": keys.integer("image_size", default=224),
        "patch_size": patch,
        "extra_parameters": (channels - 3) * patch * patch * hidden,
        "dropout": keys.share("hidden_dropout_prob"),
    }


def gpt_oss(keys: Keys) -> Fields:
    """GPT-OSS: biases in router and experts, and one sink per head, counted as extra parameters."""
    fields = newer.llama(keys)
    if not fields.get("experts"):
        raise UsageError(f"{keys.label} has model_type gpt_oss and no num_local_experts. Add them.")
    per_expert = 2 * fields["expert_hidden"] + fields["hidden"]
    biases = fields["experts"] * (1 + per_expert) + fields["heads"]
    return {**fields, "mlp_bias": False, "extra_parameters": fields["layers"] * biases}


def nemotron(keys: Keys) -> Fields:
    """Nemotron 3 and 4: LayerNorm and a squared ReLU without gate."""
    return {**newer.llama(keys), **PLAIN}


FAMILIES: dict[str, Callable[[Keys], Fields]] = {
    **dict.fromkeys(newer.LIKE_LLAMA, newer.llama),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "mixtral", "phi3"), newer.mistral),
    **dict.fromkeys(("smollm3", "ernie4_5"), newer.tied_llama),
    **dict.fromkeys(("qwen2", "qwen2_moe"), newer.qwen2),
    **dict.fromkeys(("qwen3", "qwen3_moe"), newer.qwen3),
    "gpt_oss": gpt_oss,
    "nemotron": nemotron,
    "gemma": newer.gemma,
    "gemma2": newer.gemma2,
    **dict.fromkeys(("gemma3", "gemma3_text"), newer.gemma3),
    "olmo": newer.olmo,
    "olmo2": newer.olmo2,
    "stablelm": newer.stablelm,
    **dict.fromkeys(("internlm", "internlm2"), newer.internlm),
    **dict.fromkeys(("glm", "glm4"), newer.glm),
    "chatglm": newer.chatglm,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), newer.deepseek),
    "gpt2": newer.gpt2,
    "gptj": newer.gptj,
    "gpt_neox": newer.gpt_neox,
    "phi": newer.phi,
    "falcon": falcon,
    "bloom": bloom,
    "opt": opt,
    "mpt": mpt,
    "vit": vit,
    **ENCODERS,
    **OTHERS,
}
"""model_type -> its reader."""

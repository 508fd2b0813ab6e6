"""One small reader per family of Hugging Face models: config keys -> the fields of `Model`.

Defaults are those of the family's class in transformers 5, for keys that saved files leave out.
tests/describe/test_configs.py builds the real classes and compares the counts.
"""

from __future__ import annotations

from typing import Any

from workbench.describe.config_keys import Keys
from workbench.errors import UsageError

Fields = dict[str, Any]
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
MLP = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
VOCAB = ("vocab_size", "padded_vocab_size")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
PLAIN = {"gated_mlp": False, "norm": "layernorm"}
ALL_BIASES = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
LIKE_LLAMA = (
    *("llama", "baichuan", "yi", "granite", "granitemoe", "granitemoeshared", "cwm", "exaone"),
    *("helium", "internlm3", "iquestcoder"),
)
"""Types that `llama` reads exactly (granitemoe: Mixtral's keys)."""


def base_sizes(keys: Keys) -> Fields:
    """Blocks, width, heads and vocabulary under any of their names."""
    return {
        "layers": keys.integer(*LAYERS),
        "hidden": keys.integer(*HIDDEN),
        "heads": keys.integer(*HEADS),
        "vocab": keys.integer(*VOCAB),
    }


def four_times(keys: Keys) -> int:
    """Inner width of the MLP; four times the width where the file leaves it open."""
    return keys.integer(*MLP, default=4 * keys.integer(*HIDDEN))


def tied(keys: Keys, *, default: bool) -> bool:
    """Whether head and embedding share one matrix."""
    return keys.switch("tie_word_embeddings", default=default)


def llama(keys: Keys, *, tie: bool = False) -> Fields:
    """Llama and what is built like it: RMSNorm, gated MLP, rotary positions, grouped queries."""
    bias = keys.switch("attention_bias", default=False)
    return {
        **base_sizes(keys),
        "mlp_hidden": keys.integer(*MLP, default=keys.optional("moe_intermediate_size")),
        "kv_heads": keys.optional(*KV_HEADS),
        "head_dim": keys.optional("head_dim"),
        "tied_embeddings": tied(keys, default=tie),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": keys.switch("mlp_bias", default=False),
        "dropout": keys.share("resid_pdrop", "hidden_dropout", "residual_dropout"),
        **_experts(keys),
    }


def tied_llama(keys: Keys) -> Fields:
    """SmolLM 3, ERNIE 4.5: Llama whose class ties the head, which their files do not repeat."""
    return llama(keys, tie=True)


def _experts(keys: Keys) -> Fields:
    """Routed and shared experts under any of their names; empty for dense models."""
    if not any(keys.has(name) for name in EXPERTS):
        return {}
    experts = keys.integer(*EXPERTS, least=0)
    if not experts:
        return {}
    width = keys.integer("moe_intermediate_size", *MLP)
    layers = keys.integer(*LAYERS)
    dense = _dense_layers(keys, layers)
    if dense == layers:
        return {}
    shared = keys.integer("n_shared_experts", "num_shared_experts", default=0, least=0) * width
    return {
        "experts": experts,
        "experts_per_token": keys.integer(
            "num_experts_per_tok", "num_experts_per_token", "moe_topk"
        ),
        "expert_hidden": width,
        "shared_expert_hidden": keys.integer(
            "shared_expert_intermediate_size", default=shared, least=0
        ),
        "dense_layers": dense,
    }


def _dense_layers(keys: Keys, layers: int) -> int:
    """Blocks with a dense MLP: the first k, every n-th, or a list."""
    step = keys.integer("decoder_sparse_step", "moe_layer_freq", default=1)
    first = keys.integer("first_k_dense_replace", default=0, least=0)
    listed = keys.values.get("mlp_only_layers") or ()
    if not isinstance(listed, list | tuple):
        raise UsageError(f"mlp_only_layers in {keys.label} must be a list, not {listed!r}.")
    # transformers: block i is sparse when (i + 1) is a multiple of the step and it is not listed.
    if keys.has("decoder_sparse_step") or listed:
        return sum((index + 1) % step > 0 or index in listed for index in range(layers))
    if step > 1:
        return sum(index < first or index % step > 0 for index in range(layers))
    return min(first, layers)


def mistral(keys: Keys) -> Fields:
    """Mistral, Mixtral, Phi-3: Llama without any bias, whatever the file says."""
    return {**llama(keys), "qkv_bias": False, "out_bias": False, "mlp_bias": False}


def qwen2(keys: Keys) -> Fields:
    """Qwen 1.5, 2, 2.5: bias on q, k, v only; the MoE has a gate for its shared expert."""
    fields = {**llama(keys), "qkv_bias": True, "out_bias": False, "mlp_bias": False}
    if fields.get("shared_expert_hidden"):
        moe_layers = fields["layers"] - fields["dense_layers"]
        fields["extra_parameters"] = moe_layers * fields["hidden"]
    return fields


def qwen3(keys: Keys) -> Fields:
    """Qwen 3: heads of 128 whatever the width, queries and keys normed per head."""
    fields = llama(keys)
    usual = None if keys.family == "qwen3_moe" else 128  # its class has no default of its own
    return {**fields, "head_dim": fields["head_dim"] or usual, "qk_norm": True, "mlp_bias": False}


def qwen3_next(keys: Keys) -> Fields:
    """Qwen3-Next and 3.5: gated attention; three of four blocks have linear attention instead."""
    keys.notes.append(
        f"{keys.label}: its linear blocks' projections are counted as attention's, which are "
        "smaller by 1 to 4 % of the parameters; multi-token prediction is left out."
    )
    fields = {**llama(keys), "mlp_bias": False}
    gates = fields["layers"] - fields["dense_layers"] if fields.get("shared_expert_hidden") else 0
    return {
        **fields,
        "qk_norm": True,
        "attention_gate": keys.switch("attn_output_gate", default=True),
        "extra_parameters": gates * fields["hidden"],
    }


def gemma(keys: Keys) -> Fields:
    """Gemma 1: wide heads, tied."""
    fields = llama(keys, tie=True)
    return {**fields, "head_dim": fields["head_dim"] or 256, "mlp_bias": False}


def gemma2(keys: Keys) -> Fields:
    """Gemma 2: norms before and after attention and MLP."""
    return {**gemma(keys), "norms_per_block": 4}


def gemma3(keys: Keys) -> Fields:
    """Gemma 3's text part: as Gemma 2, with normed queries and keys. Published files are terse."""
    bias = keys.switch("attention_bias", default=False)
    return {
        "layers": keys.integer(*LAYERS),
        "hidden": keys.integer(*HIDDEN),
        "mlp_hidden": keys.integer(*MLP),
        "heads": keys.assumed("num_attention_heads", default=8),
        "kv_heads": keys.assumed("num_key_value_heads", default=4),
        "head_dim": keys.assumed("head_dim", default=256),
        "vocab": keys.assumed("vocab_size", default=262208),
        "tied_embeddings": tied(keys, default=True),
        "qkv_bias": bias,
        "out_bias": bias,
        "norms_per_block": 4,
        "qk_norm": True,
    }


def olmo(keys: Keys) -> Fields:
    """OLMo 1: norms without parameters."""
    return {**llama(keys), "norm": "layernorm-plain"}


def olmo2(keys: Keys) -> Fields:
    """OLMo 2: queries and keys are normed over all heads together."""
    return {**llama(keys), "qk_norm_full": True}


def stablelm(keys: Keys) -> Fields:
    """StableLM 2: Llama with LayerNorm."""
    parallel = keys.switch("use_parallel_residual", default=False)
    return {
        **llama(keys),
        "norm": "layernorm",
        "norms_per_block": 1 if parallel else 2,
        "parallel_block": parallel,
        "qkv_bias": keys.switch("use_qkv_bias", default=False),
        "out_bias": False,
        "mlp_bias": False,
        "qk_norm_full": keys.switch("qk_layernorm", default=False),
    }


def internlm(keys: Keys) -> Fields:
    """InternLM 1 and 2: one switch for the biases of attention."""
    bias = keys.switch("bias", default=keys.family == "internlm")
    return {**llama(keys), "qkv_bias": bias, "out_bias": bias}


def glm(keys: Keys) -> Fields:
    """GLM 4 in transformers: bias on q, k, v only; the later one norms four times."""
    norms = 4 if keys.family == "glm4" else 2
    return {**llama(keys), "out_bias": False, "norms_per_block": norms}


def chatglm(keys: Keys) -> Fields:
    """ChatGLM 2 and 3, with their own key names."""
    linear = keys.switch("add_bias_linear", default=False)
    grouped = keys.switch("multi_query_attention", default=False)
    return {
        **base_sizes(keys),
        "vocab": keys.integer("padded_vocab_size", "vocab_size"),
        "mlp_hidden": keys.integer("ffn_hidden_size"),
        "kv_heads": keys.integer("multi_query_group_num") if grouped else None,
        "head_dim": keys.optional("kv_channels"),
        "qkv_bias": linear or keys.switch("add_qkv_bias", default=False),
        "out_bias": linear,
        "mlp_bias": linear,
        "norm": "rmsnorm" if keys.switch("rmsnorm", default=True) else "layernorm",
        "final_norm": keys.switch("post_layer_norm", default=True),
    }


def deepseek(keys: Keys) -> Fields:
    """DeepSeek V2 and V3: compressed attention (MLA) and fine-grained experts."""
    if keys.integer("num_nextn_predict_layers", default=0, least=0):
        keys.notes.append(f"{keys.label}: the multi-token-prediction block is left out.")
    if not keys.switch("use_mla", default=True):  # DeepSeek-OCR, the smallest DeepSeek-VL2
        return llama(keys)
    return {
        **llama(keys),
        "kv_heads": None,
        "head_dim": keys.integer("qk_nope_head_dim"),
        "rope_head_dim": keys.integer("qk_rope_head_dim"),
        "value_head_dim": keys.integer("v_head_dim"),
        "kv_lora_rank": keys.integer("kv_lora_rank"),
        "q_lora_rank": keys.integer("q_lora_rank", default=0, least=0),
        "qkv_bias": False,
        "out_bias": False,
    }


def gpt2(keys: Keys) -> Fields:
    """GPT-2: LayerNorm, biases everywhere, learned positions, tied."""
    return {
        **base_sizes(keys),
        **PLAIN,
        **ALL_BIASES,
        "mlp_hidden": four_times(keys),
        "position": "learned",
        "max_positions": keys.integer("n_positions", "max_position_embeddings"),
        "tied_embeddings": tied(keys, default=True),
        "dropout": keys.share("resid_pdrop", default=0.1),
    }


def gptj(keys: Keys) -> Fields:
    """GPT-J: one norm for the parallel block, biases in the MLP and the head only."""
    return {
        **base_sizes(keys),
        **PLAIN,
        "mlp_hidden": four_times(keys),
        "norms_per_block": 1,
        "parallel_block": True,
        "mlp_bias": True,
        "head_bias": True,
        "tied_embeddings": tied(keys, default=False),
        "dropout": keys.share("resid_pdrop"),
    }


def gpt_neox(keys: Keys) -> Fields:
    """GPT-NeoX and Pythia: parallel block with two norms."""
    bias = keys.switch("attention_bias", default=True)
    return {
        **base_sizes(keys),
        **PLAIN,
        "mlp_hidden": keys.integer(*MLP),
        "parallel_block": keys.switch("use_parallel_residual", default=True),
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": True,
        "tied_embeddings": tied(keys, default=False),
        "dropout": keys.share("hidden_dropout"),
    }


def phi(keys: Keys) -> Fields:
    """Phi 1, 1.5 and 2: one norm for the parallel block, biases everywhere."""
    if keys.switch("qk_layernorm", default=False):
        keys.notes.append(f"{keys.label}: the norms of queries and keys are left out.")
    return {
        **base_sizes(keys),
        **PLAIN,
        **ALL_BIASES,
        "mlp_hidden": four_times(keys),
        "kv_heads": keys.optional(*KV_HEADS),
        "norms_per_block": 1,
        "parallel_block": True,
        "head_bias": True,
        "tied_embeddings": tied(keys, default=False),
        "dropout": keys.share("resid_pdrop"),
    }

"""Readers of encoders: BERT, RoBERTa, DistilBERT, DeBERTa, ModernBERT, and what has BERT's keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from workbench.describe import config_families as common
from workbench.describe.config_families import ALL_BIASES, PLAIN, Fields
from workbench.describe.config_keys import Keys
from workbench.errors import UsageError

_LIKE_ROBERTA = ("roberta", "xlm-roberta", "camembert")


def _padding_rows(keys: Keys) -> int:
    """RoBERTa counts positions from behind its padding token's (transformers: padding_idx + 1)."""
    if keys.family not in _LIKE_ROBERTA:
        return 0
    return keys.integer("pad_token_id", default=1, least=0) + 1


def bert(keys: Keys) -> Fields:
    """BERT and RoBERTa, with the masked-language-model head unless the bare model is named."""
    architectures = keys.values.get("architectures")
    first = (
        str(cast("list[Any]", architectures)[0])
        if isinstance(architectures, list) and architectures
        else ""
    )
    pretraining = first.endswith("ForPreTraining")
    bare = first.endswith("Model") and not first.endswith("LMHeadModel")
    unused = _padding_rows(keys)
    hidden = keys.integer("hidden_size")
    if first and not (bare or pretraining or first.endswith(("ForMaskedLM", "LMHeadModel"))):
        keys.notes.append(f"{keys.label}: {first} is counted with a masked-language-model head.")
    return {
        **common.base_sizes(keys),
        **PLAIN,
        **ALL_BIASES,
        "kind": "encoder",
        "mlp_hidden": keys.integer("intermediate_size"),
        "position": "learned",
        "max_positions": keys.integer("max_position_embeddings", least=unused + 1),
        "unused_positions": unused,
        "token_types": keys.integer("type_vocab_size", default=2, least=0),
        "embedding_norm": True,
        "final_norm": False,
        "tied_embeddings": common.tied(keys, default=True),
        "mlm_head": not bare,
        "head_bias": not bare,
        "pooler": bare or pretraining,
        "extra_parameters": 2 * hidden + 2 if pretraining else 0,
        "dropout": keys.share("hidden_dropout_prob", default=0.1),
    }


def is_like_bert(keys: Keys) -> bool:
    """Whether an unknown type has the keys of BERT's embedding, which no decoder has."""
    return keys.has("type_vocab_size")


def like_bert(keys: Keys) -> Fields:
    """ELECTRA, ERNIE, MegatronBERT and other types with BERT's keys.

    Raises:
        UsageError: blocks share weights, or words are embedded in another width (ALBERT).
    """
    width, hidden = keys.optional("embedding_size"), keys.integer("hidden_size")
    if keys.has("num_hidden_groups") or (width or hidden) != hidden:
        raise UsageError(
            f"{keys.label} has model_type {keys.family!r}, whose blocks share weights or whose "
            "word embeddings have a width of their own. Use Model.from_module, or workbench "
            "measure train.py."
        )
    fields = bert(keys)
    if any(str(key).startswith(("rope_", "rotary_")) for key in keys.values):  # GTE, Jina: no table
        fields |= {"position": "rope", "max_positions": 0}
    return fields


def distilbert(keys: Keys) -> Fields:
    """DistilBERT: BERT's blocks without token types and pooler, with key names of its own."""
    return {
        **PLAIN,
        **ALL_BIASES,
        "kind": "encoder",
        "layers": keys.integer("n_layers", default=6),
        "hidden": keys.integer("dim", default=768),
        "heads": keys.integer("n_heads", default=12),
        "vocab": keys.integer("vocab_size"),
        "mlp_hidden": keys.integer("hidden_dim", default=3072),
        "position": "learned",
        "max_positions": keys.integer("max_position_embeddings", default=512),
        "embedding_norm": True,
        "final_norm": False,
        "tied_embeddings": common.tied(keys, default=True),
        "mlm_head": True,
        "head_bias": True,
        "dropout": keys.share("dropout", default=0.1),
    }


def deberta(keys: Keys) -> Fields:
    """DeBERTa 2 and 3: relative positions in a table of the encoder's, which all blocks read."""
    hidden, bert_fields = keys.integer("hidden_size"), bert(keys)
    absolute = keys.switch("position_biased_input", default=True)
    shared = keys.switch("share_att_key", default=False)
    if keys.integer("conv_kernel_size", default=0, least=0) or not shared:
        keys.notes.append(
            f"{keys.label}: its convolution and its own projections of positions are left out."
        )
    buckets = keys.integer("position_buckets", default=0, least=-1)
    rows = 2 * (buckets if buckets > 0 else keys.integer("max_position_embeddings"))
    normed = 2 * hidden if "layer_norm" in str(keys.values.get("norm_rel_ebd")) else 0
    relative = keys.switch("relative_attention", default=False)
    return {
        **bert_fields,
        "position": "learned" if absolute else "none",
        "max_positions": bert_fields["max_positions"] if absolute else 0,
        "extra_parameters": rows * hidden + normed if relative else 0,
    }


def modernbert(keys: Keys) -> Fields:
    """ModernBERT: gated MLP, rotary positions, no biases in its blocks."""
    bias = keys.switch("attention_bias", default=False)
    return {
        **common.base_sizes(keys),
        "kind": "encoder",
        "mlp_hidden": keys.integer("intermediate_size"),
        "norm": "layernorm" if keys.switch("norm_bias", default=False) else "layernorm-no-bias",
        "qkv_bias": bias,
        "out_bias": bias,
        "mlp_bias": keys.switch("mlp_bias", default=False),
        "embedding_norm": True,
        "tied_embeddings": common.tied(keys, default=True),
        "mlm_head": True,
        "head_bias": keys.switch("decoder_bias", default=True),
        "dropout": keys.share("mlp_dropout"),
    }


ENCODERS: dict[str, Callable[[Keys], Fields]] = {
    **dict.fromkeys(("bert", *_LIKE_ROBERTA), bert),
    "distilbert": distilbert,
    "deberta-v2": deberta,
    "modernbert": modernbert,
}
"""model_type -> its reader."""

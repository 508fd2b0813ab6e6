"""A `Model` as the torch module that transformers would train: on the meta device, no weights.

Nothing is guessed: if the module built has another number of parameters than the shape says, the
shape has something that this file cannot express, and the simulation refuses.
"""
# ruff: noqa: SLF001 - transformers keeps the choice of attention in a private attribute
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportMissingImports=false, reportPrivateUsage=false

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from workbench.describe import Model, Workload
from workbench.estimate.simulation.heads import Loss, build_head
from workbench.estimate.simulation.refusal import CannotSimulateError
from workbench.estimate.simulation.trace import LOSS
from workbench.estimate.simulation.tracker import Tracker

GELU = "gelu_pytorch_tanh"  # one kernel that keeps its input


class Trainee(nn.Module):
    """Body, head and loss in one root module, as ``LlamaForCausalLM`` and its relatives are."""

    def __init__(self, body: nn.Module, head: nn.Module | None, workload: Workload) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.loss = Loss(workload)
        self.pools = workload.model.kind == "vision"
        self.tracker: Tracker | None = None  # set once it runs

    def forward(self, inputs: dict[str, Any], labels: Any = None) -> Any:
        """(loss, logits), or the hidden states where this stage has no head."""
        hidden = self.body(**inputs)[0]
        if self.head is None:
            return hidden
        if self.tracker is not None:
            self.tracker.trace.enter(LOSS)
        if self.pools:
            hidden = hidden[:, 0, :]
        return self.loss(self.head, hidden, labels)


def build(workload: Workload, *, layers: int, first: bool = True, last: bool = True) -> Trainee:
    """Build `layers` blocks with the embedding if `first` and the head if `last`, on meta.

    Raises:
        CannotSimulateError: transformers has no such model, or not with these parameters.
    """
    model = workload.model
    with torch.device("meta"):
        body = _body(workload, layers)
        head = build_head(model) if last else None
    trainee = Trainee(body, head, workload)
    if model.tied_embeddings and first and last and head is not None:
        matrix = head.decoder if model.mlm_head else head
        matrix.weight = body.get_input_embeddings().weight  # type: ignore[assignment]
    if first and last and layers == model.layers:
        _check_parameters(model, trainee)
    if not first:
        body.set_input_embeddings(nn.Identity())
    if not last and hasattr(body, "norm"):
        body.norm = nn.Identity()
    if not last and hasattr(body, "ln_f"):
        body.ln_f = nn.Identity()
    return trainee.train()


def blocks_of(trainee: Trainee) -> list[nn.Module]:
    """The transformer blocks in order."""
    body: Any = trainee.body
    for owner, name in ((body, "layers"), (body, "h"), (getattr(body, "encoder", None), "layer")):
        children = getattr(owner, name, None)
        if isinstance(children, nn.ModuleList):
            return list(children)
    raise AssertionError(type(body))


def _check_parameters(model: Model, trainee: Trainee) -> None:
    count = sum(parameter.numel() for parameter in trainee.parameters())
    if count != model.parameters:
        raise CannotSimulateError(
            f"{model.name} has {model.parameters:,} parameters, but the nearest model in "
            f"transformers ({type(trainee.body).__name__}) has {count:,}. Pass a step function "
            "that builds the real one."
        )


def _body(workload: Workload, layers: int) -> Any:
    model = workload.model
    if model.kind == "vision":
        family, options = "vit:ViT", _vision(workload, layers)
    elif model.kind == "encoder":
        family, options = "bert:Bert", _bert(workload, layers)
    elif model.position == "learned":
        family, options = "gpt2:GPT2", _gpt2(workload, layers)
    else:
        family, options = _rotary_family(model), _rotary(workload, layers)
    module, prefix = family.split(":")
    package = f"transformers.models.{module}"
    home = importlib.import_module(f"{package}.modeling_{module}")
    configs = importlib.import_module(f"{package}.configuration_{module}")
    config = getattr(configs, f"{prefix}Config")(**options)
    config._attn_implementation = "eager" if workload.attention == "eager" else "sdpa"
    extra = {}
    if model.kind == "vision":
        extra = {"add_pooling_layer": False}
    elif model.kind == "encoder":
        extra = {"add_pooling_layer": model.pooler}
    body = getattr(home, f"{prefix}Model")(config, **extra)
    if prefix == "Gemma3Text" and not model.qk_norm:
        for block in body.layers:
            block.self_attn.q_norm = block.self_attn.k_norm = nn.Identity()
    return body


def _rotary_family(model: Model) -> str:
    if model.experts:
        return "qwen3_moe:Qwen3Moe" if model.qk_norm else "mixtral:Mixtral"
    if model.norms_per_block == 4:
        return "gemma3:Gemma3Text"  # Gemma 2's own class has no sdpa; qk norms go again
    if model.qk_norm:
        return "qwen3:Qwen3"
    return "qwen2:Qwen2" if model.qkv_bias and not model.out_bias else "llama:Llama"


def _rotary(workload: Workload, layers: int) -> dict[str, Any]:
    model = workload.model
    options: dict[str, Any] = {
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.mlp_hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.head_width,
        "attention_bias": model.qkv_bias,
        "mlp_bias": model.mlp_bias,
        "max_position_embeddings": workload.seq_len,
        "tie_word_embeddings": model.tied_embeddings,
        "use_cache": False,
        "pad_token_id": None,
        "attention_dropout": 0.0,
    }
    if model.norms_per_block == 4:
        # A window would need a mask per layer; soft caps are not in the shape.
        options |= {"layer_types": ["full_attention"] * layers, "final_logit_softcapping": None}
        options |= {"attn_logit_softcapping": None}
    if model.experts and model.qk_norm:
        options |= {"num_experts": model.experts, "moe_intermediate_size": model.expert_hidden}
        options |= {"num_experts_per_tok": model.experts_per_token, "decoder_sparse_step": 1}
        options |= {"mlp_only_layers": list(range(model.dense_layers))}
    elif model.experts:
        options |= {"num_local_experts": model.experts, "intermediate_size": model.expert_hidden}
        options |= {"num_experts_per_tok": model.experts_per_token}
    return options


def _scores_dropout(workload: Workload) -> float:
    """Dropout on the scores: in eager attention; flash kernels keep nothing for it."""
    return workload.model.dropout if workload.attention == "eager" else 0.0


def _gpt2(workload: Workload, layers: int) -> dict[str, Any]:
    model = workload.model
    drops = ("resid_pdrop", "embd_pdrop")
    return {
        "vocab_size": model.vocab,
        "n_positions": model.max_positions,
        "n_embd": model.hidden,
        "n_layer": layers,
        "n_head": model.heads,
        "n_inner": model.mlp_hidden,
        "activation_function": GELU,
        "attn_pdrop": _scores_dropout(workload),
        "use_cache": False,
        **dict.fromkeys(drops, model.dropout),
    }


def _bert(workload: Workload, layers: int) -> dict[str, Any]:
    model = workload.model
    return {
        **_encoder(workload, layers),
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_positions,
        "type_vocab_size": model.token_types,
        "use_cache": False,
    }


def _vision(workload: Workload, layers: int) -> dict[str, Any]:
    model = workload.model
    return {
        **_encoder(workload, layers),
        "image_size": model.image_size,
        "patch_size": model.patch_size,
    }


def _encoder(workload: Workload, layers: int) -> dict[str, Any]:
    """What BERT and ViT call alike."""
    model = workload.model
    return {
        "hidden_size": model.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.mlp_hidden,
        "hidden_act": "gelu",
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": _scores_dropout(workload),
    }

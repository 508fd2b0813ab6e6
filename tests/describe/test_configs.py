"""Hugging Face configs: every family against the real class, and every way a file can be wrong."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.describe import Model, catalog, configs
from workbench.errors import UsageError

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 200,
}
OLD = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 200}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FEW = {"num_local_experts": 6, "num_experts_per_tok": 2}
MLA = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "n_group": 2,
    "topk_group": 1,
}
DEBERTA_V3 = {
    "relative_attention": True,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 200}
# (model_type, keys): each is built with transformers' own class on the meta device and counted.
FAMILIES = [
    ("llama", SMALL),
    ("llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {**SMALL, "head_dim": 32}),
    ("mistral", {**SMALL, "head_dim": 24}),
    ("mixtral", {**SMALL, "num_local_experts": 4}),
    ("qwen2", {**SMALL, "tie_word_embeddings": True}),
    ("qwen2_moe", {**SMALL, **MOE, "shared_expert_intermediate_size": 80}),
    ("qwen2_moe", {**SMALL, **MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    ("qwen2_moe", {**SMALL, **MOE, "mlp_only_layers": [1, 2]}),
    ("qwen3", SMALL),
    ("qwen3_moe", {**SMALL, **MOE, "head_dim": 16}),
    ("gpt_oss", {**SMALL, "num_local_experts": 4, "attention_bias": True, "head_dim": 16}),
    ("nemotron", {**SMALL, "head_dim": 16}),
    ("gemma", SMALL),
    ("gemma2", {**SMALL, "head_dim": 32}),
    ("gemma3_text", {**SMALL, "head_dim": 32}),
    ("olmo", SMALL),
    ("olmo2", SMALL),
    ("stablelm", {**SMALL, "use_qkv_bias": True}),
    ("stablelm", {**SMALL, "use_parallel_residual": True, "qk_layernorm": True}),
    ("glm", {**SMALL, "head_dim": 16, "attention_bias": True, "pad_token_id": 0}),
    ("glm4", {**SMALL, "head_dim": 16, "attention_bias": True, "pad_token_id": 0}),
    ("deepseek_v2", {**SMALL, **MLA, "q_lora_rank": None}),
    ("deepseek_v2", {**SMALL, **MLA, "q_lora_rank": 20}),
    ("deepseek_v3", {**SMALL, **MLA, "q_lora_rank": 20}),
    ("phi3", {**SMALL, "pad_token_id": 0}),
    ("phi", {**SMALL, "num_key_value_heads": 4}),
    ("granite", SMALL),
    ("gpt2", {**GPT, "n_positions": 50}),
    ("gpt2", {**GPT, "n_positions": 50, "n_inner": 100, "tie_word_embeddings": False}),
    ("gptj", {**GPT, "rotary_dim": 8}),
    ("gpt_neox", {**SMALL, "num_key_value_heads": None}),
    ("falcon", OLD),
    ("falcon", {**OLD, "multi_query": False, "bias": True, "parallel_attn": False}),
    ("falcon", {**OLD, "new_decoder_architecture": True, "num_kv_heads": 2}),
    (
        "falcon",
        {**OLD, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    ("bloom", {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 200}),
    ("opt", {**OLD, "ffn_dim": 100, "max_position_embeddings": 50, "word_embed_proj_dim": 64}),
    ("mpt", {"d_model": 64, "n_layers": 3, "n_heads": 4, "vocab_size": 200}),
    ("bert", {**OLD, "intermediate_size": 96}),
    ("roberta", {**OLD, "intermediate_size": 96, "type_vocab_size": 1}),
    ("distilbert", {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "vocab_size": 200}),
    ("deberta-v2", {**OLD, "intermediate_size": 96, **DEBERTA_V3}),
    ("deberta-v2", {**OLD, "intermediate_size": 96, "type_vocab_size": 2}),
    ("qwen3_moe", {**SMALL, **MOE}),
    ("starcoder2", SMALL),
    ("starcoder2", {**SMALL, "use_bias": False, "tie_word_embeddings": False}),
    ("gpt_bigcode", {**GPT, "n_positions": 50}),
    ("gpt_bigcode", {**GPT, "n_positions": 50, "multi_query": False}),
    (
        "gpt_neo",
        {
            "hidden_size": 64,
            "num_layers": 4,
            "num_heads": 4,
            "vocab_size": 200,
            "attention_types": [[["global", "local"], 2]],
            "max_position_embeddings": 50,
        },
    ),
    ("cohere", SMALL),
    ("cohere", {**SMALL, "use_qk_norm": True, "attention_bias": True}),
    ("cohere2", {**SMALL, "head_dim": 32}),
    ("arcee", {**SMALL, "mlp_bias": True}),
    ("apertus", SMALL),
    ("olmo3", SMALL),
    ("olmoe", {**SMALL, "num_experts": 6, "num_experts_per_tok": 2}),
    ("flex_olmo", {**SMALL, "num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": 0}),
    ("minimax_m2", {**SMALL, **FEW, "head_dim": 16}),
    ("exaone4", SMALL),
    ("hunyuan_v1_dense", {**SMALL, "head_dim": 16, "pad_token_id": 0}),
    ("smollm3", {**SMALL, "pad_token_id": 0}),
    ("ernie4_5", {**SMALL, "head_dim": 16}),
    ("ministral3", {**SMALL, "head_dim": 24}),
    ("granitemoe", {**SMALL, **FEW, "tie_word_embeddings": True}),
    ("cwm", {**SMALL, "head_dim": 16}),
    ("nanochat", SMALL),
    ("seed_oss", {**SMALL, "attention_out_bias": True}),
    ("phimoe", {**SMALL, "num_local_experts": 4, "lm_head_bias": True, "attention_bias": True}),
    ("glm4_moe", {**SMALL, **MLA, "head_dim": 16, "use_qk_norm": True, "attention_bias": True}),
    ("llama4_text", {**SMALL, "intermediate_size_mlp": 160, "num_local_experts": 4}),
    (
        "llama4_text",
        {
            **SMALL,
            "intermediate_size_mlp": 160,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "head_dim": 24,
        },
    ),
    ("vit", {**SMALL, "image_size": 32, "patch_size": 8, "num_labels": 7}),
]


def built(model_type: str, keys: dict[str, Any]) -> tuple[Any, int]:
    """Transformers' own config and the count of its own model, without weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        model_type, **{key: value for key, value in keys.items() if value is not None}
    )
    if "q_lora_rank" in keys:
        config.q_lora_rank = keys["q_lora_rank"]
    auto = {
        "bert": transformers.AutoModelForMaskedLM,
        "roberta": transformers.AutoModelForMaskedLM,
        "distilbert": transformers.AutoModelForMaskedLM,
        "deberta-v2": transformers.AutoModelForMaskedLM,
        "modernbert": transformers.AutoModelForMaskedLM,
        "vit": transformers.AutoModelForImageClassification,
    }.get(model_type, transformers.AutoModelForCausalLM)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = auto.from_config(config)
    return config, sum(weight.numel() for weight in module.parameters())


@pytest.mark.parametrize(("model_type", "keys"), FAMILIES, ids=lambda one: str(one)[:40])
def test_counts_are_those_of_the_real_class(
    model_type: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    config, counted = built(model_type, keys)
    assert configs.read_config(config).model.parameters == counted
    config.save_pretrained(tmp_path)
    saved = configs.read_config(tmp_path).model
    assert saved.parameters == counted
    assert saved.name == tmp_path.name


# Catalog row -> the keys of its published config.json that a class needs.
def llama_keys(one: Model, **extra: Any) -> dict[str, Any]:
    return {
        "hidden_size": one.hidden,
        "num_hidden_layers": one.layers,
        "num_attention_heads": one.heads,
        "num_key_value_heads": one.key_value_heads,
        "intermediate_size": one.mlp_hidden,
        "vocab_size": one.vocab,
        "tie_word_embeddings": one.tied_embeddings,
        **({"head_dim": one.head_dim} if one.head_dim and not one.kv_lora_rank else {}),
        **extra,
    }


def mla_keys(one: Model) -> dict[str, Any]:
    return llama_keys(
        one,
        n_routed_experts=one.experts,
        num_experts_per_tok=one.experts_per_token,
        moe_intermediate_size=one.expert_hidden,
        n_shared_experts=one.shared_expert_hidden // one.expert_hidden,
        first_k_dense_replace=one.dense_layers,
        kv_lora_rank=one.kv_lora_rank,
        q_lora_rank=one.q_lora_rank or None,
        qk_rope_head_dim=one.rope_head_dim,
        qk_nope_head_dim=one.head_dim,
        v_head_dim=one.value_head_dim,
    )


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model_type", "extra"),
    [
        ("llama-3-8b", "llama", {}),
        ("mistral-nemo-12b", "mistral", {}),
        ("mixtral-8x7b", "mixtral", {"num_local_experts": 8}),
        ("qwen2.5-7b", "qwen2", {}),
        ("qwen3-30b-a3b", "qwen3_moe", {"num_experts": 128, "moe_intermediate_size": 768}),
        ("gpt-oss-20b", "gpt_oss", {"num_local_experts": 32, "attention_bias": True}),
        ("gemma-7b", "gemma", {}),
        ("gemma-2-9b", "gemma2", {}),
        ("gemma-3-4b", "gemma3_text", {}),
        ("pythia-1.4b", "gpt_neox", {}),
        ("phi-2", "phi", {}),
        ("phi-4", "phi3", {"pad_token_id": 0}),
        ("falcon-7b", "falcon", {}),
        ("bloom-7b1", "bloom", {}),
        ("opt-6.7b", "opt", {"ffn_dim": 16384, "word_embed_proj_dim": 4096}),
        ("olmo-2-7b", "olmo2", {}),
        ("deepseek-v2-lite", "deepseek_v2", None),
        ("deepseek-v3", "deepseek_v3", None),
        ("bert-large-uncased", "bert", {}),
        ("roberta-large", "roberta", {"max_position_embeddings": 514, "type_vocab_size": 1}),
        ("vit-l-16", "vit", {"num_labels": 1000}),
        ("gpt2-xl", "gpt2", {}),
    ],
)
def test_the_catalog_agrees_with_the_real_classes(
    name: str, model_type: str, extra: dict[str, Any] | None
) -> None:
    one = catalog.model(name)
    keys = mla_keys(one) if extra is None else llama_keys(one, **extra)
    if model_type == "gpt2":
        keys = {"n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257}
    if model_type == "bloom":
        keys = {"hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880}
    config, counted = built(model_type, keys)
    assert one.parameters == counted
    assert configs.read_config(config).model.parameters == counted


def test_a_multimodal_config_gives_its_text_part_and_says_so() -> None:
    terse = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    whole = {"model_type": "gemma3", "text_config": terse, "vision_config": {"hidden_size": 1152}}
    with pytest.warns(UserWarning, match=r"multimodal|took"):
        assert Model.from_config(whole).parameters == catalog.model("gemma-3-4b").parameters
    notes = configs.read_config(whole).notes
    assert "only text_config is described" in notes[0]
    assert any("took 262208" in note for note in notes)
    with pytest.raises(UsageError, match="text_config in the config must be an object"):
        Model.from_config({"model_type": "llava", "text_config": 3})


def test_a_flat_multimodal_config_says_that_its_tower_is_left_out() -> None:
    read = configs.read_config({**SMALL, "model_type": "qwen2_vl", "vision_config": {"depth": 32}})
    same = configs.read_config({**SMALL, "model_type": "qwen2"})
    assert read.model.parameters == same.model.parameters
    assert "multimodal" in read.notes[0]


@pytest.mark.parametrize(
    ("model_type", "keys", "allowed"),
    [
        ("modernbert", {**SMALL, "pad_token_id": 0, "classifier_bias": True}, 0.001),
        ("qwen3_next", {}, 0.006),
        ("qwen3_5_text", {}, 0.025),
        ("qwen3_5_moe_text", {}, 0.006),
    ],
)
def test_counts_are_close_where_blocks_differ(
    model_type: str, keys: dict[str, Any], allowed: float
) -> None:
    config, counted = built(model_type, keys)
    assert configs.read_config(config).model.parameters == pytest.approx(counted, rel=allowed)


def test_a_head_that_the_whole_ties_is_tied() -> None:
    text = {**SMALL, "model_type": "qwen3"}
    whole = {"model_type": "some_vl", "text_config": text, "vision_config": {}}
    for tied in (True, False):
        read = configs.read_config({**whole, "tie_word_embeddings": tied}).model
        assert read.tied_embeddings is tied
    own = {**whole, "text_config": {**text, "tie_word_embeddings": True}}
    assert configs.read_config({**own, "tie_word_embeddings": False}).model.tied_embeddings


def test_the_language_part_is_found_where_the_whole_repeats_its_width() -> None:
    text = {**SMALL, "model_type": "llama"}
    same = configs.read_config(text).model.parameters
    voxtral = {"model_type": "voxtral", "hidden_size": 64, "vocab_size": 200, "text_config": text}
    omni = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": text}}
    for whole in (voxtral, omni):
        read = configs.read_config(whole)
        assert read.model.parameters == same
        assert read.notes[0].endswith("only text_config is described, no image or audio tower.")


def test_an_unknown_type_with_compressed_attention_is_read_as_deepseek() -> None:
    keys = {**SMALL, **MLA, "q_lora_rank": 20}
    read = configs.read_config({**keys, "model_type": "deepseek_v32"})
    same = configs.read_config({**keys, "model_type": "deepseek_v3"}).model
    assert read.model == replace(same, name=read.model.name)
    assert "read as DeepSeek's compressed attention (MLA)" in read.notes[0]


def test_deepseek_without_compressed_attention_has_plain_heads() -> None:
    keys = {**SMALL, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    plain = {**keys, "model_type": "deepseek_v2", "use_mla": False, "kv_lora_rank": None}
    same = configs.read_config({**keys, "model_type": "deepseek"}).model
    assert configs.read_config(plain).model == replace(same, name="deepseek_v2")


def test_encoders_are_never_read_as_decoders() -> None:
    bert = {**OLD, "intermediate_size": 96, "max_position_embeddings": 50, "type_vocab_size": 2}
    electra = configs.read_config({**bert, "model_type": "electra", "embedding_size": 64})
    same = configs.read_config({**bert, "model_type": "bert"})
    assert electra.model.parameters == same.model.parameters
    assert (electra.model.kind, electra.model.tied_embeddings) == ("encoder", True)
    assert "read as BERT" in electra.notes[0]
    for other in ({"num_hidden_groups": 1}, {"embedding_size": 32}):
        with pytest.raises(UsageError, match=r"share weights or .*Use Model\.from_module"):
            configs.read_config({**bert, **other, "model_type": "albert"})
    masked = {**SMALL, "model_type": "eurobert", "architectures": ["EuroBertForMaskedLM"]}
    assert configs.read_config(masked).model.kind == "encoder"


def test_bert_as_a_language_model_keeps_its_head() -> None:
    bert = {**OLD, "model_type": "bert", "intermediate_size": 96, "max_position_embeddings": 50}
    masked = configs.read_config({**bert, "architectures": ["BertForMaskedLM"]}).model
    causal = configs.read_config({**bert, "architectures": ["BertLMHeadModel"]}).model
    assert causal.parameters == masked.parameters


def test_unknown_types_with_llama_keys_are_read_as_llama_with_a_note() -> None:
    read = configs.read_config({**SMALL, "model_type": "brandnew", "_name_or_path": "a/new-1b"})
    same = configs.read_config({**SMALL, "model_type": "llama"})
    assert read.model.parameters == same.model.parameters
    assert read.model.name == "new-1b"
    assert "'brandnew' is not a known model_type; read as Llama" in read.notes[0]
    assert same.notes == ()
    assert "there is no model_type" in configs.read_config(SMALL).notes[0]


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("jamba", {"mamba_d_state": 16, "attn_layer_period": 8, "num_experts": 16}),
        ("zamba2", {"mamba_expand": 2}),
        ("lfm2", {"conv_L_cache": 3}),
        ("recurrent_gemma", {"lru_width": 64}),
        ("ernie4_5_moe", {"moe_num_experts": 64, "moe_k": 6}),
    ],
)
def test_unknown_types_with_other_blocks_are_not_read_as_llama(
    model_type: str, keys: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"has other blocks than .* Use Model\.from_module"):
        configs.read_config({**SMALL, **keys, "model_type": model_type})


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({}, "no num_hidden_layers, hidden_size, num_attention_heads"),
        ({"model_type": "mamba", "hidden_size": 64}, r"model_type 'mamba' and no num_hidden_layers"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "llama"}, r"has no num_hidden_layers .*a llama config needs: a whole"),
        ({**SMALL, "model_type": "llama", "hidden_size": "64"}, "whole number, not '64'"),
        ({**SMALL, "model_type": "llama", "hidden_size": 64.0}, "whole number, not 64.0"),
        ({**SMALL, "model_type": "llama", "hidden_size": True}, "whole number, not True"),
        ({**SMALL, "model_type": "llama", "hidden_size": 0}, "hidden_size .*between 1 and"),
        ({**SMALL, "model_type": "llama", "vocab_size": -1}, "vocab_size .*not -1"),
        ({**SMALL, "model_type": "llama", "num_hidden_layers": 10**12}, "between 1 and"),
        ({**SMALL, "model_type": "llama", "num_hidden_layers": 10**9, "hidden_size": 10**6}, "can be estimated"),
        ({**SMALL, "model_type": "llama", "num_key_value_heads": 3}, "cannot share 3"),
        ({**SMALL, "model_type": "llama", "hidden_size": 65}, "not divisible by 4 heads"),
        ({**SMALL, "model_type": "llama", "tie_word_embeddings": "yes"}, "true or false"),
        ({**SMALL, "model_type": 7}, "model_type in the config must be a word"),
        ({**SMALL, "model_type": "mixtral", "num_local_experts": 4}, "no num_experts_per_tok"),
        ({**SMALL, "model_type": "qwen3_moe", **MOE, "mlp_only_layers": 3}, "must be a list"),
        ({**GPT, "model_type": "gpt2", "n_positions": 8, "resid_pdrop": 1.5}, "from 0 to below 1"),
        ({**OLD, "model_type": "opt", "ffn_dim": 8, "word_embed_proj_dim": 32}, "OPT-350M"),
        ({**SMALL, "model_type": "vit", "num_channels": 1}, "3 channels"),
        (7, "must be a path, a dict or an object"),
        (None, "must be a path"),
        ("meta-llama/Llama-3-8B", r"Model.catalog\('Llama-3-8B'\)"),
        ({**SMALL, "model_type": "gpt_oss"}, "no num_local_experts"),
    ],
)  # fmt: skip
def test_wrong_configs_say_what_is_wrong(config: object, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Model.from_config(config)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"[1]", "must hold an object"),
        (b'{"_class_name": "UNet2DConditionModel"}', "a diffusers model. Use Model.from_module"),
        (b'{"model_type": "llama"}', r"config.json has no num_hidden_layers"),
    ],
)
def test_wrong_files_say_what_is_wrong(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    for path in (tmp_path, str(tmp_path / "config.json")):
        with pytest.raises(UsageError, match=sentence):
            Model.from_config(path)


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json in"):
        Model.from_config(tmp_path)
    with pytest.raises(UsageError, match="no file or directory"):
        Model.from_config(tmp_path / "nothing")
    folder = tmp_path / "my-model"
    folder.mkdir()
    text = json.dumps({**SMALL, "model_type": "llama"})
    (folder / "config.json").write_text("\ufeff" + text, encoding="utf-8")
    assert Model.from_config(folder).name == "my-model"
    assert Model.from_config(folder / "config.json") == Model.from_config(str(folder))


def test_old_remote_code_families() -> None:
    chatglm = {
        "model_type": "chatglm",
        "num_layers": 28,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "kv_channels": 128,
        "ffn_hidden_size": 13696,
        "padded_vocab_size": 65024,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "add_qkv_bias": True,
        "add_bias_linear": False,
        "rmsnorm": True,
    }
    assert Model.from_config(chatglm).parameters == 6243584000
    internlm = {**llama_keys(catalog.model("internlm-7b")), "model_type": "internlm", "bias": True}
    assert Model.from_config(internlm).parameters == catalog.model("internlm-7b").parameters
    pretraining = {**OLD, "intermediate_size": 96, "max_position_embeddings": 50}
    bert = {**pretraining, "model_type": "bert", "architectures": ["BertForPreTraining"]}
    bare = {**bert, "architectures": ["BertModel"]}
    assert Model.from_config(bert).parameters > Model.from_config(bare).parameters
    assert "counted with" in configs.read_config({**bert, "architectures": ["BertFor"]}).notes[0]


def test_a_missing_config_names_the_catalog_only_where_it_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^'\.' cannot be read: no config\.json in that folder\."):
        wb.Job.of(".")
    with pytest.raises(UsageError, match=r"the folder that holds one\.$"):
        wb.Job.of("./my-model")
    with pytest.raises(UsageError, match=r"found by its name alone: gpt2"):
        wb.Job.of("./gpt2")


def test_a_folder_of_a_models_name_hides_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2").mkdir()
    Path("mine").mkdir()
    assert wb.Job.of("gpt2").workload.model.name == "GPT-2 small"
    with pytest.raises(UsageError, match=r"'mine' cannot be read: no config\.json"):
        wb.Job.of("mine")


@pytest.mark.parametrize(
    ("model_type", "keys", "longest"),
    [
        ("bert", {**OLD, "intermediate_size": 96, "max_position_embeddings": 50}, 50),
        ("roberta", {**OLD, "intermediate_size": 96, "max_position_embeddings": 52}, 50),
        (
            "camembert",
            {**OLD, "intermediate_size": 96, "max_position_embeddings": 52, "pad_token_id": 3},
            48,
        ),
        ("opt", {**OLD, "ffn_dim": 100, "max_position_embeddings": 50}, 50),
    ],
)
def test_rows_that_no_token_takes_are_no_positions(
    model_type: str, keys: dict[str, Any], longest: int
) -> None:
    """The longest sequence is the one that the real class still takes."""
    model = Model.from_config({"model_type": model_type, "word_embed_proj_dim": 64, **keys})
    assert model.longest_sequence == longest
    with pytest.raises(UsageError, match=f"has {longest} positions"):
        model.check_sequence(longest + 1)
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model(model_type, **keys, word_embed_proj_dim=64)
    module = transformers.AutoModel.from_config(config)
    module(torch.full((1, longest), 9))
    with pytest.raises((IndexError, RuntimeError)):
        module(torch.full((1, longest + 1), 9))


def test_published_encoders_and_opt_take_as_long_sequences_as_they_say() -> None:
    lengths = {name: Model.catalog(name).longest_sequence for name in ("roberta-base", "opt-13b")}
    assert lengths == {"roberta-base": 512, "opt-13b": 2048}

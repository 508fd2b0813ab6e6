"""What transformers saved is exported by its names and types; weights that are one stay one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.trained_model.test_adapters import LLAMA, SMALL, VIT, trained
from workbench.errors import UsageError
from workbench.trained_model.worker.exporting import export
from workbench.trained_model.worker.huggingface import load_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`"),  # peft
    pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`"),
]
MIXTRAL = transformers.MixtralConfig(
    **SMALL, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=1
)
RESNET = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])
MODELS: dict[str, Any] = {
    "experts": lambda: transformers.MixtralForCausalLM(MIXTRAL),
    "pictures": lambda: transformers.ViTForImageClassification(VIT),
    "counts": lambda: transformers.ResNetForImageClassification(RESNET),
}
IDS = torch.arange(16)[None]


def request_of(folder: Path, checkpoint: Path) -> dict[str, Any]:
    (folder / "out").mkdir()
    place = str(checkpoint)
    about = {"run": "r", "family": "huggingface", "arguments": [], "adapter": False, "base": None}
    how = {"partial": str(folder / "out"), "adapter_only": False, "dtype": None}
    return {**about, **how, "checkpoint": place, "config": place, "shard_bytes": 1 << 30}


@pytest.mark.parametrize("case", MODELS)
def test_a_folder_of_transformers_is_exported_as_it_is(case: str, tmp_path: Path) -> None:
    model, told = MODELS[case]().eval(), list[dict[str, Any]]()
    model.save_pretrained(tmp_path / "saved")
    request = request_of(tmp_path, tmp_path / "saved")
    export(request, told.append)
    assert told[-1]["facts"]["loads"]
    saved, written = (load_file(tmp_path / name / "model.safetensors") for name in ("saved", "out"))
    assert saved.keys() == written.keys()
    assert all(torch.equal(written[name], weight) for name, weight in saved.items())
    loaded = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.float32
    answering, own = load_model(request).state_dict(), model.state_dict()
    assert all(torch.equal(answering[name], weight) for name, weight in own.items())


def test_merged_experts_have_the_names_of_the_base_s_files(tmp_path: Path) -> None:
    model = MODELS["experts"]()
    lora = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"]}
    export(trained(tmp_path, model, type(model), lora), lambda _: None)
    base, written = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "out"))
    assert base.keys() == written.keys()


@pytest.mark.parametrize("saved", [["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]])
def test_a_tied_weight_that_an_adapter_trained_alone_is_written(
    saved: list[str], tmp_path: Path
) -> None:
    config = transformers.LlamaConfig(**{**LLAMA.to_dict(), "tie_word_embeddings": True})
    model, told = transformers.LlamaForCausalLM(config), list[dict[str, Any]]()
    lora = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"], "modules_to_save": saved}
    export(trained(tmp_path, model, type(model), lora), told.append)
    assert told[-1]["facts"]["loads"]
    merged = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert not merged.config.tie_word_embeddings
    trained_head = load_file(tmp_path / "adapter/adapter_model.safetensors")
    for name, of in (("lm_head", merged.lm_head), ("embed_tokens", merged.model.embed_tokens)):
        kept = [key for key in trained_head if name in key]
        assert all(torch.equal(trained_head[key], of.weight) for key in kept)
        assert bool(kept) == (name in saved)


def test_a_trained_embedding_is_merged(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**{**LLAMA.to_dict(), "tie_word_embeddings": False})
    model, told = transformers.LlamaForCausalLM(config), list[dict[str, Any]]()
    lora = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "embed_tokens"]}
    export(trained(tmp_path, model, type(model), lora), told.append)
    assert told[-1]["facts"]["logits_difference"] <= 1e-5


def test_tied_weights_that_differ_are_refused(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**{**LLAMA.to_dict(), "tie_word_embeddings": True})
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "saved")
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    file, request = tmp_path / "saved/model.safetensors", request_of(tmp_path, tmp_path / "saved")
    save_file(weights, file)
    export(request, lambda _: None)
    weights["lm_head.weight"] += 1
    save_file(weights, file)
    with pytest.raises(UsageError, match=r'parted them\. Set "tie_word_embeddings" to false'):
        export(request, lambda _: None)

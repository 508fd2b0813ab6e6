"""An adapter is merged into the class it was trained on, and its head is in what is written."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from workbench.errors import UsageError
from workbench.trained_model.worker import answering
from workbench.trained_model.worker.exporting import export

peft: Any = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft
]
SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
BERT = transformers.BertConfig(**SMALL, max_position_embeddings=64)
LLAMA = transformers.LlamaConfig(**SMALL, pad_token_id=None)
T5 = transformers.T5Config(vocab_size=300, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
VIT = transformers.ViTConfig(
    **{name: size for name, size in SMALL.items() if name != "vocab_size"},
    image_size=32,
    patch_size=16,
)
CASES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "text classes": (
        transformers.BertModel(BERT),
        transformers.BertForSequenceClassification,
        {"task_type": "SEQ_CLS", "target_modules": ["query", "value"]},
        "classifier.weight",
    ),
    "token classes": (
        transformers.BertForMaskedLM(BERT),
        transformers.BertForTokenClassification,
        {"task_type": "TOKEN_CLS", "target_modules": ["query", "value"]},
        "classifier.weight",
    ),
    "reward": (
        transformers.LlamaForCausalLM(LLAMA),
        transformers.LlamaForSequenceClassification,
        {"task_type": "SEQ_CLS", "target_modules": ["q_proj", "v_proj"]},
        "score.weight",
    ),
    "picture classes": (
        transformers.ViTModel(VIT, add_pooling_layer=False),
        transformers.ViTForImageClassification,
        {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["classifier"]},  # no task
        "classifier.weight",
    ),
    "text to text": (
        transformers.T5ForConditionalGeneration(T5),
        transformers.T5ForConditionalGeneration,
        {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q", "v"]},
        "",
    ),
}


def trained(folder: Path, base: Any, kind: Any, lora: dict[str, Any]) -> dict[str, Any]:
    """An adapter with random weights beside its base, as a request to export it."""
    base.save_pretrained(folder / "base")
    classes = {} if kind is type(base) else {"num_labels": 3}
    model = peft.get_peft_model(
        kind.from_pretrained(folder / "base", **classes), peft.LoraConfig(r=4, **lora)
    )
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder / "adapter")
    (folder / "out").mkdir()
    return {
        "run": "r",
        "family": "huggingface",
        "arguments": [],
        "adapter": True,
        "checkpoint": str(folder / "adapter"),
        "config": str(folder / "adapter"),
        "base": str(folder / "base"),
        "partial": str(folder / "out"),
        "adapter_only": False,
        "dtype": None,
        "shard_bytes": 1 << 30,
    }


@pytest.mark.parametrize("case", CASES)
def test_it_is_merged_with_its_head(case: str, tmp_path: Path) -> None:
    base, kind, lora, head = CASES[case]
    request, told = trained(tmp_path, base, kind, lora), list[dict[str, Any]]()
    export(request, told.append)
    facts = told[-1]["facts"]
    assert facts["architecture"] == kind.__name__
    assert facts["loads"]
    assert facts["logits_difference"] <= 1e-5
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == [
        kind.__name__
    ]
    if head:
        own = load_file(tmp_path / "adapter/adapter_model.safetensors")[f"base_model.model.{head}"]
        assert torch.equal(load_file(tmp_path / "out/model.safetensors")[head], own)
        assert "its 3 classes: they have numbers" in told[-1]["notes"][0]


def test_what_was_drawn_at_random_and_not_saved_is_refused(tmp_path: Path) -> None:
    _, kind, lora, _ = CASES["text classes"]
    request = trained(tmp_path, transformers.BertForMaskedLM(BERT), kind, lora)  # without a pooler
    with pytest.raises(UsageError, match=r"Neither base nor the adapter holds bert\.pooler"):
        export(request, lambda _: None)


def test_a_weight_without_a_place_is_refused(tmp_path: Path) -> None:
    base, kind, lora, _ = CASES["reward"]
    request = trained(tmp_path, base, kind, lora)
    path = tmp_path / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"task_type": "CAUSAL_LM"}))
    with pytest.raises(
        UsageError, match=r"weight .*score\.weight has no place in a Llama.* of base"
    ):
        export(request, lambda _: None)


def test_a_model_from_text_to_text_does_not_answer(tmp_path: Path) -> None:
    base, kind, lora, _ = CASES["text to text"]
    model = trained(tmp_path, base, kind, lora)
    asked = {"model": model, "prompt": "x", "sides": ["trained"]}
    with pytest.raises(UsageError, match="T5ForConditionalGeneration, which is not a language"):
        answering.answer(asked, threading.Event(), lambda _: None)

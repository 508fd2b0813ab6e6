"""Adapters that finetune.py is to train further, and that are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training_data.tiny import model_folder
from workbench.errors import UsageError

pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft


def adapter(folder: Path, base: Path) -> Path:
    """As `finetune` leaves one."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")
    get_peft_model(model, config).save_pretrained(folder)
    return folder


def damaged(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def task_of(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"task_type": name}))

    return write


CASES: dict[str, tuple[dict[str, Any], Callable[[Path], None] | None, str]] = {
    "narrower base": ({"hidden": 32}, None, "inputs, the adapter is for "),
    "deeper base": ({"layers": 3}, None, "the model has no model.layers.2"),
    "shallower base": ({"layers": 1}, None, "it has nothing for model.layers.1"),
    "other task": ({}, task_of("SEQ_CLS"), "its task is SEQ_CLS, and this trains text"),
    "no config": ({}, lambda folder: (folder / "adapter_config.json").unlink(), "no readable"),
    "broken config": ({}, damaged("adapter_config.json", b"{"), "no readable adapter_config"),
    "cut weights": ({}, damaged("adapter_model.safetensors", b"\x40\0"), "cannot be read"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_adapter_of_another_base_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    from finetune_adapter import with_adapter
    from transformers import AutoModelForCausalLM

    base, change, sentence = CASES[case]
    folder = adapter(tmp_path / "adapter", model_folder(tmp_path / "theirs", **base))
    if change:
        change(folder)
    kept = sorted(path.name for path in folder.iterdir())
    model = AutoModelForCausalLM.from_pretrained(model_folder(tmp_path / "ours"))
    with pytest.raises(UsageError) as error:
        with_adapter(model, str(folder), "ours")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in folder.iterdir()) == kept


@pytest.mark.slow
def test_its_own_adapter_is_taken_up(tmp_path: Path) -> None:
    from finetune_adapter import with_adapter
    from transformers import AutoModelForCausalLM

    ours = model_folder(tmp_path / "ours")
    folder = adapter(tmp_path / "adapter", ours)
    model = with_adapter(AutoModelForCausalLM.from_pretrained(ours), str(folder), str(ours))
    assert any(one.requires_grad for one in model.parameters())
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4

"""Where an answer ends, and how it is drawn, is in what is exported, and counts where it is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.test_finetune_adapter import adapter
from tests.training_data.tiny import model_folder, tokenizer_folder
from workbench.trained_model.worker import answering
from workbench.trained_model.worker.exporting import export

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft
]
FOLDER = "additional_chat_templates"


def exported(tmp_path: Path, checkpoint: Path, base: Path | None) -> dict[str, Any]:
    """The generation config of the folder that is written."""
    (tmp_path / "out").mkdir()
    request = {
        **request_of(checkpoint, base),
        "partial": str(tmp_path / "out"),
        "adapter_only": False,
        "dtype": None,
        "shard_bytes": 1 << 30,
    }
    export(request, lambda _: None)
    return json.loads((tmp_path / "out/generation_config.json").read_text())


def request_of(checkpoint: Path, base: Path | None) -> dict[str, Any]:
    place = str(checkpoint)
    about = {"run": "r", "family": "huggingface", "arguments": [], "adapter": base is not None}
    return {**about, "checkpoint": place, "config": place, "base": str(base) if base else None}


def told(folder: Path, **values: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


def test_a_whole_model_s_own_is_kept_with_its_processor(tmp_path: Path) -> None:
    own = told(model_folder(tmp_path / "own"), eos_token_id=[256, 258], temperature=0.6)
    (own / "preprocessor_config.json").write_text("{}")
    (own / FOLDER).mkdir()
    (own / FOLDER / "tool_use.jinja").write_text("x")
    found = exported(tmp_path, own, None)
    assert (found["eos_token_id"], found["temperature"]) == ([256, 258], 0.6)
    assert (tmp_path / "out/preprocessor_config.json").is_file()
    assert (tmp_path / "out" / FOLDER / "tool_use.jinja").is_file()
    model = answering._Transformer(request_of(told(own, eos_token_id=[256, 257]), None))
    assert model._ends() == {256, 257, 258}  # 258: the tokenizer's


def test_a_merged_one_is_the_base_s_and_ends_where_the_adapter_s_tokenizer_does(
    tmp_path: Path,
) -> None:
    base = told(model_folder(tmp_path / "base"), eos_token_id=256, top_k=7, do_sample=True)
    own = tokenizer_folder(adapter(tmp_path / "adapter", base), eos="<|im_end|>")
    (own / "config.json").unlink()
    found = exported(tmp_path, own, base)
    assert (found["eos_token_id"], found["top_k"]) == ([258, 256], 7)

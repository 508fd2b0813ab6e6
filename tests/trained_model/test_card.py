"""The card says how to load what was trained: with the class that has its head."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.recover.saved import run_of_script, saved
from workbench.recover.script_checkpoints import named_checkpoint
from workbench.store.layout import RunPaths
from workbench.trained_model.card import card
from workbench.trained_model.exported import ExportedModel
from workbench.trained_model.source import TrainedModel

EXPORTED = ExportedModel(
    run="r",
    checkpoint="ckpt.pt",
    step=3,
    path=Path("r-step-3"),
    family="huggingface",
    architecture="BertForSequenceClassification",
    parameters=1,
    tensors=1,
    bytes=4,
    dtype="float32",
    fingerprint="0",
    merged=False,
    logits_difference=None,
    loads=True,
    notes=(),
)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return run_of_script(tmp_path, "r", [], (0, 100), name="r")


def code(run: RunPaths, exported: ExportedModel, config: Path | None, *, adapter: bool) -> str:
    """What stands under "Load it"; it can be compiled."""
    checkpoint = named_checkpoint(saved(run.checkpoints / "ckpt.pt", 3, 5))
    model = TrainedModel(
        run="r", checkpoint=checkpoint, family="huggingface", config=config, adapter=adapter
    )
    text = card(run, model, exported).partition("```python\n")[2].partition("```")[0]
    ast.parse(text)
    return text


def test_a_whole_model_is_loaded_with_its_own_class(run: RunPaths) -> None:
    text = code(run, EXPORTED, run.checkpoints, adapter=False)
    assert "from transformers import AutoTokenizer, BertForSequenceClassification\n" in text
    assert "BertForSequenceClassification.from_pretrained" in text
    assert "CausalLM" not in text


@pytest.mark.parametrize(
    ("task", "kind"),
    [("SEQ_CLS", "AutoModelForSequenceClassification"), ("CAUSAL_LM", "AutoModelForCausalLM")],
)
def test_an_adapter_is_put_on_a_base_of_its_task(run: RunPaths, task: str, kind: str) -> None:
    about = json.dumps({"task_type": task})
    (run.checkpoints / "adapter_config.json").write_text(about)
    alone = replace(EXPORTED, architecture=None)
    assert f"base = {kind}.from_pretrained" in code(run, alone, run.checkpoints, adapter=True)
    mapping = json.dumps({"auto_mapping": {"base_model_class": "ViTForImageClassification"}})
    (run.checkpoints / "adapter_config.json").write_text(mapping)
    assert "import ViTForImageClassification" in code(run, alone, run.checkpoints, adapter=True)
    assert "AutoModel.from" in code(run, alone, run.metrics, adapter=True)  # no task is known
    assert "AutoModelForCausalLM" in code(run, alone, None, adapter=True)  # of the recipe

"""Which class of transformers an adapter was trained on, by what PEFT writes beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

_OF_TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "FEATURE_EXTRACTION": "AutoModel",
}


def adapter_class(about: Mapping[str, Any]) -> str | None:
    """Name of the class, from the content of adapter_config.json; None = it does not say.

    >>> adapter_class({"task_type": "SEQ_CLS"})
    'AutoModelForSequenceClassification'
    >>> adapter_class({"auto_mapping": {"base_model_class": "ViTForImageClassification"}})
    'ViTForImageClassification'
    """
    mapping = about.get("auto_mapping")  # written where no task was given
    if isinstance(mapping, dict) and "base_model_class" in mapping:
        return str(cast("dict[str, Any]", mapping)["base_model_class"])
    return _OF_TASKS.get(str(about.get("task_type")))

"""What finetune.py tells while it trains: answers to fixed prompts, and the perplexity."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false, reportIncompatibleMethodOverride=false

import argparse
import functools
import math
from typing import Any

import torch
from finetune_data import say
from finetune_tokenizer import asked_tokens
from samples import Samples
from torch import Tensor
from transformers import TrainerCallback

from workbench.training_data import Encoder, form_of_source, locate

_LARGEST = 700.0  # exp of more is infinite


class Watch(TrainerCallback):
    """Asks the model at the chosen steps; every process at the same ones."""

    def __init__(self, options: argparse.Namespace, trainer: Any) -> None:
        self._trainer = trainer
        self._is_likelihood = options.objective == "sft"  # a loss of preferences has no perplexity
        tokenizer = trainer.processing_class
        form, _ = form_of_source(locate(options.data))
        encoder = Encoder(tokenizer, form, options.template)

        def decode(tokens: list[int]) -> str:
            """Up to the end mark."""
            ends = [at for at, token in enumerate(tokens) if token == tokenizer.eos_token_id]
            return tokenizer.decode(tokens[: ends[0] if ends else None], skip_special_tokens=True)

        encode = functools.partial(asked_tokens, encoder)
        self._samples = Samples(options, encode, decode, say)

    def _forward(self, rows: Tensor) -> Tensor:
        """Logits [B, L, V], through whatever spreads the model."""
        model = self._trainer.model_wrapped
        return model(input_ids=rows, attention_mask=torch.ones_like(rows), use_cache=False).logits

    def _take(self, state: Any) -> None:
        if self._samples.due(state.global_step):
            self._samples.take(state.global_step, self._trainer.model_wrapped, self._forward)

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Before the first step."""
        if state.global_step == 0:
            self._take(state)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """After each optimizer step."""
        self._take(state)

    def on_log(
        self, _args: Any, _state: Any, _control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """The perplexity beside the loss on held-out examples."""
        if logs is None or not self._is_likelihood:
            return
        loss = logs.get("eval_loss")
        if isinstance(loss, float) and loss < _LARGEST:
            logs["eval_perplexity"] = math.exp(loss)

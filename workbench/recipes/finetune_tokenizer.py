"""The tokenizer of finetune.py beside this file, as it is saved with what was trained.

In it are the chat template of the training and the token that ends an answer: what asks the model
later uses both.
"""

# pyright: reportMissingImports=false

import argparse
import contextlib
from typing import Any

from finetune_data import say

from workbench.errors import UsageError
from workbench.training_data import Encoder, RowError, form_of_source, load_tokenizer, locate
from workbench.training_data.templates import template_of

_ANSWER = "ANSWER"


def tokenizer_of(options: argparse.Namespace) -> Any:
    """The model's, with a padding token, the template of the training and its end mark.

    transformers' Trainer takes the end mark into the model's generation config.

    Raises:
        UsageError: the model has none, or the examples need a template and none is named.
    """
    tokenizer = load_tokenizer(options.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    form, _ = form_of_source(locate(options.data))
    if form == "text":  # no turns: it is learned with the model's own end mark
        return tokenizer
    template, _ = template_of(tokenizer, options.template, form)
    if options.template or not tokenizer.chat_template:
        tokenizer.chat_template = template
    mark = _end_mark(tokenizer, template)
    prefixes = [token for token in _single_tokens(tokenizer) if mark.startswith(token)]
    if prefixes:
        tokenizer.eos_token = max(prefixes, key=len)
    elif mark:
        say(
            f"The template ends an answer with {mark!r}, which is not one token of this model: "
            "give it as a stop text where the model is asked"
        )
    return tokenizer


def _end_mark(tokenizer: Any, template: str) -> str:
    """What the template writes behind an answer; "" = nothing, or it takes no such question."""
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _ANSWER}]
    for system in ([], [{"role": "system", "content": "x"}]):  # some templates want one
        # Whatever a template raises: its rows are reported one by one.
        with contextlib.suppress(Exception):
            text = tokenizer.apply_chat_template(
                [*system, *turns], chat_template=template, tokenize=False
            )
            return str(text).rpartition(_ANSWER)[2].strip()
    return ""


def asked_tokens(encoder: Encoder, prompt: str) -> list[int]:
    """A sample prompt as the model sees it.

    Raises:
        UsageError: the template refuses it, as one does that wants a system turn.
    """
    try:
        return encoder.prompt(prompt)
    except RowError as error:
        raise UsageError(f"--sample-prompts {prompt!r}: {error}") from error


def _single_tokens(tokenizer: Any) -> set[str]:
    """Texts that the tokenizer never divides."""
    return {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}

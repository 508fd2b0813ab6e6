"""Chat templates that can be named for a tokenizer that has none, or another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.errors import UnknownNameError, UsageError

_START = "{{ bos_token or '' }}{% for message in messages %}"
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA_3 = (
    f"{_START}<|start_header_id|>{{{{ message['role'] }}}}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_ZEPHYR = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}"
    "{{ eos_token or '' }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_ALPACA = (
    f"{_START}{{% if message['role'] == 'user' %}}"
    "### Instruction:\n{{ message['content'] }}\n\n"
    "{% elif message['role'] == 'assistant' %}### Response:\n{{ message['content'] }}"
    "{{ eos_token or '' }}\n\n{% else %}{{ message['content'] }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Response:\n{% endif %}"
)
_PLAIN = (
    f"{_START}{{{{ message['content'] }}}}"
    "{% if message['role'] == 'assistant' %}{{ eos_token or '' }}{% endif %}{% endfor %}"
)
TEMPLATES: Mapping[str, str] = {
    "chatml": _CHATML,
    "llama-3": _LLAMA_3,
    "zephyr": _ZEPHYR,
    "alpaca": _ALPACA,
    "plain": _PLAIN,
}
"""Name -> Jinja text. plain: contents one after the other, the end mark after an answer."""
_WITHOUT_ANY = {"alpaca": "alpaca", "prompt-completion": "plain"}


def template_of(tokenizer: Any, name: str | None, form: str) -> tuple[str, str]:
    """The template's text, and in words which one it is.

    Raises:
        UnknownNameError: no template of that name.
        UsageError: the tokenizer has none, and the form needs one.
    """
    if name is not None:
        if name not in TEMPLATES:
            raise UnknownNameError.near("template", name, TEMPLATES)
        return TEMPLATES[name], name
    own = tokenizer.chat_template
    if isinstance(own, dict):  # several, of which one is the usual
        own = own.get("default")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if isinstance(own, str) and own.strip():
        return own, "the tokenizer's own"
    if form in _WITHOUT_ANY:
        instead = _WITHOUT_ANY[form]
        return TEMPLATES[instead], f"{instead} (the tokenizer has none)"
    raise UsageError(
        f"The tokenizer has no chat template, and rows of the form {form} need one. Name one: "
        f"--template {' | '.join(TEMPLATES)}. chatml is the most common."
    )

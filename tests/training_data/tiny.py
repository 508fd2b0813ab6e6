"""A small Llama and a byte-level tokenizer, made on the spot: what a user's model folder is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (  # with marks of what is generated
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ message['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (  # as Mistral's: refuses two turns of one role in a row, and a system turn
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('no system turn here') }}{% endif %}"
    "[{{ message['role'] }}] {{ message['content'] | trim }}{{ eos_token }}{% endfor %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")


def tokenizer_folder(
    folder: Path,
    *,
    template: str | None = CHATML,
    pad: str | None = "<|pad|>",
    eos: str | None = "<|im_end|>",
) -> Path:
    """Write a byte-level tokenizer of 260 tokens, without torch."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={one: at for at, one in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    made.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "extra_special_tokens": list(SPECIAL[1:3]),
        "model_max_length": 4096,
    }
    config |= {"pad_token": pad} if pad else {}
    config |= {"eos_token": eos} if eos else {}
    config |= {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 260}))
    return folder


def model_folder(folder: Path, *, layers: int = 2, hidden: int = 64, **tokenizer: Any) -> Path:
    """A folder as save_pretrained leaves one: config, random weights, tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=258,
        pad_token_id=259,
        bos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return tokenizer_folder(folder, **tokenizer)


def chat(number: int) -> dict[str, Any]:
    """A question with its answer, different for each number."""
    return {
        "messages": [
            {"role": "user", "content": f"What follows {number}?"},
            {"role": "assistant", "content": f"{number + 1} follows {number}."},
        ]
    }


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    """A message that calls one tool."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def write_lines(path: Path, rows: list[Any]) -> Path:
    """JSONL; a text stands as it is."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + "\n")
    return path

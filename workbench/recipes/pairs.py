"""Questions with answers that every machine already has: the standard library's documentation.

Used by lora.py beside this file; it needs torch alone (a real model's tokenizer: transformers).
"""

import ast
import importlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

END, PADDING = 256, 257  # beside the 256 bytes: a tokenizer without a download


class Pair(NamedTuple):
    """One example: the question's tokens are read, the answer's are learned."""

    question: list[int]
    answer: list[int]


def docstring_pairs() -> list[tuple[str, str]]:
    """Each signature in the standard library's top folder with its docstring's first paragraph."""
    pairs = list[tuple[str, str]]()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                signature = f"def {node.name}({ast.unparse(node.args)}):\n"
                pairs.append((signature, text.split("\n\n")[0]))
    return pairs


def encoded_pairs(model: str | None, longest: int) -> tuple[list[Pair], int]:
    """The pairs of up to `longest` tokens, and the token that pads."""
    if model:
        library: Any = importlib.import_module("transformers")  # only where it is needed
        tokenizer = library.AutoTokenizer.from_pretrained(model)
        end = tokenizer.eos_token_id
        padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end

        def encode(text: str) -> list[int]:
            return tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        end, padding = END, PADDING

        def encode(text: str) -> list[int]:
            return list(text.encode())

    pairs = [
        Pair(encode(question), [*encode(answer), end]) for question, answer in docstring_pairs()
    ]
    return [pair for pair in pairs if len(pair.question) + len(pair.answer) <= longest], padding


def collate(pairs: Sequence[Pair], padding: int) -> dict[str, Tensor]:
    """Tokens, attention mask and labels [pairs, longest]; -100 where nothing is learned.

    Padding comes last, is never attended to and never learned. It may be the end mark's token:
    that the mask follows the lengths, not the token, keeps the real end mark learned.
    """
    longest = max(len(pair.question) + len(pair.answer) for pair in pairs)
    tokens = torch.full((len(pairs), longest), padding)
    mask, labels = torch.zeros_like(tokens), torch.full_like(tokens, -100)
    for row, (question, answer) in enumerate(pairs):
        begin, end = len(question), len(question) + len(answer)
        tokens[row, :end] = torch.tensor(question + answer)
        mask[row, :end] = 1
        labels[row, begin:end] = tokens[row, begin:end]
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}

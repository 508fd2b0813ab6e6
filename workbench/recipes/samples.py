"""Answers to fixed prompts while a model trains: the likeliest token each time, by all processes.

Every process takes part in each forward pass, as sharded weights need it, and does the same number
of them, whether or not it has found an end mark. No random number is drawn, so the training
is exactly as it would be without. Used by gpt.py and finetune.py; it needs torch alone. In a run
of the workbench the answers are kept with the step (`workbench.log`); step times leave them out.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from recipe_options import first_rank
from torch import Tensor

MAX_PROMPTS = 8
_CHARS_MAX = 160  # characters of an answer in the log


def prompts_of(texts: Sequence[str]) -> list[str]:
    """The prompts: a file's lines, or the text itself; SystemExit when there are too many."""
    prompts = list[str]()
    for prompt in texts:
        with contextlib.suppress(OSError, ValueError):  # no file, or a name that cannot be one
            if Path(prompt).is_file():
                prompts += filter(
                    None, map(str.strip, Path(prompt).read_text("utf-8-sig").splitlines())
                )
                continue
        prompts.append(prompt)
    if not 0 < len(prompts) <= MAX_PROMPTS:
        sys.exit(f"--sample-prompts: {len(prompts)} prompts; give 1 to {MAX_PROMPTS}")
    return prompts


def greedy(
    forward: Callable[[Tensor], Tensor],
    prompts: Sequence[Sequence[int]],
    count: int,
    device: torch.device,
    alive: Callable[[], None],
) -> list[list[int]]:
    """The `count` likeliest tokens after each prompt.

    `forward` gives logits [B, L, V] of tokens [B, L] and lets no position see a later one, so what
    stands behind a prompt's end may be anything. `alive` is called before each pass.
    """
    ends = torch.tensor([len(prompt) for prompt in prompts], device=device)
    rows = torch.zeros(len(prompts), int(ends.max()) + count, dtype=torch.long)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    rows, every = rows.to(device), torch.arange(len(prompts), device=device)
    for _ in range(count):
        alive()
        rows[every, ends] = forward(rows)[every, ends - 1].argmax(-1)
        ends += 1
    return [
        row[len(prompt) : len(prompt) + count]
        for row, prompt in zip(rows.tolist(), prompts, strict=True)
    ]


class Samples:
    """What a model in training answers; every process makes one and calls it at the same steps."""

    def __init__(
        self,
        options: Any,
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
        say: Callable[[str], object],
    ) -> None:
        """`say` speaks for one process alone."""
        self.every: int = options.sample_every
        self._count: int = options.sample_tokens
        self._decode, self._say = decode, say
        self.prompts = prompts_of(options.sample_prompts) if self.every else []
        self._tokens = [encode(prompt) for prompt in self.prompts]

    def due(self, step: int) -> bool:
        """Whether to answer after this many steps; before the first one, too."""
        return bool(self.every) and step % self.every == 0

    def take(
        self, step: int, model: torch.nn.Module, forward: Callable[[Tensor], Tensor]
    ) -> list[str]:
        """The answers, which one process tells."""
        device = next(model.parameters()).device
        was_training = model.training
        with outside_steps() as alive, torch.no_grad():
            model.eval()
            try:
                answers_tokens = greedy(forward, self._tokens, self._count, device, alive)
            finally:
                model.train(was_training)
            answers = [self._decode(tokens) for tokens in answers_tokens]
            for prompt, answer in zip(self.prompts, answers, strict=True):
                self._say(
                    f"step {step:6d} | sample {prompt[:_CHARS_MAX]!r} -> {answer[:_CHARS_MAX]!r}"
                )
                tell(step, prompt=prompt, answer=answer)
        return answers


def tell(step: int, **values: float | str) -> None:
    """Log by name, by one rank for all; nothing where the workbench is not installed."""
    if first_rank():
        with contextlib.suppress(ImportError):
            import workbench  # noqa: PLC0415 - the recipes run without it

            workbench.log(step=step, **values)


def outside_steps() -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Around work that belongs to no step; gives what tells that this process still works."""
    hook: Any = sys.modules.get("_workbench_capture")
    return contextlib.nullcontext(lambda: None) if hook is None else hook.outside_steps()

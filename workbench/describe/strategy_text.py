"""A strategy in words: its name, and each option by which it differs from that name."""

from __future__ import annotations

from typing import Any

from workbench.describe.option import text_of
from workbench.describe.strategy import Strategy


def strategy_words(strategy: Strategy) -> list[str]:
    """The options that its name does not say, each in words.

    >>> from workbench.describe import Strategy
    >>> kept = Strategy.parse("fsdp", 8).with_options(reshard_after_forward=False)
    >>> strategy_words(kept.with_options(recompute="full", offload=("optimizer", "parameters")))
    ['recompute full', 'offload optimizer+parameters', 'no reshard after forward']
    >>> strategy_words(Strategy.parse("pp", 4))
    ['1f1b schedule']
    """
    options = strategy.options_beside_name()
    options.pop("recompute_parts", None)
    schedule = options.pop("schedule", strategy.pipeline.schedule)
    words = [_word(strategy, name, value) for name, value in options.items()]
    return [*words, *[f"{schedule} schedule"] * (strategy.pp > 1)]


def _word(strategy: Strategy, name: str, value: Any) -> str:
    plain = name.replace("_", " ")
    if name == "recompute" and value == "selective":
        return f"recompute {'+'.join(strategy.recompute_parts)}"
    if isinstance(value, bool):
        return plain if value else f"no {plain}"
    return f"{plain} {text_of(value).replace(',', '+')}"

"""How long examples are in tokens, and what follows: truncation, padding, packing, an epoch."""

from __future__ import annotations

import bisect
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.training_data.encode import Encoder
from workbench.training_data.examine import read_examples
from workbench.training_data.locate import locate
from workbench.training_data.templates import TEMPLATES
from workbench.training_data.tokenizer import load_tokenizer
from workbench.training_data.unused import unused_note
from workbench.training_data.values import DataReport, RowError, RowResult

SAMPLE = 5000
"""Examples that are counted in tokens; of more rows they are drawn evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """How data would be trained on."""

    model: Annotated[
        str | None, Option(help="Model whose tokenizer is used: a folder or a hub name.")
    ] = None
    """Its folder or hub name; None = the data is shown as it stands."""
    template: Annotated[
        str | None,
        Option(help="Chat template [default: the tokenizer's own].", choices=tuple(TEMPLATES)),
    ] = None
    """A name of `TEMPLATES`; None = the tokenizer's own."""
    seq_len: Annotated[int, Option(help="Tokens per example; the rest is cut.", least=1)] = 1024
    """TRL's default max_length."""
    micro_batch: Annotated[int, Option(help="Examples per forward pass and GPU.", least=1)] = 8
    """transformers' per_device_train_batch_size."""
    global_batch: Annotated[
        int | None, Option(help="Examples per step [default: one micro-batch].", least=1)
    ] = None
    """Over all ranks and micro-steps; None = the micro-batch."""

    def __post_init__(self) -> None:
        check_declared(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownExample:
    """An example in tokens, for people."""

    row: int
    """Its row."""
    tokens: int
    """Its length."""
    parts: tuple[tuple[str, bool], ...]
    """Text in stretches, each with whether it is learned."""
    rejected: str = ""
    """Of a pair the answer that is not preferred, as the model sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReport:
    """What the examples are to the model."""

    template: str
    """Which template, in words."""
    first: tuple[ShownExample, ...]
    """The first three examples as the model will see them."""
    counted: int
    """Examples that were counted: all, or an even sample."""
    refused: tuple[RowResult, ...]
    """Rows that the template refuses, among those that were counted."""
    median: int
    """Tokens of the middle example."""
    p95: int
    """Tokens that 95 of 100 examples do not exceed."""
    longest: int
    """Tokens of the longest one."""
    learned_share: float
    """Of the tokens that are kept, those that count in the loss."""
    truncated_share: float
    """Of the examples, those longer than the sequence."""
    cut_share: float
    """Of the tokens, those behind the end of the sequence."""
    lost_share: float
    """Of the examples, those without a learned token once they are cut: the trainer drops them."""
    padding_share: float
    """Of the positions computed, those that pad a micro-batch to its longest example."""
    packing_gain: float
    """Positions computed without packing over those with it (its blocks are not padded)."""
    epoch_tokens: int
    """Tokens of all examples, cut to the sequence."""
    epoch_steps: int
    """Optimizer steps of one pass."""
    epoch_steps_packed: int
    """The same when examples are packed."""
    notes: tuple[str, ...]
    """About the tokenizer and the template."""


def token_report(report: DataReport, options: TokenOptions) -> TokenReport:
    """Count the examples with a model's tokenizer.

    Raises:
        UsageError: no tokenizer, no template, or the template refuses every row.
    """
    if options.model is None:
        raise UsageError("No model was named. Give --model DIR to count tokens.")
    tokenizer = load_tokenizer(
        Path(options.model) if Path(options.model).is_dir() else options.model
    )
    encoder = Encoder(tokenizer, report.form, options.template)
    lengths, learned, examples, refused = (
        list[int](),
        list[list[int]](),
        list[ShownExample](),
        list[RowResult](),
    )
    unused = Counter[str]()
    for read in _sample(report):
        assert read.example is not None
        try:
            sequences = encoder.sequences(read.example)
        except RowError as error:
            refused.append(RowResult(row=read.row, problem=str(error)))
            continue
        unused.update(encoder.unused(read.example))
        for sequence in sequences:
            learned_flags = sequence.learned[: options.seq_len]
            lengths.append(len(sequence.ids))
            learned.append([sum(learned_flags), len(learned_flags)])
        if len(examples) < len(report.first):
            parts = tuple(encoder.shown(sequences[0]))
            rejected = encoder.shown(sequences[1])[-1][0] if len(sequences) > 1 else ""
            tokens = sum(len(sequence.ids) for sequence in sequences)
            examples.append(
                ShownExample(row=read.row, tokens=tokens, parts=parts, rejected=rejected)
            )
    if not lengths:
        first = refused[0]
        raise UsageError(f"The template fits no row (row {first.row}: {first.problem}).")
    counted = _summed(report, options, encoder, examples, refused, lengths, learned)
    return replace(counted, notes=(*encoder.notes, *unused_note(unused)))


def _sample(report: DataReport) -> Iterable[RowResult]:
    """All examples, or evenly drawn ones, the first three always."""
    step = max(1, report.examples // SAMPLE)
    examples = (row for row in read_examples(locate(report.path), report.form) if row.example)
    return (row for at, row in enumerate(examples) if at % step == 0 or at < len(report.first))


def _summed(
    report: DataReport,
    options: TokenOptions,
    encoder: Encoder,
    examples: Sequence[ShownExample],
    refused: Sequence[RowResult],
    lengths: Sequence[int],
    learned: Sequence[Sequence[int]],
) -> TokenReport:
    ordered, longest = sorted(lengths), options.seq_len
    cut = [min(length, longest) for length in lengths]
    kept_tokens = sum(cut)
    batch = options.global_batch or options.micro_batch
    pairs = report.form == "preference"  # two sequences each, which are never packed
    counted = len(lengths) // (1 + pairs)
    scale = report.examples / (counted + len(refused))
    rows = max(1, round(scale * counted))
    padded = padded_tokens(cut, options.micro_batch * (1 + pairs))
    bins = counted if pairs else packed(cut, longest)
    return TokenReport(
        template=encoder.template_name,
        first=tuple(examples),
        counted=counted,
        refused=tuple(refused),
        median=ordered[len(ordered) // 2],
        p95=ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        longest=ordered[-1],
        learned_share=sum(learned_tokens for learned_tokens, _ in learned) / kept_tokens,
        truncated_share=sum(length > longest for length in lengths) / len(lengths),
        cut_share=1 - kept_tokens / sum(lengths),
        lost_share=sum(not learned_tokens for learned_tokens, _ in learned) / len(lengths),
        padding_share=1 - kept_tokens / padded,
        packing_gain=1.0 if pairs else padded / kept_tokens,  # TRL does not pad packed examples
        epoch_tokens=round(scale * kept_tokens),
        epoch_steps=-(-rows // batch),
        epoch_steps_packed=-(-max(1, round(scale * bins)) // batch),
        notes=(),
    )


def packed(lengths: Sequence[int], seq_len: int) -> int:
    """Sequences after packing, best fit first and longest first, as TRL does it.

    >>> packed([6, 5, 4, 3, 2], 10)
    2
    """
    room: list[int] = []
    for length in sorted(lengths, reverse=True):
        at = bisect.bisect_left(room, length)
        left = room.pop(at) - length if at < len(room) else seq_len - length
        bisect.insort(room, left)
    return max(1, len(room))


def padded_tokens(lengths: Sequence[int], micro_batch: int) -> int:
    """Positions computed when micro-batches are drawn at random and padded to their longest.

    >>> padded_tokens([3, 3, 3], 2)
    9
    """
    order = list(lengths)
    random.Random(0).shuffle(order)  # noqa: S311 - an order, not a secret
    batches = [order[at : at + micro_batch] for at in range(0, len(order), micro_batch)]
    return max(1, sum(len(batch) * max(batch) for batch in batches))

"""Where the assistant's turns stand in the text that a template makes of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workbench.training_data.values import RowError, Turn

Render = Callable[..., str]
"""Turns -> their text; with `answer_follows=True` up to where an answer begins."""
_PRIVATE_USE = range(0xE000, 0xF900)  # letters that no text has


def answer_spans(
    turns: Sequence[Turn], text: str, render: Render, marks: Sequence[str]
) -> dict[int, tuple[int, int]]:
    """Place of each of the assistant's turns -> where it begins and ends, its end mark included.

    `marks` are the tokenizer's special and added tokens: one that follows a content ends it.

    Raises:
        RowError: the template drops a content or a tool call.
    """
    places = (place for place, turn in enumerate(turns) if turn.role == "assistant")
    return {place: _span(turns, place, text, render, marks) for place in places}


def _span(
    turns: Sequence[Turn], place: int, text: str, render: Render, marks: Sequence[str]
) -> tuple[int, int]:
    content = turns[place].content.strip()
    before = render(turns[:place], answer_follows=True)
    through = render(turns[: place + 1])
    begin = len(before)
    if not text.startswith(before):
        begin, _ = _content(turns, place, text, render)
        context = render(turns[:place]) if turns[place].extra else ""
        if context and text.startswith(context):
            # A thought may stand where the prompt has an empty one.
            begin = min(begin, max(len(context), _shared(text, before)))
    elif before == render(turns[:place]):
        # The template has no prompt for an answer. A space goes with the token behind it.
        begin, _ = _content(turns, place, text, render)
        begin -= text[begin - 1 : begin] == " "
    end = len(through) if text.startswith(through) else _common_end(text, begin, through, content)
    if end is None and not turns[place].calls:
        _, end = _content(turns, place, text, render)
        end += max((len(mark) for mark in marks if text.startswith(mark, end)), default=0)
    if end is None:
        raise RowError(f"where the tool calls of message {place + 1} end cannot be told")
    if not (content and text[:end].endswith(content)):
        end = len(text[:end].rstrip("\n"))
    if begin >= end or content not in text[begin:end]:
        raise RowError(f"the template drops or changes message {place + 1}")
    return begin, end


def _common_end(text: str, begin: int, through: str, content: str) -> int | None:
    """Where a turn ends that `through` has as its last, with more at its beginning; None = nowhere.

    Templates of models that think write a thought into the last turn alone.
    """
    end = len(through) if through.startswith(text[:begin]) else begin + len(through)
    while (end := text.rfind(through[-1:], begin, end) + 1) > begin:
        if through.endswith(text[begin:end]) and content in text[begin:end]:
            return end
        end -= 1
    return None


def _content(turns: Sequence[Turn], place: int, text: str, render: Render) -> tuple[int, int]:
    """Where a turn's content stands: what is different once it is one letter that no text has."""
    letter = next(letter for letter in map(chr, _PRIVATE_USE) if letter not in text)
    changed = [*turns[:place], replace(turns[place], content=letter), *turns[place + 1 :]]
    head, separator, tail = render(changed).partition(letter)
    if not separator:
        raise RowError(f"the template drops or changes message {place + 1}")
    begin = _shared(text, head)
    return begin, max(begin, len(text) - _shared(text[::-1], tail[::-1]))


def _shared(text: str, other: str) -> int:
    """How many letters both begin with."""
    if text.startswith(other):
        return len(other)
    pairs = enumerate(zip(text, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), len(text))

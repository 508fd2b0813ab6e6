"""What a row's columns mean: a conversation, an instruction, a prompt with its answer, a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from workbench.errors import UsageError
from workbench.training_data.messages import (
    check_turns,
    kind_of,
    messages_or_value,
    objects_of,
    turns_of,
)
from workbench.training_data.unused import unused_columns, unused_keys
from workbench.training_data.values import EmptyRowError, Example, RowError, Turn

_PAIRS = (
    *(("prompt", "completion"), ("prompt", "response"), ("prompt", "answer")),
    *(("question", "answer"), ("instruction", "response"), ("query", "response")),
    *(("input", "output"), ("source", "target")),
)
_MOST_LEVELS = 100  # half of which no schema or call of a tool has
_TEXTS = ("text", "content")
_COLUMNS = {  # first what is asked; of the other forms they follow from the row
    "messages": ("messages",),
    "sharegpt": ("conversations", "conversation"),
    "preference": ("prompt", "chosen", "rejected"),
    "alpaca": ("instruction", "output"),
}
_PASSAGES = ("input", "context")  # what a question is about: it follows the question
_SYSTEM = ("system", "system_prompt")
FORMS = {
    "messages": "messages: a list of {role, content}",
    "sharegpt": "conversations: a list of {from, value}",
    "preference": "chosen and rejected, with a prompt: pairs for DPO",
    "alpaca": "instruction and output, input and system if there are any",
    "prompt-completion": "prompt and completion, or question and answer, input and output",
    "text": "text: what is learned from the first to the last token",
}
"""Form -> its columns."""


def check_objective(data: str, form: str, objective: str) -> None:
    """Refuse data of a form that the objective, sft or dpo, cannot be trained on.

    >>> check_objective("chats.jsonl", "messages", "sft")

    Raises:
        UsageError: one needs pairs, the other must not have them.
    """
    if objective == "dpo" and form != "preference":
        raise UsageError(
            f"--data {data} holds {FORMS[form]}. --objective dpo needs pairs: the columns "
            "chosen and rejected, with a prompt."
        )
    if objective != "dpo" and form == "preference":
        raise UsageError(f"--data {data} holds {FORMS[form]}. Add --objective dpo.")


def form_of(fields: Mapping[str, Any]) -> str | None:
    """The form that a row's columns make; None = none that is known.

    >>> form_of({"instruction": "Add.", "input": "1 1", "output": "2"})
    'alpaca'
    """
    names = {name for name, value in fields.items() if value is not None}
    if {"chosen", "rejected"} <= names:
        return "preference"
    if "messages" in names:
        return "messages"
    if "conversations" in names or "conversation" in names:
        return "sharegpt"
    if {"instruction", "output"} <= names:
        return "alpaca"
    if any({first, second} <= names for first, second in _PAIRS):
        return "prompt-completion"
    return "text" if names & set(_TEXTS) else None


def example_of(fields: Mapping[str, Any], form: str) -> Example:
    """A row as an example.

    Raises:
        RowError: it cannot be one; the message completes "row 7: ".
    """
    if not fields or all(value in (None, "", []) for value in fields.values()):
        raise EmptyRowError("empty")
    form_found = form_of(fields)
    if form_found != form and not (form == "text" and form_found is None):
        nulls = {name for name, value in fields.items() if value is None}
        words = (f"{name!r}{' (null)' * (name in nulls)}" for name in fields)
        names = ", ".join(words) or "none"
        is_form = f", which is the form {form_found}" if form_found else ""
        raise RowError(f"its columns are {names}{is_form}; the file's form is {form}")
    if fields.get("functions") and isinstance(fields["functions"], list):
        raise RowError("functions is the old form of tools; write them as tools and tool_calls")
    example = _READERS[form](fields)
    tools = () if form == "text" else objects_of(fields.get("tools"), "tools")
    turns = (*example.turns, *example.rejected)
    unused = (*unused_columns(fields, _used(fields, form, example)), *unused_keys(turns))
    if example.rejected and not all(turn.learned for turn in turns):
        unused = (*unused, "weight of messages, since pairs have none")
    elif turns and not any(turn.learned for turn in turns if turn.role == "assistant"):
        raise RowError("each answer has the weight 0: nothing to learn from")
    if tools or unused:
        example = replace(example, tools=tools, unused=unused)
    _check_objects(example)
    _check_letters(example)
    return example


def _used(fields: Mapping[str, Any], form: str, example: Example) -> set[str]:
    """The columns that an example was made of."""
    if form == "text":
        return {_text_column(fields) or ""}
    columns = _COLUMNS.get(form) or _pair_of(fields)
    used = {*columns, "tools"}
    turns = example.turns
    if turns[0].role == "system":
        used |= {name for name in _SYSTEM if fields.get(name) == turns[0].content}
        turns = turns[1:]
    question = fields.get(columns[0])
    if isinstance(question, str) and turns[0].content == _question(fields, columns):
        used |= _passages(fields, columns).keys()
    return used


def _question(fields: Mapping[str, Any], columns: Sequence[str]) -> str:
    """What the user asks in the first of the columns, with what the question is about."""
    return "\n\n".join((_text(fields, columns[0]), *_passages(fields, columns).values()))


def _passages(fields: Mapping[str, Any], columns: Sequence[str]) -> dict[str, str]:
    """Texts that a question is about, by their columns, which are not the form's own."""
    candidates = {name: fields.get(name) for name in _PASSAGES if name not in columns}
    return {
        name: text for name, text in candidates.items() if isinstance(text, str) and text.strip()
    }


def _with_system(fields: Mapping[str, Any], turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Turns behind what the system says in a column of its own, unless they have it themselves."""
    system_texts = (fields.get(name) for name in _SYSTEM)
    system = next((text for text in system_texts if isinstance(text, str) and text.strip()), None)
    if system is None or (turns and turns[0].role == "system"):
        return turns
    return (Turn(role="system", content=system), *turns)


def _messages(fields: Mapping[str, Any]) -> Example:
    name = next(name for name in ("messages", "conversations", "conversation") if fields.get(name))
    turns = _with_system(fields, turns_of(fields[name], name))
    check_turns(turns)
    return Example(turns=turns)


def _sharegpt(fields: Mapping[str, Any]) -> Example:
    if not (fields.get("conversations") or fields.get("conversation")):
        raise EmptyRowError("a conversation without a turn")
    return _messages({key: value for key, value in fields.items() if key != "messages"})


def _openai(fields: Mapping[str, Any]) -> Example:
    if not fields.get("messages"):
        raise EmptyRowError("messages is an empty list")
    return _messages(fields)


def _alpaca(fields: Mapping[str, Any]) -> Example:
    return _question_answer(fields, _COLUMNS["alpaca"])


def _pair(fields: Mapping[str, Any]) -> Example:
    pair = _pair_of(fields)
    if pair == ("prompt", "completion") and _is_unwanted(fields.get("label")):
        raise RowError("its label says that the completion is not wanted (KTO): not learned")
    question, answer = (messages_or_value(fields[name]) for name in pair)
    if not isinstance(question, list):
        return _question_answer(fields, pair)
    turns = _with_system(fields, (*turns_of(question, pair[0]), *turns_of(answer, pair[1])))
    check_turns(turns)
    return Example(turns=turns)


def _question_answer(fields: Mapping[str, Any], columns: Sequence[str]) -> Example:
    """A question and its answer, each a text."""
    question = Turn(role="user", content=_question(fields, columns))
    answer = Turn(role="assistant", content=_text(fields, columns[1]))
    turns = _with_system(fields, (question, answer))
    check_turns(turns)
    return Example(turns=turns)


def _is_unwanted(label: object) -> bool:
    """Whether it says no; 0 may as well be the number of a class."""
    return label is False or (isinstance(label, str) and label.lower() == "false")


def _pair_of(fields: Mapping[str, Any]) -> tuple[str, str]:
    return next(pair for pair in _PAIRS if all(fields.get(name) is not None for name in pair))


def _plain(fields: Mapping[str, Any]) -> Example:
    name = _text_column(fields)
    if name is None:
        raise RowError(f"no column text, only {', '.join(map(repr, fields))}")
    text = _text(fields, name)
    if not text.strip():
        raise EmptyRowError("empty")
    return Example(text=text)


def _text_column(fields: Mapping[str, Any]) -> str | None:
    return next((text for text in _TEXTS if text in fields), None)


def _prompt(fields: Mapping[str, Any]) -> Turn:
    return Turn(role="user", content=_question(fields, _COLUMNS["preference"]))


def _preference(fields: Mapping[str, Any]) -> Example:
    columns = (fields.get(name) for name in _COLUMNS["preference"])
    prompt, chosen, rejected = map(messages_or_value, columns)
    if isinstance(chosen, str) and isinstance(rejected, str):
        if prompt is None:
            raise RowError("chosen and rejected are texts, and the prompt is missing")
        prompt_messages = turns_of(prompt, "prompt") if isinstance(prompt, list) else None
        prompt_turns = prompt_messages or (_prompt(fields),)
        good = (*prompt_turns, Turn(role="assistant", content=chosen))
        bad = (*prompt_turns, Turn(role="assistant", content=rejected))
    else:
        good, bad = turns_of(chosen, "chosen"), turns_of(rejected, "rejected")
        if isinstance(prompt, list):
            prompt_turns = turns_of(prompt, "prompt")
            if good[: len(prompt_turns)] != prompt_turns:
                good, bad = (*prompt_turns, *good), (*prompt_turns, *bad)
        elif isinstance(prompt, str) and good[:1] and good[0].role == "assistant":
            prompt_turns = (_prompt(fields),)
            good, bad = (*prompt_turns, *good), (*prompt_turns, *bad)
    good, bad = _with_system(fields, good), _with_system(fields, bad)
    check_turns(good)
    check_turns(bad)
    if good == bad:
        raise RowError("chosen and rejected are the same")
    same = next(
        (at for at, (left, right) in enumerate(zip(good, bad, strict=False)) if left != right),
        min(len(good), len(bad)),
    )
    if not same or good[same:][:1] == () or good[same].role != "assistant" or not bad[same:]:
        raise RowError("chosen and rejected do not begin with the same prompt")
    return Example(turns=good, rejected=bad[same:], prompt_turns=same)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise RowError(f"{name} is {kind_of(value)}, not a text")
    return value


def _check_objects(example: Example) -> None:
    """Refuse tools and calls so deep that a template, or JSON again, could not write them."""
    turns = (*example.turns, *example.rejected)
    level: list[Any] = [*example.tools, *(turn.extra for turn in turns if turn.extra)]
    for _ in range(_MOST_LEVELS):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return
    raise RowError(f"tools or tool_calls nested more than {_MOST_LEVELS} deep")


def _inside(item: Any) -> list[Any]:
    """What an object or a list holds."""
    if isinstance(item, dict):
        return [*cast("dict[str, Any]", item).values()]
    return cast("list[Any]", item) if isinstance(item, list) else []


def _check_letters(example: Example) -> None:
    """Refuse bytes that are no letters, and halves of letters, as JSON can escape them."""
    turns = (*example.turns, *example.rejected)
    objects = [*example.tools, *(turn.extra for turn in turns if turn.extra)]
    texts = (json.dumps(item, ensure_ascii=False, default=str) for item in objects)
    for text in (example.text, *(turn.content for turn in turns), *texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            character = (
                f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:x}"
            )
            raise RowError(f"not UTF-8 ({character}); save the file as UTF-8") from None


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Example]] = {
    "messages": _openai,
    "sharegpt": _sharegpt,
    "preference": _preference,
    "alpaca": _alpaca,
    "prompt-completion": _pair,
    "text": _plain,
}

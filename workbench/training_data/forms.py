"""What a row's columns mean: a conversation, an instruction, a prompt with its answer, a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from workbench.errors import UsageError
from workbench.training_data.unused import is_nothing, unused_columns, unused_keys
from workbench.training_data.values import EmptyRowError, Example, RowError, Turn

_PAIRS = (
    *(("prompt", "completion"), ("prompt", "response"), ("prompt", "answer")),
    *(("question", "answer"), ("instruction", "response"), ("query", "response")),
    *(("input", "output"), ("source", "target")),
)
_TEXTS = ("text", "content")
_COLUMNS = {  # of the other forms they follow from the row
    "messages": ("messages",),
    "sharegpt": ("conversations", "conversation"),
    "preference": ("chosen", "rejected", "prompt"),
    "alpaca": ("instruction", "input", "output"),
}
_PASSED = (  # keys of a message that templates read
    *("name", "tool_call_id"),
    *("reasoning_content", "reasoning", "thinking"),
)
_WEIGHTS = ("weight", "train", "trainable", "loss")  # 0 or false: an answer is not learned
_KEYS = {"role", "from", "content", "value", "tool_calls", *_PASSED}
_CALLED = {
    "system": "system developer",
    "user": "user human prompter",
    "assistant": "assistant gpt model bot chatgpt function_call",
    "tool": "tool function observation",
}
_ROLES = {name: role for role, names in _CALLED.items() for name in names.split()}
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
    if any({one, other} <= names for one, other in _PAIRS):
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
        names = ", ".join(map(repr, fields)) or "none"
        is_form = f", which is the form {form_found}" if form_found else ""
        raise RowError(f"its columns are {names}{is_form}; the file's form is {form}")
    if fields.get("functions") and isinstance(fields["functions"], list):
        raise RowError("functions is the old form of tools; write them as tools and tool_calls")
    example = _READERS[form](fields)
    tools = () if form == "text" else _objects(fields.get("tools"), "tools")
    turns = (*example.turns, *example.rejected)
    unused = (*unused_columns(fields, _used(fields, form, example)), *unused_keys(turns))
    if example.rejected and not all(turn.learned for turn in turns):
        unused = (*unused, "weight of messages, since pairs have none")
    elif turns and not any(turn.learned for turn in turns if turn.role == "assistant"):
        raise RowError("each answer has the weight 0: nothing to learn from")
    if tools or unused:
        example = replace(example, tools=tools, unused=unused)
    _check_letters(example)
    return example


def _used(fields: Mapping[str, Any], form: str, example: Example) -> set[str]:
    """The columns that an example was made of."""
    if form == "text":
        return {_text_column(fields) or ""}
    used = {*(_COLUMNS.get(form) or _pair_of(fields)), "tools"}
    if example.turns[0].role == "system" and example.turns[0].content == fields.get("system"):
        used.add("system")
    return used


def _objects(value: Any, what: str) -> tuple[dict[str, Any], ...]:
    """Objects from a list, or from JSON text of one; none of a value that says nothing."""
    found = _from_json(value)
    if is_nothing(found):
        return ()
    objects = cast("list[Any]", found)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in objects):
        raise RowError(f"{what} is {_kind(value)}, not a list of objects")
    return tuple(objects)


def _from_json(value: Any) -> Any:
    """What a text says as JSON (CSV, and columns with keys of many kinds); else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _messages(fields: Mapping[str, Any]) -> Example:
    name = next(name for name in ("messages", "conversations", "conversation") if fields.get(name))
    turns = _turns(fields[name], name)
    system = fields.get("system")
    first = turns[0].role if turns else None
    if isinstance(system, str) and system.strip() and first != "system":
        turns = (Turn(role="system", content=system), *turns)
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


def _turns(value: object, name: str) -> tuple[Turn, ...]:
    """Turns from a list of messages, or from JSON text of one (CSV)."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RowError(f"{name} is a text, not a list of messages") from None
    if not isinstance(value, list):
        raise RowError(f"{name} is {_kind(value)}, not a list of messages")
    messages = cast("list[Any]", value)
    return tuple(_turn(message, number) for number, message in enumerate(messages, 1))


def _turn(message: object, number: int) -> Turn:
    if not isinstance(message, dict):
        raise RowError(f"message {number} is {_kind(message)}, not an object with role and content")
    known = cast("dict[str, Any]", message)
    role = known.get("role", known.get("from"))
    content = known.get("content", known.get("value"))
    extra: dict[str, Any] = {key: known[key] for key in _PASSED if known.get(key)}
    calls = known.get("tool_calls")
    calls = _objects(calls, f"tool_calls of message {number}") if calls else ()
    if not isinstance(role, str) or role not in _ROLES:
        raise RowError(
            f"message {number} has the role {role!r}; allowed are system, user, assistant, tool"
            if role is not None
            else f"message {number} has no role, only {', '.join(known) or 'nothing'}"
        )
    if isinstance(content, list):
        content = "".join(_part(part, number) for part in cast("list[Any]", content))
    if calls:
        extra["tool_calls"] = list(calls)
        content = "" if content is None else content
    if known.get("function_call"):
        raise RowError(f"message {number} has a function_call, the old form of tool_calls")
    if not isinstance(content, str):
        raise RowError(f"message {number} has {_kind(content)} as content, not a text")
    turn = Turn(role=_ROLES[role], content=content, extra=extra or None)
    others = known.keys() - _KEYS
    return _with_others(turn, {key: known[key] for key in others}, number) if others else turn


def _with_others(turn: Turn, others: Mapping[str, Any], number: int) -> Turn:
    """With what the other keys of its message say: whether it is learned, or nothing."""
    weights = [key for key in _WEIGHTS if key in others] if turn.role == "assistant" else []
    for key in weights:
        if others[key] not in (None, 0, 1):
            raise RowError(f"message {number} has the {key} {others[key]!r}; allowed are 0 and 1")
    learned = all(others[key] in (None, 1) for key in weights)
    unused = (key for key in others if key not in weights and not is_nothing(others[key]))
    return replace(turn, learned=learned, unused=tuple(sorted(unused)))


def _part(part: object, number: int) -> str:
    text = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else part
    if not isinstance(text, str):
        raise RowError(f"message {number} has a part that is not text; only text can be trained on")
    return text


def check_turns(turns: Sequence[Turn]) -> None:
    """Refuse a conversation that a template would refuse, or that teaches nothing.

    Raises:
        RowError: what is wrong with it.
    """
    learned = [turn for turn in turns if turn.role == "assistant"]
    if not learned:
        raise RowError("no turn of the assistant: nothing to learn from")
    if not any(turn.content.strip() or turn.extra for turn in learned):
        raise EmptyRowError("the assistant's turns are empty")
    for number, turn in enumerate(turns, 1):
        if turn.role == "system" and number > 1:
            raise RowError(f"message {number} is of the system, which may only come first")
        if not turn.content.strip() and not turn.extra and turn.role != "system":
            raise RowError(f"message {number} ({turn.role}) is empty")
    spoken = [(at, turn) for at, turn in enumerate(turns, 1) if turn.role != "system"]
    if spoken[0][1].role != "user":
        raise RowError(f"the first turn is the {spoken[0][1].role}'s; it has to be the user's")
    for (_, before), (number, turn) in pairwise(spoken):
        if turn.role == before.role and turn.role in {"user", "assistant"}:
            raise RowError(f"message {number} is a second turn of the {turn.role} in a row")


def _alpaca(fields: Mapping[str, Any]) -> Example:
    instruction, more = _text(fields, "instruction"), fields.get("input")
    if isinstance(more, str) and more.strip():
        instruction = f"{instruction}\n\n{more}"
    return Example(turns=_asked(fields, instruction, _text(fields, "output")))


def _pair(fields: Mapping[str, Any]) -> Example:
    one, other = _pair_of(fields)
    if isinstance(fields[one], list):  # TRL's conversational form of the two columns
        turns = (*_turns(fields[one], one), *_turns(fields[other], other))
        check_turns(turns)
        return Example(turns=turns)
    return Example(turns=_asked(fields, _text(fields, one), _text(fields, other)))


def _pair_of(fields: Mapping[str, Any]) -> tuple[str, str]:
    return next(pair for pair in _PAIRS if all(fields.get(name) is not None for name in pair))


def _asked(fields: Mapping[str, Any], prompt: str, answer: str) -> tuple[Turn, ...]:
    system = fields.get("system")
    first = (Turn(role="system", content=system),) if isinstance(system, str) and system else ()
    turns = (*first, Turn(role="user", content=prompt), Turn(role="assistant", content=answer))
    check_turns(turns)
    return turns


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


def _preference(fields: Mapping[str, Any]) -> Example:
    chosen, rejected, prompt = (fields.get(name) for name in ("chosen", "rejected", "prompt"))
    if isinstance(chosen, str) and isinstance(rejected, str):
        if prompt is None:
            raise RowError("chosen and rejected are texts, and the prompt is missing")
        given = _turns(cast("list[Any]", prompt), "prompt") if isinstance(prompt, list) else None
        prompt_turns = given or (Turn(role="user", content=_text(fields, "prompt")),)
        good = (*prompt_turns, Turn(role="assistant", content=chosen))
        bad = (*prompt_turns, Turn(role="assistant", content=rejected))
    else:
        good, bad = _turns(chosen, "chosen"), _turns(rejected, "rejected")
        if isinstance(prompt, list):
            prompt_turns = _turns(cast("list[Any]", prompt), "prompt")
            if good[: len(prompt_turns)] != prompt_turns:
                good, bad = (*prompt_turns, *good), (*prompt_turns, *bad)
        elif isinstance(prompt, str) and good[:1] and good[0].role == "assistant":
            prompt_turns = (Turn(role="user", content=prompt),)
            good, bad = (*prompt_turns, *good), (*prompt_turns, *bad)
    check_turns(good)
    check_turns(bad)
    if good == bad:
        raise RowError("chosen and rejected are the same")
    same = next(
        (at for at, (one, other) in enumerate(zip(good, bad, strict=False)) if one != other),
        min(len(good), len(bad)),
    )
    if not same or good[same:][:1] == () or good[same].role != "assistant" or not bad[same:]:
        raise RowError("chosen and rejected do not begin with the same prompt")
    return Example(turns=good, rejected=bad[same:], prompt_turns=same)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise RowError(f"{name} is {_kind(value)}, not a text")
    return value


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true or false"
    names = {"list": "a list", "dict": "an object", "int": "a number", "float": "a number"}
    name = type(value).__name__
    return {**names, "str": "a text"}.get(name, name)


def _check_letters(example: Example) -> None:
    """Refuse bytes that are no letters, and halves of letters, as JSON can escape them."""
    turns = (*example.turns, *example.rejected)
    objects = [*example.tools, *(turn.extra for turn in turns if turn.extra)]
    texts = (json.dumps(one, ensure_ascii=False, default=str) for one in objects)
    for text in (example.text, *(turn.content for turn in turns), *texts):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            what = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:x}"
            raise RowError(f"not UTF-8 ({what}); save the file as UTF-8") from None


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Example]] = {
    "messages": _openai,
    "sharegpt": _sharegpt,
    "preference": _preference,
    "alpaca": _alpaca,
    "prompt-completion": _pair,
    "text": _plain,
}

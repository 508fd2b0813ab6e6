"""Messages of a conversation as they stand in a row, and which conversations can be trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from workbench.training_data.unused import is_nothing
from workbench.training_data.values import EmptyRowError, RowError, Turn

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


def turns_of(value: Any, name: str) -> tuple[Turn, ...]:
    """Turns from a list of messages, or from JSON text of one (CSV).

    Raises:
        RowError: it is none, or a message is not one.
    """
    messages = _from_json(value)
    if not isinstance(messages, list):
        raise RowError(f"{name} is {kind_of(messages)}, not a list of messages")
    messages = cast("list[Any]", messages)
    return tuple(_turn(message, number) for number, message in enumerate(messages, 1))


def _turn(message: object, number: int) -> Turn:
    if not isinstance(message, dict):
        raise RowError(
            f"message {number} is {kind_of(message)}, not an object with role and content"
        )
    fields = cast("dict[str, Any]", message)
    role = fields.get("role", fields.get("from"))
    content = fields.get("content", fields.get("value"))
    extra: dict[str, Any] = {key: fields[key] for key in _PASSED if fields.get(key)}
    calls = fields.get("tool_calls")
    calls = objects_of(calls, f"tool_calls of message {number}") if calls else ()
    if not isinstance(role, str) or role not in _ROLES:
        raise RowError(
            f"message {number} has the role {role!r}; allowed are system, user, assistant, tool"
            if role is not None
            else f"message {number} has no role, only {', '.join(fields) or 'nothing'}"
        )
    if isinstance(content, list):
        content = "".join(_part(part, number) for part in cast("list[Any]", content))
    if calls:
        extra["tool_calls"] = [_with_read_arguments(call) for call in calls]
        content = "" if content is None else content
    if fields.get("function_call"):
        raise RowError(f"message {number} has a function_call, the old form of tool_calls")
    if content is None:
        raise RowError(f"message {number} has no content")
    if not isinstance(content, str):
        raise RowError(f"message {number} has {kind_of(content)} as content, not a text")
    turn = Turn(role=_ROLES[role], content=content, extra=extra or None)
    other_keys = fields.keys() - _KEYS
    return (
        _with_other_fields(turn, {key: fields[key] for key in other_keys}, number)
        if other_keys
        else turn
    )


def _with_read_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """The call with its arguments as an object, also where they are JSON text, as APIs have them.

    A template that writes them as JSON would else write the text once more as JSON.
    """
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    fields = cast("dict[str, Any]", function)
    arguments = _from_json(fields.get("arguments"))
    return (
        {**call, "function": {**fields, "arguments": arguments}}
        if fields.get("arguments")
        else call
    )


def _with_other_fields(turn: Turn, other_fields: Mapping[str, Any], number: int) -> Turn:
    """With what the other keys of its message say: whether it is learned, or nothing."""
    weights = [key for key in _WEIGHTS if key in other_fields] if turn.role == "assistant" else []
    for key in weights:
        if other_fields[key] not in (None, 0, 1):
            raise RowError(
                f"message {number} has the {key} {other_fields[key]!r}; allowed are 0 and 1"
            )
    learned = all(other_fields[key] in (None, 1) for key in weights)
    unused = (
        key for key in other_fields if key not in weights and not is_nothing(other_fields[key])
    )
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


def objects_of(value: Any, subject: str) -> tuple[dict[str, Any], ...]:
    """Objects from a list, or from JSON text of one; none of a value that says nothing.

    Raises:
        RowError: it is something else; `subject` names it in the message.
    """
    parsed = _from_json(value)
    if is_nothing(parsed):
        return ()
    objects = cast("list[Any]", parsed)
    if not isinstance(parsed, list) or not all(isinstance(item, dict) for item in objects):
        raise RowError(f"{subject} is {kind_of(value)}, not a list of objects")
    return tuple(objects)


def messages_or_value(value: Any) -> Any:
    """Messages, also where they are JSON text (CSV); else the value as it is."""
    parsed = _from_json(value) if isinstance(value, str) and value.startswith("[{") else value
    if not isinstance(parsed, list):
        return value
    listed = cast("list[Any]", parsed)
    are_messages = all(isinstance(item, dict) and {"role", "from"} & {*item} for item in listed)
    return listed if are_messages else value


def _from_json(value: Any) -> Any:
    """What a text says as JSON (CSV, and columns with keys of many kinds); else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def kind_of(value: object) -> str:
    """What a value is, in words."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true or false"
    names = {"list": "a list", "dict": "an object", "int": "a number", "float": "a number"}
    name = type(value).__name__
    return {**names, "str": "a text"}.get(name, name)

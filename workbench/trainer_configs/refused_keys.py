"""What of a configuration is refused, since read without it the rest describes another job."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from workbench.errors import UsageError
from workbench.trainer_configs.document import Document, is_off, is_on, value_text
from workbench.trainer_configs.format import Format


def check_keys(document: Document, chosen: Format) -> None:
    """Refuse keys that contradict each other, and values that no job says.

    Raises:
        UsageError: with the key, the reason, and what to do.
    """
    _refuse_adapters(document, chosen)
    _refuse_objectives(document, chosen)
    _refuse_unread(document, chosen)
    for key, other_key in chosen.conflicts:
        if _is_stated(document.peek(key)) and _is_stated(document.peek(other_key)):
            raise UsageError(
                f"{document.name}: {key} and {other_key} contradict each other. Leave one "
                "of them out."
            )
    _check_agreeing(document, chosen)


def _is_stated(value: Any) -> bool:
    """Whether a key says anything but no."""
    return not is_off(value) and value not in ("auto", 0, {}, [])


def _check_agreeing(document: Document, chosen: Format) -> None:
    for key, other_key in chosen.agreeing.items():
        first, second = document.get(key), document.get(other_key)
        if first in (None, "auto") or second in (None, "auto"):
            continue
        same = (
            is_on(first) == is_on(second) if isinstance(first, bool) else str(first) == str(second)
        )
        if not same:
            raise UsageError(
                f"{document.name}: {key} is {value_text(first)} and {other_key} is "
                f"{value_text(second)}. "
                'Make them equal, or give "auto" in the DeepSpeed file.'
            )


def _refuse_adapters(document: Document, chosen: Format) -> None:
    """Refuse adapter methods that nothing here models: as LoRA or as full training they are wrong.

    Raises:
        UsageError: with what can be estimated, and what to do.
    """
    for key, allowed in chosen.adapters.items():
        value = document.get(key)
        if value not in allowed and not is_off(value):
            words = ", ".join(str(each) for each in allowed if each)
            raise UsageError(
                f"{document.name}: {key}: {value} cannot be estimated; "
                f"{f'known are {words}' if words else 'LoRA without it can be'}. Change it, or "
                "measure the script: workbench measure train.py."
            )


def _refuse_objectives(document: Document, chosen: Format) -> None:
    """Refuse what is not next-token training: read as that, its memory may be half of the truth.

    Raises:
        UsageError: with the key, and what to do.
    """
    for key, patterns in chosen.objectives.items():
        value = document.peek(key)
        if not is_off(value) and any(fnmatchcase(str(value).lower(), each) for each in patterns):
            raise UsageError(
                f"{document.name}: {key}: {value_text(value)} cannot be estimated: it trains on "
                "more than the next token, with other batches or a second model in memory. "
                "Estimate fine-tuning without it, which needs less, or measure the script: "
                "workbench measure train.py."
            )


def _refuse_unread(document: Document, chosen: Format) -> None:
    """Refuse what no job says: without it the rest describes another job.

    Raises:
        UsageError: with the key and the reason.
    """
    for key, reason in chosen.unread.items():
        value = document.get(key)
        if not is_off(value) and str(value) not in {"0", "1"}:
            raise UsageError(
                f"{document.name}: {key}: {value_text(value)} cannot be estimated: {reason}. "
                "Change it, or measure the script: workbench measure train.py."
            )

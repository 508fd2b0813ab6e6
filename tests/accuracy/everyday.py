"""The questions of a newcomer, typed as a newcomer would, beside a published or simulated answer.

``python -m tests.accuracy.everyday`` runs every command and prints the table of everyday.md;
``--write`` puts it there. Each question names what of the answer is compared, the answer that
somebody published (or that the exact simulation gives), its source and the tolerance that holds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests.accuracy.everyday_questions import QUESTIONS, Question
from workbench.cli.entry import run_app
from workbench.units import GIB

PAGE = Path(__file__).parent / "everyday.md"
_ASIDE, _ASIDE_OF_TIME = 0.05, 0.15  # what mending others may move an answer: the table shows it
_TIMES = {"tokens/s/GPU", "hours", "GPU-hours"}
_BEGIN, _END = "<!-- table -->", "<!-- end of table -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one command said."""

    question: Question
    value: float | bool | str
    """The compared part of the answer."""

    @property
    def difference(self) -> float | None:
        """Relative difference from the known answer; None where it is not a number."""
        known = self.question.known
        if isinstance(known, bool | str) or not isinstance(self.value, int | float):
            return None
        return self.value / known - 1

    @property
    def holds(self) -> bool:
        """Whether it is right (a few points aside), or no further off than it is known to be."""
        if self.difference is None:
            return self.right
        aside = _ASIDE_OF_TIME if self.question.part in _TIMES else _ASIDE
        allowed = max(self.question.off or 0.0, self.question.within + aside)
        return abs(self.difference) <= allowed

    @property
    def right(self) -> bool:
        """Whether it agrees within the question's tolerance."""
        if self.difference is not None:
            return abs(self.difference) <= self.question.within
        if isinstance(self.question.known, str):
            return self.question.known in str(self.value)
        return self.value is self.question.known


def run(command: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command line, in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", shlex.split(command)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            run_app()
        except SystemExit as end:
            code = end.code or 0
    return int(code), out.getvalue(), err.getvalue()


def reply(question: Question) -> Reply:
    """Type the question and read the compared part of the answer."""
    if question.part == "refusal":
        code, _, err = run(question.command)
        assert code == 2, (question.command, code, err)
        return Reply(question=question, value=" ".join(err.split()))
    code, out, err = run(f"{question.command} --json")
    assert code == 0, (question.command, err)
    return Reply(question=question, value=_READ[question.part](json.loads(out)))


def _per_gpu(document: dict[str, Any]) -> float:
    """Tokens per second and GPU."""
    rate = document["tokens_per_second"]
    return rate * document["wall_hours"] / document["gpu_hours"]


_READ: dict[str, Callable[[dict[str, Any]], float | bool | str]] = {
    "allocated GiB": lambda document: document["allocated_bytes"] / GIB,
    "reserved GiB": lambda document: document["reserved_bytes"] / GIB,
    "on card GiB": lambda document: document["on_card_bytes"] / GIB,
    "host GiB": lambda document: document["host_bytes"] / GIB,
    "fits": lambda document: document["fits"],
    "largest micro-batch": lambda document: document["largest_micro_batch"]["value"],
    "tokens/s/GPU": _per_gpu,
    "hours": lambda document: document["hours"],
    "GPU-hours": lambda document: document["gpu_hours"],
    "first remedy": lambda document: document["switches"][0]["name"],
    "note": lambda document: " ".join((*document["notes"], *document.get("cautions", ()))),
}


def table(replies: list[Reply]) -> str:
    """The page's table."""
    lines = [
        "| # | question | typed | compared | workbench | known | difference | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, each in enumerate(replies, start=1):
        asked = each.question
        difference = "" if each.difference is None else f"{each.difference:+.0%}"
        value, known = _shown(each.value, asked), _shown(asked.known, asked)
        verdict = "right" if each.right else f"off{f': {asked.remark}' * bool(asked.remark)}"
        cells = (str(number), asked.text, f"`{asked.command}`", asked.part, value)
        known = f"{known} ({asked.source})"
        lines.append(f"| {' | '.join((*cells, known, difference, verdict))} |")
    return "\n".join(lines)


def _shown(value: Any, asked: Question) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        known = str(asked.known)
        return f"… {known} …" if known in value and value != known else value[:60]
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def write(text: str) -> None:
    """Put the table into the page, between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}", encoding="utf-8")


def main() -> None:
    """Run every command and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into everyday.md")
    options = parser.parse_args()
    replies = [reply(question) for question in QUESTIONS]
    text = table(replies)
    if options.write:
        write(text)
    print(text)
    right = sum(each.right for each in replies)
    print(f"\n{right} of {len(replies)} right within their tolerance")
    sys.exit(0 if all(each.holds for each in replies) else 1)


if __name__ == "__main__":
    main()

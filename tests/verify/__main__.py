"""``python -m tests.verify [NAME ...]``: silent bugs, their twins and correct scripts, as tables."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.verify.cases import CASES, CORRECT, NOT_NAMED, NOT_REBUILT, Case
from workbench.verifying.verify import Verification, VerifyError, VerifyOptions, verify

PAGE = Path(__file__).parent / "README.md"
HEAD = """# Silent training bugs, and what `workbench verify train.py` says of them

Written by `python -m tests.verify`, on CPU with gloo and two ranks. Each script is written from the
published description of its bug; the upper part is TrainCheck's collection (Jiang et al., OSDI'25),
the lower part is of the bugs that multi-GPU scripts have most. Named = an error or a warning of the
expected kind is the first thing that is told; where the same may be meant so, a note. The twin is the same script with the right line.

| script | described in | named as | step | first evidence | twin | seconds |
|---|---|---|---|---|---|---|
"""


RIGHT = """
## Scripts that are right

hf_trainer and accelerate_loop use transformers' Trainer and Accelerate as installed. Scripts of
others cannot be had offline: the rest is written in the style of public tutorials and examples, as
each says in its first line. Lightning and torch_geometric are not installed and were not run. Each
script runs for 10 steps on two ranks and, with the same global batch, on one. Steps = those that
read the same samples in both, whose values are compared; else the rules about ranks remain (data
or noise drawn by rank, batches padded to their longest row, an order that depends on the ranks).
Gradients may be off by four times what rounding explains of the loss.

| script | told | notes | steps compared | loss off | gradient off | rounding explains | seconds |
|---|---|---|---|---|---|---|---|
"""


def answer(text: str, name: str, steps: int, folder: Path) -> Verification:
    """What is said of a script."""
    path = folder / f"{name}.py"
    path.write_text(text)
    return verify(path, (), VerifyOptions(steps=steps, cpu=True, timeout=60))


def _said(case: Case, text: str, name: str, folder: Path) -> tuple[str, str, str] | None:
    """Kind, step and evidence of the first thing that is told; None = nothing."""
    answer_ = answer(text, name, case.steps, folder)
    notes = [one for one in answer_.verdicts if one.kind in case.kinds] if case.note else []
    first = next(iter(notes), answer_.first)
    if first is not None:
        return first.kind, str(first.step), first.evidence
    words = (one for one in answer_.notes if any(kind in one for kind in case.kinds))
    told = next(words, None)
    return None if told is None else (case.kinds[0], "1", told)


def row(case: Case, folder: Path) -> tuple[bool, bool, str]:
    """Whether it was named, whether its twin was silent, and its line of the table."""
    begun = time.monotonic()
    said: dict[str, tuple[str, str, str] | None] = {"wrong": None, "twin": None}
    failed = set[str]()
    for which, text in (("wrong", case.wrong()), ("twin", case.correct())):
        try:
            said[which] = _said(case, text, f"{case.script}_{which}", folder)
        except VerifyError as error:
            failed.add(which)
            sys.stderr.write(f"{case.script}, {which}: {error}\n{error.log}\n")
    first, twin = said["wrong"], said["twin"]
    named = first is not None and first[0] in case.kinds
    kind = "**nothing**" if first is None else first[0] if named else f"**{first[0]}**"
    kind += " (a note)" if named and case.note else ""
    other = "**failed**" if "twin" in failed else "silent" if twin is None else f"**{twin[0]}**"
    step, evidence = ("", "") if first is None else first[1:]
    seconds = f"{(time.monotonic() - begun) / 2:.0f}"
    cells = (case.script, case.source, kind, step, evidence, other, seconds)
    text = "| " + " | ".join(one.replace("|", "/") for one in cells) + " |\n"
    return named, other == "silent", text


def correct_row(path: Path) -> tuple[bool, str]:
    """Whether nothing is told of a script that is right, and its line of the second table."""
    begun, said = time.monotonic(), "silent"
    try:
        answer_ = verify(path, (), VerifyOptions(steps=10, cpu=True, timeout=120))
    except VerifyError as error:
        sys.stderr.write(f"{path.stem}: {error}\n{error.log}\n")
        return False, f"| {path.stem} | **failed** |  |  |  |  | |\n"
    if answer_.first is not None:
        said = f"**{answer_.first.kind}**: {answer_.first.evidence}"
    notes = ", ".join(dict.fromkeys(one.kind for one in answer_.verdicts if one.severity == "note"))
    compared = answer_.comparison
    figures = [
        "n/a" if one is None else f"{one:.1e}"
        for one in (compared.loss, compared.gradient, compared.bound)
    ]
    cells = (
        *(path.stem, said, notes or "none", str(compared.steps), *figures),
        f"{time.monotonic() - begun:.0f}",
    )
    return answer_.first is None, "| " + " | ".join(cells) + " |\n"


def main() -> int:
    """Print the rows that were asked for, and renew them on the page."""
    names = sys.argv[1:]
    rows, results = _rows(), list[bool]()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # some scripts write beside them
        for case in (one for one in CASES if not names or one.script in names):
            named, silent, text = row(case, Path(folder))
            _keep(rows, case.script, text)
            results.append(named and silent)
        for path in (one for one in CORRECT if not names or one.stem in names):
            silent, text = correct_row(path)
            _keep(rows, path.stem, text)
            results.append(silent)
    ordered = [(one, rows[one.script]) for one in CASES if one.script in rows]
    right = [rows[one.stem] for one in CORRECT if one.stem in rows]
    upper = HEAD + "".join(text for _, text in ordered) + _summary(ordered)
    PAGE.write_text(upper + RIGHT + "".join(right) + _alarms(right))
    return int(not all(results))


def _keep(rows: dict[str, str], name: str, text: str) -> None:
    rows[name] = text
    sys.stdout.write(text)
    sys.stdout.flush()


def _rows() -> dict[str, str]:
    """The page's rows so far, by script: those of scripts that are not asked for stay."""
    text = PAGE.read_text() if PAGE.exists() else ""
    lines = [one for one in text.splitlines(keepends=True) if one.startswith("|")]
    rows = {line.split("|")[1].strip(): line for line in lines}
    return {name: line for name, line in rows.items() if name not in {"script", "---"}}


def _alarms(right: list[str]) -> str:
    silent = sum(one.split("|")[2].strip() == "silent" for one in right)
    return f"\nOf {len(right)} correct scripts {len(right) - silent} have an alarm.\n"


def _summary(ordered: list[tuple[Case, str]]) -> str:
    """How many are named and how many twins are accused; what was wrong stands in bold."""
    known = [text for case, text in ordered if case.traincheck]
    cells = [text.split("|") for _, text in ordered]
    named = [not text.split("|")[3].strip().startswith("**") for text in known]
    text = (
        f"\nOf TrainCheck's collection: {sum(named)} of {len(known)} rebuilt are named; of all "
        f"{len(cells)}: {sum(not one[3].strip().startswith('**') for one in cells)}. Twins with an "
        f"alarm: {sum(one[6].strip() != 'silent' for one in cells)}.\n\nNot rebuilt:\n\n"
    )
    text += "".join(f"- {name}: {why}\n" for name, why in NOT_REBUILT.items())
    return (
        text
        + "\nNot named, or not tried:\n\n"
        + "".join(f"- {what}: {why}\n" for what, why in NOT_NAMED.items())
    )


if __name__ == "__main__":
    sys.exit(main())

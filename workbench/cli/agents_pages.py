"""Pages for agents, made from the commands: ``python -m workbench.cli.agents_pages`` writes them.

``environments/SKILL.md`` says how to use the workbench, ``llms.txt`` beside it lists the commands.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from workbench.cli.commands import COMMANDS, load
from workbench.cli.json_keys import FORMS

_SKILL = """\
---
name: training-workbench
description: Predict, plan, launch, watch, diagnose and compare multi-GPU training with `workbench`.
---

# Training workbench

Every command that answers takes `--json` and prints exactly one JSON value. Exit code 0: done; 1:
the thing asked about failed; 2: wrong usage, and the message says what is allowed; 75: a run that
was waited for was pre-empted, resume it elsewhere. Unknown is null; units are in the names of the
keys. RUN is an id, a unique prefix, a name or `last`.

Ask before you start: `workbench plan`, then `workbench launch SCRIPT --dry-run --json`. Give every
launch `--max-hours`. Look with `workbench show RUN --json`; when `findings` is not empty,
`workbench diagnose RUN --json` has the evidence and `next_command` of each. Options of a script
come after `--`. Never edit files in a run directory.

`workbench mcp` has the usual ones as tools of the Model Context Protocol, see `agents.md`.

## In this order

{order}

## All commands

{commands}
"""
_LLMS = """\
# training-workbench

> {summary}

Options of each: `workbench COMMAND --help`. Keys of its JSON below each command.

{commands}
"""
_ORDER = ("doctor", "memory", "plan", "cost", "launch", "show", "diagnose", "resume", "compare")


def pages() -> dict[str, str]:
    """File name -> text."""
    order = "\n".join(
        f"{place}. `workbench {name}`: {COMMANDS[name].summary}"
        for place, name in enumerate(_ORDER, 1)
    )
    names = "\n".join(f"- `{name}`: {source.summary}" for name, source in COMMANDS.items())
    listed = "\n".join(_described(name) for name in COMMANDS)
    summary = "Predict, launch, watch and explain multi-GPU training on this host."
    return {
        "SKILL.md": _SKILL.format(order=order, commands=names),
        "llms.txt": _LLMS.format(summary=summary, commands=listed),
    }


def _described(name: str) -> str:
    command: Any = load(name)
    parts: dict[str, Any] = getattr(command, "commands", {})
    options = [option.opts[-1] for option in command.params if option.opts[-1].startswith("--")]
    lines = [f"## workbench {name}", "", COMMANDS[name].summary]
    if parts:
        lines.append(f"Parts: {', '.join(parts)}")
    if options:
        lines.append(f"Options: {' '.join(options)}")
    lines += [
        f"{form} --json: {'array of ' if json_form.array else ''}{', '.join(json_form.keys)}"
        for form, json_form in FORMS.items()
        if f"{form} ".startswith(f"{name} ")
    ]
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    """Write the pages."""
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "environments"))

"""The options of whatever can be launched, the gentlest way first: nothing runs unless asked."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.script_options.from_parser import of_argparse
from workbench.script_options.from_run import read_by_run
from workbench.script_options.from_source import read_source
from workbench.script_options.values import Reading, ScriptOption, options_of


def read_options(
    script: Path, *, recipe: str | None = None, module: str | None = None, run: bool = False
) -> Reading:
    """What a recipe or script can be told.

    Args:
        script: Its file.
        recipe: Name of the recipe, where it is one.
        module: Its name, where it is started as a module.
        run: Run the script up to its parser where the source does not show all options.
    """
    if recipe is not None:
        declared = options_of(of_argparse(recipes.parser_of(recipe)), positionals=False)
        note = f"The options of the recipe {recipe}."
        page = recipes.help_text(recipe)
        return Reading(known=declared, way="recipe", complete=True, note=note, help=page)
    command = f"workbench launch {f'-m {module}' if module else script.name} --"
    reading = read_source(script)
    if run and not reading.complete:
        by_run = read_by_run(script, module=module, name=command)
        if by_run.way == "run" or not reading.known.options:
            return by_run
        return replace(reading, note=f"{reading.note} {by_run.note}")
    return replace(reading, help=_page(reading, command)) if reading.known.options else reading


def _page(reading: Reading, name: str) -> str:
    """The help page of options that were read from the source."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=reading.description.strip().replace("%", "%%"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        conflict_handler="resolve",
    )
    groups = {"": parser.add_argument_group("options")}
    for option in (*reading.known.words, *reading.known.options):
        group = groups.get(option.group) or groups.setdefault(
            option.group, parser.add_argument_group(option.group)
        )
        _add(group, option)
    return parser.format_help()


def _add(group: Any, option: ScriptOption) -> None:
    """One line of the page."""
    help_text = option.help
    if option.default not in (None, "", False) and "default" not in help_text:
        help_text = f"{help_text} (default: {option.default})".strip()
    # With ends of lines in it, argparse fails at its own usage.
    choices = " ".join(",".join(option.choices).split())
    metavar = f"{{{choices}}}" if choices else None
    help_text = help_text.replace("%", "%%")
    if option.is_word:
        group.add_argument(
            option.names[0], nargs=_nargs(option), metavar=metavar or option.name, help=help_text
        )
    elif option.is_switch:
        group.add_argument(*option.names, dest=option.name, action="store_true", help=help_text)
    else:
        label = metavar or option.name.lstrip("-").replace("-", "_").upper()
        group.add_argument(
            *option.names, dest=option.name, nargs=_nargs(option), metavar=label, help=help_text
        )


def _nargs(option: ScriptOption) -> str | int | None:
    if option.most is None:
        return "+" if option.least else "*"
    if option.most == 1:
        return None if option.least else "?"
    return option.most or "?"

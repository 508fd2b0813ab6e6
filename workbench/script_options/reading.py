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
        known = options_of(of_argparse(recipes.parser_of(recipe)), positionals=False)
        note = f"The options of the recipe {recipe}."
        page = recipes.help_text(recipe)
        return Reading(known=known, way="recipe", complete=True, note=note, help=page)
    named = f"workbench launch {f'-m {module}' if module else script.name} --"
    found = read_source(script)
    if run and not found.complete:
        by_run = read_by_run(script, module=module, name=named)
        if by_run.way == "run" or not found.known.options:
            return by_run
        return replace(found, note=f"{found.note} {by_run.note}")
    return replace(found, help=_page(found, named)) if found.known.options else found


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
    for one in (*reading.known.words, *reading.known.options):
        group = groups.get(one.group) or groups.setdefault(
            one.group, parser.add_argument_group(one.group)
        )
        _add(group, one)
    return parser.format_help()


def _add(group: Any, one: ScriptOption) -> None:
    """One line of the page."""
    said = one.help
    if one.default not in (None, "", False) and "default" not in said:
        said = f"{said} (default: {one.default})".strip()
    metavar = f"{{{','.join(one.choices)}}}" if one.choices else None
    said = said.replace("%", "%%")
    if one.is_word:
        group.add_argument(one.names[0], nargs=_nargs(one), metavar=metavar or one.name, help=said)
    elif one.is_switch:
        group.add_argument(*one.names, dest=one.name, action="store_true", help=said)
    else:
        shown = metavar or one.name.lstrip("-").replace("-", "_").upper()
        group.add_argument(*one.names, dest=one.name, nargs=_nargs(one), metavar=shown, help=said)


def _nargs(one: ScriptOption) -> str | int | None:
    if one.most is None:
        return "+" if one.least else "*"
    if one.most == 1:
        return None if one.least else "?"
    return one.most

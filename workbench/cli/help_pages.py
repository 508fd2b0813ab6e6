"""How ``--help`` looks: options by topic, plain placeholders, whole sentences in the lists."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

WRONG_LINE: Any = typer.BadParameter.__base__
"""Click's UsageError, wherever this Typer has Click."""
SETTINGS: Final = {"max_content_width": 100, "help_option_names": ["--help", "-h"]}
"""Of each command's context: wide terminals need fewer lines; other programs have -h too."""
_TOPICS: Final = (
    "Arguments",
    "Options",
    "What is trained",
    "Where it runs",
    "The launch",
    "How it is spread",
    "Failures and limits",
    "What the trainer does",
)
WHAT, WHERE, LAUNCH, HOW, LIMITS, TRAINER = _TOPICS[2:]


class HelpCommand(TyperCommand):
    """A command whose help lists its own options first, then those of each topic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As usual; an empty text, as an unset variable of a shell script gives, is refused."""
        if "" in args or any(argument.endswith("=") for argument in args):
            given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            for param in self.get_params(ctx):
                values = given.get(param.name)
                if _is_empty(values) and not _may_be_empty(param):
                    raise WRONG_LINE(f"{_typed_name(param)} is empty.", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As usual; Ctrl-C prints a line where the command does not handle it itself."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write("Interrupted.\n")
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``[OPTIONS] RUN [-- ARGS...]``: brackets around what may be left out."""
        return ["[OPTIONS]", *(_usage(param) for param in _arguments(self.get_params(ctx)))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, the command's own options, and the others by topic."""
        topics: dict[str, list[tuple[str, str]]] = {topic: [] for topic in _TOPICS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                topics["Arguments"].append((_bare(_placeholder(param)), record[1]))
            else:
                topics[getattr(param, "rich_help_panel", None) or "Options"].append(record)
        for topic, records in topics.items():
            if records:
                with formatter.section(topic):
                    formatter.write_dl(records)


class HelpGroup(TyperGroup):
    """A group whose help, which it shows without arguments, has each command's whole summary."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As usual; nothing asks for help."""
        return super().parse_args(ctx, args or ["--help"])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Its commands, under headings if it has any."""
        names = self.list_commands(ctx)
        for heading, part in self.headings(names).items():
            with formatter.section(heading):
                formatter.write_dl([(name, _summary(self.commands[name])) for name in part])

    def headings(self, names: list[str]) -> Mapping[str, list[str]]:
        """Heading -> names of commands."""
        return {"Commands": names}


def _is_empty(values: Any) -> bool:
    """Whether one of the typed texts of a parameter is empty."""
    return values == "" or (isinstance(values, list | tuple) and "" in values)


def _may_be_empty(param: Any) -> bool:
    """Whether an empty text says something: a script's argument, or where the help says what."""
    return "ARGS" in _placeholder(param) or param.default == "" or "''" in (param.help or "")


def _typed_name(param: Any) -> str:
    """As the help calls it."""
    is_argument = param.param_type_name == "argument"
    return _bare(_placeholder(param)).removesuffix("...") if is_argument else param.opts[0]


def _arguments(params: list[Any]) -> list[Any]:
    return [param for param in params if param.param_type_name == "argument"]


def _placeholder(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _bare(name: str) -> str:
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name


def _usage(param: Any) -> str:
    name = _placeholder(param)
    if param.nargs != 1 and "..." not in name:
        name = f"{name}..."
    return name if param.required else f"[{_bare(name)}]"


def _summary(command: Any) -> str:
    """First paragraph of its help, on one line."""
    return " ".join((command.help or "").partition("\n\n")[0].split())

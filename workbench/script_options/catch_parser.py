"""Runs a script up to its parser and writes down the parser's options. Started by `from_run`.

The script imports and does what stands above its parser; the parser itself never returns to it.
What trains before that is ended at its first backward pass.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import os
import resource
import runpy
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from workbench.script_options.from_parser import commands_of, of_argparse, of_click
from workbench.script_options.values import ScriptOption

_POLL_SECONDS = 0.02


class _Catcher:
    """Replaces the entry points of the parsers; the first that is called ends the process."""

    def __init__(self, answer: int, name: str) -> None:
        self._answer = answer
        self._name = name
        self._before: list[ScriptOption] = []  # of a first parser, as timm's for its config

    def end(self, **document: Any) -> NoReturn:
        """Write the answer; nothing of the script runs after it, no exit handler either."""
        with os.fdopen(self._answer, "w", encoding="utf-8") as file:
            json.dump(document, file, default=str)
        os._exit(0)

    def parser(self, parser: argparse.ArgumentParser) -> NoReturn:
        """A parser was asked to parse."""
        parser.prog = self._name
        own = of_argparse(parser)
        own_names = {option.name for option in own}
        options = [*(option for option in self._before if option.name not in own_names), *own]
        self._end_with(options, commands_of(parser), parser.format_help())

    def command(self, command: Any) -> NoReturn:
        """A command of click or typer was called."""
        names: Any = getattr(command, "commands", ())
        commands = sorted(str(name) for name in names)
        self._end_with(of_click(command), commands, _page(command, self._name))

    def _end_with(self, options: list[ScriptOption], commands: list[str], page: str) -> NoReturn:
        documents = [dataclasses.asdict(option) for option in options]
        self.end(options=documents, commands=commands, help=page)

    def first(self, parser: argparse.ArgumentParser) -> bool:
        """Whether another parser follows this one, which takes a few options only."""
        if parser.add_help:
            return False
        self._before += of_argparse(parser)
        return True


def _page(command: Any, name: str) -> str:
    """Click's help page; of typer's pages, which draw on the terminal, what they print."""
    context = command.make_context(name, [], resilient_parsing=True)
    printed = io.StringIO()
    before, sys.stdout = sys.stdout, printed
    try:
        page = command.get_help(context)
    finally:
        sys.stdout = before
    return str(page or "") or printed.getvalue()


def _catch(catcher: _Catcher) -> None:
    original = argparse.ArgumentParser.parse_known_args

    def parse_known_args(self: argparse.ArgumentParser, *arguments: Any, **keywords: Any) -> Any:
        return (
            original(self, *arguments, **keywords) if catcher.first(self) else catcher.parser(self)
        )

    def caught(self: Any, *_arguments: Any, **_keywords: Any) -> NoReturn:
        catcher.parser(self) if isinstance(self, argparse.ArgumentParser) else catcher.command(self)

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign]
    argparse.ArgumentParser.print_help = caught  # type: ignore[method-assign]
    for kind in _commands():
        kind.main = caught


def _commands() -> list[Any]:
    """The classes of click and typer whose `main` reads the arguments; of what is installed."""
    names = {"click.core": ("BaseCommand", "Command"), "typer.core": ("TyperCommand", "TyperGroup")}
    groups: list[Any] = []
    for module, kinds in names.items():
        with contextlib.suppress(ImportError):
            loaded = vars(importlib.import_module(module))  # no own attribute: click warns there
            groups += [loaded[kind] for kind in kinds if kind in loaded]
    return groups


def _refuse_training(end: Callable[..., NoReturn]) -> None:
    """End the process at the first backward pass, whenever torch is imported."""

    def refused(*_arguments: Any, **_keywords: Any) -> NoReturn:
        end(problem="trains")

    def watch() -> None:
        stopped = threading.Event()
        while not stopped.wait(_POLL_SECONDS):
            autograd = sys.modules.get("torch.autograd")
            tensor = getattr(sys.modules.get("torch"), "Tensor", None)
            if tensor is not None and hasattr(autograd, "backward"):
                autograd.backward = tensor.backward = refused  # type: ignore[union-attr]
                stopped.set()

    threading.Thread(target=watch, daemon=True).start()


def main(answer: str, script: str, module: str, name: str, memory_bytes: str) -> None:
    """Run the script as ``python SCRIPT --help`` would, within so much memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    catcher = _Catcher(int(answer), name)
    _catch(catcher)
    _refuse_training(catcher.end)
    sys.argv = [script, "--help"]
    sys.path[0:0] = [os.getcwd() if module else os.path.dirname(script)]  # noqa: PTH109, PTH120
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        catcher.end(problem="exits", code=str(ended.code))
    except MemoryError:
        catcher.end(problem="memory")
    except BaseException as error:  # noqa: BLE001 - the script's own
        catcher.end(problem="raises", code=f"{type(error).__name__}: {error}"[:600])
    catcher.end(problem="ends")


if __name__ == "__main__":
    main(*sys.argv[1:6])

"""The options that a script's source shows; nothing of it is run."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from workbench.script_options.annotations import command_options, dataclass_options
from workbench.script_options.declaring_calls import declared_by
from workbench.script_options.literals import call_name, constants_of, literal, plain
from workbench.script_options.values import (
    Default,
    Reading,
    ScriptOption,
    ScriptOptions,
    options_of,
)
from workbench.store.python_source import imported_packages, imports, script_tree

_MAX_FILES = 20
_FREE = ("fire", "jsonargparse", "tyro", "hydra", "absl", "simple_parsing", "draccus", "gin")
_READS = {"argparse", "click", "typer", "transformers", "trl", "sys", *_FREE}
_HARMLESS = {"print", "isinstance", "vars", "type", "repr", "len", "hasattr", "getattr"}


def script_options(script: Path) -> ScriptOptions:
    """The options that a script, or a module beside it, declares; nothing is run."""
    return read_source(script).known


def read_source(script: Path) -> Reading:
    """The same, and whether the source shows all of them."""
    trees = list(_sources(script))
    if not trees:
        note = f"{script.name} cannot be read as Python: type its arguments as text."
        return Reading(note=note)
    reader = _Reader(trees)
    name = script.name
    if reader.commands:
        commands = ", ".join(sorted(reader.commands))
        note = (
            f"{name} has sub-commands ({commands}), each with its own options: type them as text."
        )
        return Reading(known=reader.found_options(), note=note)
    if reader.found_options().positionals is None and not reader.listed:
        free = [library for library in _FREE if library in reader.imported]
        how = f"reads its arguments with {free[0]}" if free else "shows no parser of arguments"
        note = f"{name} {how}: type them as text."
        return Reading(note=note, can_run=bool(reader.imported & _READS) and not free)
    missing = reader.missing()
    note = f"Read from the source of {name}; nothing was run."
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        note = f"Read from the source of {name}, which does not show all: {missing[0]}{more}."
    return Reading(
        known=reader.found_options(),
        description=reader.description,
        way="source",
        complete=not missing,
        note=note,
        can_run=bool(missing),
    )


def _sources(script: Path) -> Iterator[ast.Module]:
    """The script, and modules of its own that it imports: beside it, or in its package."""
    roots = [script.parent]
    while (roots[-1] / "__init__.py").is_file():
        roots.append(roots[-1].parent)
    waiting, seen = [script], {script}
    while waiting and len(seen) <= _MAX_FILES:
        file = waiting.pop(0)
        try:
            tree = script_tree(file)
        except (OSError, SyntaxError, ValueError, RecursionError):
            if len(seen) == 1:
                return
            continue
        yield tree
        for module, level in imports(tree):
            parts = module.split(".") if module else []
            for root in [file.parents[level - 1]] if 0 < level < len(file.parents) else roots:
                path = root.joinpath(*parts)
                for place in (path.with_suffix(".py"), path / "__init__.py"):
                    if place not in seen and place.is_file():
                        seen.add(place)
                        waiting.append(place)


class _Reader:
    """Walks the trees in the order of their lines and gathers what declares an option."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.listed: list[ScriptOption] = []
        self.commands: set[str] = set()
        self.description = ""
        self.imported = {name for tree in trees for name in imported_packages(tree)}
        self._missing: list[str] = []
        self._parsers = 0
        self._has_parser = False
        self._classes: dict[str, ast.ClassDef] = {}
        self._functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        for node in (child for tree in trees for child in ast.walk(tree)):
            if isinstance(node, ast.ClassDef):
                self._classes.setdefault(node.name, node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, node)
        self._reached = _reached(trees, {**self._functions, **self._classes})
        self._defaults: dict[str, Default] = {}
        for at, tree in enumerate(trees):
            self._constants = {
                **constants_of(tree),
                "__doc__": ast.Constant(ast.get_docstring(tree)),
            }
            self._groups: dict[str, str] = {}
            self._adders: dict[str, str] = {}
            self._parser_names: set[str] = set()
            for node in tree.body:
                if at == 0 or not _is_main_guard(node):  # what a sibling does as a script itself
                    self._visit(node, conditional=False)

    def found_options(self) -> ScriptOptions:
        """The options found."""
        positionals = any(option.is_word for option in self.listed) if self._has_parser else None
        if positionals is None and any(option.is_word for option in self.listed):
            positionals = True
        options = [
            dataclasses.replace(option, default=self._defaults.get(_dest(option), option.default))
            for option in self.listed
        ]
        return options_of(options, positionals)

    def missing(self) -> list[str]:
        """What the source does not show, each once."""
        several = ["it has several parsers"] if self._parsers > 1 else []
        return list(dict.fromkeys([*several, *self._missing]))

    def _visit(self, top: ast.AST, *, conditional: bool) -> None:
        """All below, in the order of the lines; no recursion, since a text may have any depth."""
        waiting = [(top, conditional)]
        while waiting:
            node, under_condition = waiting.pop()
            children = self._visited(node, conditional=under_condition)
            waiting += reversed(children)

    def _visited(self, node: ast.AST, *, conditional: bool) -> list[tuple[ast.AST, bool]]:
        """What is below one node, each with whether it is under a condition."""
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self._assigned(node.targets[0].id, node.value)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name not in self._reached and not node.decorator_list:
                return []  # of another script that shares the module
            self._decorated(node)
            self._parser_names |= {
                argument.arg for argument in node.args.args if "parser" in argument.arg
            }
        if isinstance(node, ast.Call):
            self._called(node, conditional=conditional)
        if isinstance(node, ast.If) and not _is_main_guard(node):
            conditional = True
        if isinstance(node, ast.For | ast.While):
            conditional = True
        return [(child, conditional) for child in ast.iter_child_nodes(node)]

    def _assigned(self, name: str, value: ast.expr) -> None:
        self._constants[name] = value
        if isinstance(value, ast.Attribute) and value.attr == "add_argument":
            self._adders[name] = self._groups.get(call_name(value.value), "")
        if not isinstance(value, ast.Call):
            return
        maker = call_name(value.func)
        if maker.endswith("ArgumentParser") or maker == "Parser":
            self._parser_names.add(name)
        if maker in {"add_argument_group", "add_mutually_exclusive_group"}:
            self._groups[name] = self._title(value)
            self._parser_names.add(name)

    def _title(self, call: ast.Call) -> str:
        """Of a group: its own, or that of the group it is in."""
        words = [
            *call.args,
            *(keyword.value for keyword in call.keywords if keyword.arg == "title"),
        ]
        if call_name(call.func) == "add_argument_group" and words:
            return str(literal(words[0], self._constants) or "")
        owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        return self._groups.get(call_name(owner), "")

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A command of click or typer."""
        options: list[ScriptOption | str] = []
        for decorator in node.decorator_list:
            name = (
                call_name(decorator.func)
                if isinstance(decorator, ast.Call)
                else call_name(decorator)
            )
            if name == "group":
                self.commands.add(node.name)
            elif name == "command":
                self._has_parser, self._parsers = True, self._parsers + 1
                self.description = self.description or ast.get_docstring(node) or ""
                if "typer" in self.imported and "click" not in self.imported:
                    options += command_options(node, self._constants)
                elif self._parsers > 1:
                    self.commands.add(node.name)
            elif isinstance(decorator, ast.Call) and name in {"option", "argument"}:
                options.append(declared_by(decorator, "", self._constants) or _COMPUTED)
        self._take(options)

    def _take(self, options: list[ScriptOption | str]) -> None:
        self._missing += [option for option in options if isinstance(option, str)]
        self.listed += [option for option in options if not isinstance(option, str)]

    def _called(self, node: ast.Call, *, conditional: bool) -> None:
        name = call_name(node.func)
        if name == "HfArgumentParser" or name == "TrlParser":  # noqa: PLR1714
            self._has_parser, self._parsers = True, self._parsers + 1
            self._dataclasses(node)
        elif name == "ArgumentParser" or (name == "Parser" and "recipe_options" in self.imported):
            self._has_parser = True
            extra = {
                keyword.arg: literal(keyword.value, self._constants) for keyword in node.keywords
            }
            self.description = self.description or str(extra.get("description") or "")
            self._parsers += extra.get("add_help") is not False and "parents" not in extra
        elif name == "add_parser":
            self.commands |= {
                str(argument.value)
                for argument in node.args[:1]
                if isinstance(argument, ast.Constant)
            }
        elif name == "set_defaults":
            defaults = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            self._defaults |= {key: plain(literal(value)) for key, value in defaults.items()}
        elif name == "run" and isinstance(node.func, ast.Attribute) and "typer" in self.imported:
            self._typer_run(node)
        elif name == "add_argument" or name in self._adders or name == "add":
            self._argument(node, name, conditional=conditional)
        elif name not in self._functions and name not in _HARMLESS:
            parsers = {call_name(argument) for argument in node.args} & self._parser_names
            if parsers and not name.startswith("add_argument"):
                self._missing.append(f"{ast.unparse(node.func)} adds options of its own")

    def _typer_run(self, node: ast.Call) -> None:
        function = self._functions.get(call_name(node.args[0])) if node.args else None
        if function is not None and ast.unparse(node.func) == "typer.run":
            self._has_parser, self._parsers = True, self._parsers + 1
            self.description = self.description or ast.get_docstring(function) or ""
            self._take(list(command_options(function, self._constants)))

    def _argument(self, node: ast.Call, name: str, *, conditional: bool) -> None:
        option = declared_by(node, self._group_of(node, name), self._constants)
        if option is not None:
            self.listed.append(option)
            if conditional:
                self._missing.append(f"{option.name} is added under a condition")
        elif name != "add":
            self._missing.append(_COMPUTED)

    def _group_of(self, node: ast.Call, name: str) -> str:
        if name in self._adders:
            return self._adders[name]
        owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        if isinstance(owner, ast.Call) and call_name(owner.func) == "add_argument_group":
            return self._title(owner)
        return self._groups.get(call_name(owner), "")

    def _dataclasses(self, node: ast.Call) -> None:
        classes = node.args[0] if node.args else None
        classes = (
            self._constants.get(classes.id, classes) if isinstance(classes, ast.Name) else classes
        )
        parts = classes.elts if isinstance(classes, ast.Tuple | ast.List) else [classes]
        for part in parts:
            name = call_name(part) if part is not None else ""
            if name in self._classes:
                options = dataclass_options(self._classes[name], self._classes, self._constants)
                self._take(list(options))
            else:
                self._missing.append(f"{name or 'its dataclass'} is of a library")


def _dest(option: ScriptOption) -> str:
    return option.name.lstrip("-").replace("-", "_")


def _reached(trees: list[ast.Module], definitions: Mapping[str, ast.AST]) -> set[str]:
    """Names of the functions and classes that running the first tree may use."""
    waiting: list[ast.AST] = [
        node
        for at, tree in enumerate(trees)
        for node in tree.body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (at == 0 or not _is_main_guard(node))
        and (at == 0 or not isinstance(node, ast.ClassDef))
    ]
    reached: set[str] = set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            name = node.id if isinstance(node, ast.Name) else ""
            name = node.attr if isinstance(node, ast.Attribute) else name
            if name in definitions and name not in reached:
                reached.add(name)
                waiting.append(definitions[name])
    return reached


_COMPUTED = "an option is computed"


def _is_main_guard(node: ast.AST) -> bool:
    """Whether it is ``if __name__ == …``."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )

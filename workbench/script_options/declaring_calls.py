"""The option that one call of argparse's ``add_argument`` or click's ``option`` declares."""

from __future__ import annotations

import ast
import re

from workbench.script_options.literals import Constants, call_name, literal, plain
from workbench.script_options.values import Kind, ScriptOption, kind_of

_SWITCHES = {"store_true", "store_false", "store_const", "append_const", "count", "help", "version"}

_NAMED_COUNTS = {"REMAINDER": "...", "OPTIONAL": "?", "ZERO_OR_MORE": "*", "ONE_OR_MORE": "+"}


def declared_by(node: ast.Call, group: str, constants: Constants) -> ScriptOption | None:
    """The option that a call of argparse or click declares; None = it is computed."""
    texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    split = [text.split("/") for text in texts if isinstance(text, str)]
    names = [part.strip() for parts in split for part in parts if part.strip()]
    if len(texts) < len(node.args) or any(keyword.arg is None for keyword in node.keywords):
        return None
    if not names or not all(re.fullmatch(r"-{0,2}[A-Za-z_][\w.-]*", name) for name in names):
        return None
    if names[0].startswith("-"):  # click's own name for the parameter is no spelling
        names = [name for name in names if name.startswith("-")]
    about = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    action = literal(about.get("action"))
    optional = call_name(about["action"]) == "BooleanOptionalAction" if "action" in about else False
    off = [f"--no-{name[2:]}" for name in names if optional and name.startswith("--")]
    off += [part.strip() for parts in split for part in parts[1:]]
    nargs = _nargs(about.get("nargs"), constants)
    switch = optional or action in _SWITCHES or literal(about.get("is_flag")) is True or bool(off)
    switch = switch or nargs == 0  # an action of the script's own
    kind: Kind = "switch" if switch else _kind(about, names, constants)
    least, most = (0, 0) if switch else count_of_values(nargs)
    default = plain(literal(about.get("default"), constants))
    listed = about.get("choices") or _click_choices(about.get("type"))
    choices = literal(listed, constants)
    several: list[object] = [*choices] if isinstance(choices, list | tuple | dict | set) else []
    return ScriptOption(
        names=tuple(dict.fromkeys([*names, *off])),
        off=tuple(off),
        least=least,
        most=most,
        kind=kind,
        default=(bool(default) if off else False) if switch and not optional else default,
        choices=tuple(map(str, several)),
        help=_help(literal(about.get("help"), constants), default),
        group=group,
        required=_is_required(names[0], about, least),
        repeated=action in {"append", "extend"} or literal(about.get("multiple")) is True,
    )


def _nargs(node: ast.expr | None, constants: Constants) -> object:
    """How many values it takes, also where argparse's own names say so."""
    name = call_name(node) if isinstance(node, ast.Attribute) else ""
    return _NAMED_COUNTS.get(name) or literal(node, constants)


def _is_required(name: str, about: dict[str, ast.expr], least: int) -> bool:
    if not name.startswith("-"):
        return least > 0 and literal(about.get("required")) is not False and "default" not in about
    return literal(about.get("required")) is True


def _kind(about: dict[str, ast.expr], names: list[str], constants: Constants) -> Kind:
    """From its type; click takes it from the default too."""
    kind = about.get("type")
    if kind is None:
        default = literal(about.get("default"), constants)
        is_click = isinstance(default, int | float) and not isinstance(default, bool)
        return kind_of(type(default).__name__ if is_click else "str", names[-1])
    type_name = call_name(kind.func) if isinstance(kind, ast.Call) else ast.unparse(kind)
    type_name = {"IntRange": "int", "FloatRange": "float", "INT": "int"}.get(type_name, type_name)
    return kind_of(type_name.removeprefix("click."), names[-1])


def _click_choices(kind: ast.expr | None) -> ast.expr | None:
    is_choice = isinstance(kind, ast.Call) and call_name(kind.func) == "Choice"
    return kind.args[0] if is_choice and isinstance(kind, ast.Call) and kind.args else None


def _help(text: object, default: object) -> str:
    help_text = str(text or "").replace("%(default)s", str(default)).replace("%%", "%")
    return " ".join(help_text.split())


def count_of_values(nargs: object) -> tuple[int, int | None]:
    """The fewest and the most values that an option with these ``nargs`` takes; None = any."""
    if isinstance(nargs, int):
        return (nargs, nargs) if nargs >= 0 else (1, None)  # click's -1: any number
    return {"?": (0, 1), "*": (0, None), "+": (1, None), "...": (0, None)}.get(str(nargs), (1, 1))

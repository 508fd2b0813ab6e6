"""A raised exception as a chain: causes, what was being handled, groups, other processes."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, cast

FOREWORD = "cpu_ranks.py"  # runs the script, and is none of the user's
_LONGEST = 12  # exceptions of one chain


def frames_module() -> Any:
    """`diagnose/frames.py`, the one place that decides whose a frame is."""
    return _module_at("diagnose", "frames")


def secrets_module() -> Any:
    """`store/secrets.py`, the one place that decides what is a secret."""
    return _module_at("store", "secrets")


def _module_at(package: str, module: str) -> Any:
    """A module of the workbench, by its path: the script's Python may not have the package."""
    name = f"_workbench_{module}"
    if name not in sys.modules:
        workbench = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.path.join(workbench, package, f"{module}.py")
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(path)
        loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(loaded)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def code_facts(script: str | None, module: str | None) -> dict[str, Any]:
    """Where this process's code comes from, for `frames.code_tree`."""
    site = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return {
        "script": script and os.path.abspath(script),
        "module": module,
        "working_directory": os.getcwd(),
        "standard_library": os.path.dirname(os.path.abspath(os.__file__)),
        "packages": site,
    }


def described(value: BaseException, code: Mapping[str, Any]) -> dict[str, Any]:
    """The user's line and the chain of exceptions, as the end record has them."""
    frames = frames_module()
    tree = frames.code_tree(_with_main(code))
    return frames.failure(_Chain(frames).of(value), tree).document()


def caller(code: Mapping[str, Any]) -> dict[str, Any]:
    """The user's line that is being executed: of a script that ends by ``sys.exit(1)``."""
    frames = frames_module()
    stack = [
        frames.Line(summary.filename, summary.lineno or 0, summary.name, summary.line or "")
        for summary in traceback.extract_stack()
    ]
    tree = frames.code_tree(_with_main(code))
    if tree.user_frame([frame.path for frame in stack]) is None:
        return {}
    failure = frames.failure(
        [frames.ChainedException("SystemExit", "", tuple(stack))], tree
    ).document()
    return {"where": failure["where"], "frame": failure["frame"]}


def handled(code: Mapping[str, Any], exit_code: int) -> dict[str, Any]:
    """The error whose handler is being executed: of ``except Exception: sys.exit(1)``.

    Nothing where no line of the user's is in its traceback: argparse handles errors of its own.
    """
    value = sys.exc_info()[1]
    if not isinstance(value, Exception):
        return {}
    frames = frames_module()
    tree = frames.code_tree(_with_main(code))
    chain = _Chain(frames).of(value)
    if all(tree.user_frame([frame.path for frame in error.frames]) is None for error in chain):
        return {}
    failure = frames.failure(chain, tree).document()
    first, *rest = failure["chain"]
    left = {"exception": f"exit code {exit_code}", "relation": ""}
    return {**failure, "chain": [left, {**first, "relation": frames.HANDLING}, *rest]}


def _with_main(code: Mapping[str, Any]) -> dict[str, Any]:
    """The script as Python knows it by now; a spawned process learns it late."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(main, str) or os.path.basename(main) == FOREWORD:
        return dict(code)
    return {**code, "script": main}


class _Chain:
    """Walks from an exception to what it came from, outermost first."""

    def __init__(self, frames: Any) -> None:
        self._frames = frames
        self._seen: set[int] = set()
        self._raised: list[Any] = []

    def of(self, value: BaseException) -> list[Any]:
        self._add(value, "", followed=True)
        return self._raised[:_LONGEST]

    def _add(self, value: BaseException, relation: str, *, followed: bool) -> None:
        if id(value) in self._seen or len(self._raised) >= _LONGEST:
            return
        self._seen.add(id(value))
        frames = self._frames
        lines = _lines(value, frames)
        message = _message(value)
        self._raised.append(
            frames.ChainedException(type(value).__name__, message, lines, relation, followed)
        )
        for text in _foreign_tracebacks(value):
            for error in frames.parse_traceback(text):
                relation = error.relation or frames.IN_PROCESS
                new = frames.ChainedException(
                    error.kind, error.message, error.frames, relation, followed
                )
                self._raised.append(new)
        members: Any = getattr(value, "exceptions", None)
        if isinstance(members, tuple):
            for number, member in enumerate(cast("tuple[Any, ...]", members)):
                if isinstance(member, BaseException):
                    self._add(member, frames.IN_GROUP, followed=followed and number == 0)
        if isinstance(getattr(value.__cause__, "tb", None), str):
            return  # the text of another process's traceback, read above
        if value.__cause__ is not None:
            self._add(value.__cause__, frames.CAUSED_BY, followed=followed)
        elif value.__context__ is not None and not value.__suppress_context__:
            translated = _raised_by_handler(value, value.__context__)
            self._add(value.__context__, frames.HANDLING, followed=followed and translated)


def _message(value: BaseException) -> str:
    """The exception's words without a traceback that another process has put into them."""
    text = str(value)
    own = text.partition("Traceback (most recent call last):")[0].rstrip()
    lines = own.splitlines()
    message_lines = lines[:-1] if lines and lines[-1].endswith("Original") else lines
    return "\n".join(line for line in message_lines if line.strip())[:1000]


def _lines(value: BaseException, frames: Any) -> tuple[Any, ...]:
    lines = [
        frames.Line(summary.filename, summary.lineno or 0, summary.name, summary.line or "")
        for summary in traceback.extract_tb(value.__traceback__)
    ]
    if isinstance(value, SyntaxError) and value.filename:
        source = (value.text or "").strip()
        lines.append(frames.Line(value.filename, value.lineno or 0, "<module>", source))
    return tuple(lines)


def _raised_by_handler(value: BaseException, context: BaseException) -> bool:
    """Whether ``except`` itself raised `value`: another name for the same failure.

    An exception from deeper down is a failure of its own, in what the handler called.
    """
    inner, outer = value.__traceback__, context.__traceback__
    return inner is not None and outer is not None and _last(inner).tb_frame is outer.tb_frame


def _last(trace: TracebackType) -> TracebackType:
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _foreign_tracebacks(value: BaseException) -> list[str]:
    """Tracebacks of other processes that an exception carries as text.

    Workers of data loaders and `mp.spawn` put them into their message, `multiprocessing.Pool` and
    `concurrent.futures` into a cause without frames, torchrun's error into the failures it lists.
    """
    texts = [str(value)]
    remote = getattr(value.__cause__, "tb", None)
    if isinstance(remote, str):
        texts.append(remote)
    failures: Any = getattr(value, "failures", None)
    if isinstance(failures, Mapping):
        listed = list(cast("Mapping[Any, Any]", failures).values())
        listed.sort(key=lambda error: getattr(error, "timestamp", 0))
        texts += [_elastic_text(error) for error in listed[:1]]
    return [text for text in texts if "Traceback (most recent call last):" in text]


def _elastic_text(error: Any) -> str:
    """What torchrun kept of a failed process: its traceback where the script records errors."""
    message = _of(getattr(error, "error_file_data", None), "message") or getattr(
        error, "message", ""
    )
    return str(_of(_of(message, "extraInfo"), "py_callstack") or message)


def _of(document: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", document).get(name) if isinstance(document, Mapping) else None

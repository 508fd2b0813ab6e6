"""What exec and the interpreter's start would have done, in a fork of the warm server.

`become` makes the process the one that was ordered; `run` then runs its script as ``__main__``.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import io
import os
import runpy
import signal
import site
import sys
import time
import types
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from typing import Any

from .ending import Ending
from .room import Room

_LAUNCHERS = ("accelerate.commands.launch", "torch.distributed.run")
_HERE = os.path.dirname(os.path.abspath(__file__))
_OOM_SCORE = "/proc/self/oom_score_adj"


@dataclass(frozen=True)
class Program:
    """What a Python command line runs."""

    kind: str
    """``script`` or ``module``."""
    name: str
    """The script's path, or the module."""
    arguments: tuple[str, ...]

    @property
    def launches_ranks(self) -> bool:
        """Whether it is a launcher that starts processes of its own."""
        return self.kind == "module" and self.name in _LAUNCHERS


@dataclass(frozen=True)
class Order:
    """A process to be: everything that exec would have handed on."""

    argv: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    umask: int = 0o022
    new_session: bool = False
    ignored: tuple[int, ...] = ()
    """Signals that it ignores from its start."""
    blocked: tuple[int, ...] = ()
    oom_score: str | None = None
    """Its ``oom_score_adj``; None = as its parent's."""
    surroundings: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def program(self) -> Program | None:
        """What it runs; None when a fork cannot."""
        return program(self.argv)


def program(argv: Sequence[str]) -> Program | None:
    """What `argv` runs, when it is this very Python on a script or a module; else None."""
    if not argv or argv[0] != sys.executable:
        return None
    rest = list(argv[1:])
    while rest and rest[0] == "-u":
        del rest[0]
    if len(rest) > 1 and rest[0] == "-m" and not rest[1].startswith("-"):
        return Program("module", rest[1], tuple(rest[2:]))
    if rest and not rest[0].startswith("-"):
        return Program("script", rest[0], tuple(rest[1:]))
    return None


def inherited_signals() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The signals that this process ignores, and those that it blocks: a child would as well.

    What Python itself ignores (SIGPIPE, SIGXFSZ) it does again at its start.
    """
    own = {signal.SIGPIPE, signal.SIGXFSZ}
    ignored = [
        int(number)
        for number in signal.valid_signals() - own
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    return tuple(ignored), tuple(int(number) for number in signal.pthread_sigmask(0, ()))


def search_path(order: Order, base: Sequence[str]) -> list[str]:
    """``sys.path`` of a cold start; `base` is what Python adds to PYTHONPATH."""
    before = order.environment.get("PYTHONPATH", "").split(os.pathsep)
    python_path = [os.path.abspath(os.path.join(order.folder, path)) for path in before if path]
    return [first_folder(order), *dict.fromkeys([*python_path, *base])]


def first_folder(order: Order) -> str:
    """Where a cold start looks first: beside the script, or in the working directory."""
    target = order.program
    if target is None or target.kind == "module":
        return order.folder
    return os.path.dirname(os.path.realpath(os.path.join(order.folder, target.name)))


def become(
    order: Order,
    files: Sequence[int],
    room: Room,
    base: Sequence[str],
    *,
    keep: Collection[int] = (),
) -> None:
    """Take over what the order says; `files` become standard input, output and error.

    All other files are closed, but those to `keep`.
    """
    if order.new_session:
        os.setsid()
    room.show(order.environment, " ".join(order.argv))
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
    close_files(keep)  # among them the pipe by which the parent learns that /proc shows us
    os.chdir(order.folder)
    os.umask(order.umask)
    if order.oom_score is not None:
        _set_oom_score(order.oom_score)
    os.environ.clear()
    os.environ.update(order.environment)
    time.tzset()
    _reset_signals(order)
    _reset_modules(order, base)


def own_oom_score() -> str | None:
    """What an exec would hand on of how soon the kernel kills this process; None = unknown."""
    try:
        with open(_OOM_SCORE, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _set_oom_score(score: str) -> None:
    try:
        with open(_OOM_SCORE, "w", encoding="ascii") as file:
            file.write(score)
    except OSError:  # lower than the parent's, and we are not root
        pass


def close_files(keep: Collection[int] = ()) -> None:
    """Close all files but standard input, output, error and `keep`, as an exec would."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:  # the listing's own
                continue


def _reset_signals(order: Order) -> None:
    signal.set_wakeup_fd(-1)
    ignored = {*order.ignored, signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, order.blocked)


def _reset_modules(order: Order, base: Sequence[str]) -> None:
    target = order.program
    assert target is not None
    sys.orig_argv = list(order.argv)
    sys.argv = [target.name if target.kind == "script" else "-m", *target.arguments]
    sys.path[:] = search_path(order, base)[1:]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    for name in ("sitecustomize", "usercustomize", target.name):
        sys.modules.pop(name, None)
    random = sys.modules.get("numpy.random")
    if random is not None:  # Python's own is seeded again in a fork
        random.seed()
    gc.enable()


def run(order: Order, ending: Ending) -> None:
    """Run the ordered program as ``__main__``; `ending` hears how it ended.

    To be called from the top of the process, whose ``__main__`` is replaced.
    """
    target = order.program
    assert target is not None
    for name in [name for name in sys.modules if name.startswith("_workbench_warm")]:
        del sys.modules[name]
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    try:
        _customise()
        sys.path.insert(0, first_folder(order))
        ending.script_begins()
        if target.kind == "module":
            runpy._run_module_as_main(target.name)  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        else:
            _run_script(os.path.join(order.folder, target.name), main)
        ending.script_ended(None)
    except SystemExit as end:
        ending.script_ended(end)
        raise
    except BaseException:
        sys.excepthook = _without_our_frames(sys.excepthook)
        raise


def _customise() -> None:
    """What the site module does last: sitecustomize (our hook, then the user's), usercustomize."""
    site.execsitecustomize()
    if site.ENABLE_USER_SITE:
        site.execusercustomize()


def _run_script(path: str, main: types.ModuleType) -> None:
    main.__file__ = os.path.normpath(path)
    main.__dict__["__loader__"] = SourceFileLoader("__main__", main.__file__)
    with io.open_code(main.__file__) as file:
        source = file.read()
    exec(compile(source, main.__file__, "exec", dont_inherit=True), main.__dict__)  # noqa: S102


def _without_our_frames(hook: Any) -> Any:
    """`hook` for a traceback that begins in the script, as it would in a cold start."""

    def excepthook(
        kind: type[BaseException], value: BaseException, trace: types.TracebackType | None
    ) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE + os.sep):
            trace = trace.tb_next
        sys.last_traceback = trace
        hook(kind, value.with_traceback(trace), trace)

    return excepthook

"""Reads numbers out of torch's files without torch and without unpickling.

A pickle is a program; this reads its instructions and builds plain values from those that make
data. Whatever would name a class or call a function becomes an inert `Call` or `Symbol`, so that
nothing of the file runs. Work is bounded: so many instructions, so many bytes.
"""

from __future__ import annotations

import collections
import io
import pickletools
import struct
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

MAX_INSTRUCTIONS = 600_000
"""About a second; the optimizer of a model with several thousand tensors."""
MAX_PICKLE_BYTES = 32 << 20
UNREADABLE = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, EOFError),
    *(zipfile.BadZipFile, NotImplementedError, struct.error, OverflowError),
)
"""What damaged or foreign files make their readers raise."""
_MAX_COUNTERS = 256
_MARK = object()
_ONE = ((), (1,))  # shapes of one element
_NUMBERS = {
    "torch FloatStorage": "<f",
    "torch DoubleStorage": "<d",
    "torch LongStorage": "<q",
    "torch IntStorage": "<i",
}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that the pickle would import."""

    name: str
    """Module and name, as ``torch FloatStorage``."""


@dataclass(slots=True, eq=False)
class Call:
    """What a function would have returned."""

    function: Any
    """A `Symbol`, as a rule."""
    arguments: Any
    """Its arguments."""
    state: Any = None
    """What would be set on the object."""
    items: dict[Any, Any] | None = None
    """Items that would be put into it, as into an OrderedDict."""


@dataclass(frozen=True, slots=True)
class StorageReference:
    """A reference to data beside the pickle: a tensor's storage."""

    about: Any
    """As torch writes it: ``("storage", type, key, location, size)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A file of `torch.save`, as far as it could be read."""

    value: Any
    """What was saved, of plain values, `Call`, `Symbol` and `StorageReference`."""
    number: Callable[[Any], float | None]
    """The number that a value is: of Python, or of a tensor with one element."""


def read_saved(file: Path | BinaryIO, counters: Collection[str] = ()) -> Saved:
    """Read a file of `torch.save`, in the zip format or the older one.

    Args:
        file: Where it is.
        counters: Names of values that may be numbers kept as tensors.

    Raises:
        one of `UNREADABLE`: it is none, it is damaged, or too long to be read.
    """
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return read_saved(opened, counters)
    start = file.read(4)
    file.seek(0)
    return _read_zip(file, counters) if start == b"PK\3\4" else _read_legacy(file)


def _read_zip(file: BinaryIO, counters: Collection[str]) -> Saved:
    archive = zipfile.ZipFile(file)
    name = next(member for member in archive.namelist() if member.endswith("data.pkl"))
    about = archive.getinfo(name)
    if about.file_size > MAX_PICKLE_BYTES:
        raise ValueError(f"its table has {about.file_size} bytes")
    value = read_pickle(io.BytesIO(archive.read(name)))
    prefix = name.removesuffix("data.pkl")
    # Numbers are looked up while the file is open: there are a handful of them.
    numbers = {
        id(call): number
        for call in _tensors(value, counters)
        if (number := _zip_number(archive, prefix, call)) is not None
    }
    return Saved(value=value, number=lambda tensor: _number(tensor, numbers))


def _zip_number(archive: zipfile.ZipFile, prefix: str, tensor: Call) -> float | None:
    """The only element of a tensor; None for larger ones and other types."""
    kind, key, offset = _single(tensor)
    if kind is None:
        return None
    size = struct.calcsize(kind)
    with archive.open(f"{prefix}data/{key}") as data:
        data.read(offset * size)
        return float(struct.unpack(kind, data.read(size))[0])


def _read_legacy(file: BinaryIO) -> Saved:
    """Magic number, protocol and system, then the object; tensors' numbers are not looked up."""
    if read_pickle(file) != _LEGACY_MAGIC:
        file.seek(0)
        return Saved(value=read_pickle(file), number=lambda tensor: _number(tensor, {}))
    read_pickle(file)
    read_pickle(file)
    value = read_pickle(file)
    return Saved(value=value, number=lambda tensor: _number(tensor, {}))


def _number(value: Any, numbers: Mapping[int, float]) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    return numbers.get(id(value))


def _tensors(value: Any, counters: Collection[str]) -> Iterator[Call]:
    """The first tensors of one element that have one of these names."""
    left = _MAX_COUNTERS
    for path, item in walk(value):
        named = not path or path[-1] in counters  # a value of its own needs no name
        if named and isinstance(item, Call) and _single(item)[0]:
            yield item
            left -= 1
            if not left:
                return


def _single(call: Call) -> tuple[str | None, str, int]:
    """Format, key and offset of a tensor with one element."""
    if not isinstance(call.function, Symbol) or "_rebuild_tensor" not in call.function.name:
        return None, "", 0
    stored, offset, shape = call.arguments[:3]
    if not isinstance(stored, StorageReference) or not isinstance(offset, int) or shape not in _ONE:
        return None, "", 0
    kind = stored.about[1]
    code = _NUMBERS.get(kind.name) if isinstance(kind, Symbol) else None
    return code, str(stored.about[2]), offset if 0 <= offset < 1 << 16 else 0


def walk(value: Any, limit: int = 200_000) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value inside with its path of keys, outermost first; bounded."""
    waiting = collections.deque[tuple[tuple[Any, ...], Any]]([((), value)])
    for _ in range(limit):
        if not waiting:
            return
        path, item = waiting.popleft()
        yield path, item
        if len(path) < 12:
            waiting += [((*path, key), inner) for key, inner in children(item)]


def children(value: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and values of a dictionary, of an object's attributes, or of a short list."""
    if isinstance(value, dict):
        yield from cast("dict[Any, Any]", value).items()
    elif isinstance(value, Call):
        if value.items:
            yield from value.items.items()
        state: Any = value.state
        if isinstance(state, dict):
            yield from cast("dict[Any, Any]", state).items()
    elif isinstance(value, list | tuple) and len(cast("list[Any]", value)) <= 64:
        yield from enumerate(cast("list[Any]", value))


def read_pickle(file: BinaryIO) -> Any:
    """The value that a pickle describes, with nothing of it run.

    Raises:
        ValueError: it is no pickle, or has too many instructions.
    """
    machine = _Machine()
    bounded = cast("BinaryIO", _Bounded(file))
    for count, (opcode, argument, _) in enumerate(pickletools.genops(bounded)):
        if count > MAX_INSTRUCTIONS:
            raise ValueError("it has too many instructions")
        if opcode.name == "STOP":
            return machine.stack[-1]
        machine.do(opcode.name, argument)
    raise ValueError("it ends before its end")


class _Bounded:
    """A file of which so many bytes are read, and no more."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = MAX_PICKLE_BYTES

    def read(self, size: int = 0) -> bytes:
        """The next `size` bytes."""
        self._take(size)
        return self._file.read(size)

    def readline(self) -> bytes:
        """The next line."""
        line = self._file.readline(self._left + 1)
        self._take(len(line))
        return line

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0 or size < 0:
            raise ValueError("its table is too long")


class _Machine:
    """The stack and the memo of a pickle, over inert values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        """One instruction."""
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        else:
            step = _STEPS.get(name)
            if step is None:
                raise ValueError(f"the instruction {name} is not one of data")
            step(self, argument)

    def marked(self) -> list[Any]:
        """Everything above the mark, which goes too."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("a mark is missing")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def put(self, items: list[Any]) -> None:
        """Keys and values into the dictionary, or the object, on top."""
        target = self.stack[-1]
        if isinstance(target, Call):
            if target.items is None:
                target.items = {}
            target = target.items
        if isinstance(target, dict):
            for key, value in zip(items[::2], items[1::2], strict=True):
                # A tuple may hold what cannot be a key: such a file is refused as unreadable.
                if isinstance(key, str | int | tuple | Call):
                    target[key] = value

    def extend(self, items: list[Any]) -> None:
        """Values into the list on top."""
        if isinstance(self.stack[-1], list):
            cast("list[Any]", self.stack[-1]).extend(items)

    def call(self, count: int) -> None:
        """Function and arguments become an inert call."""
        function, *arguments = self.stack[-count:]
        del self.stack[-count:]
        self.stack.append(Call(function, arguments[0]))

    def build(self, state: Any) -> None:
        """A state onto the object on top."""
        if isinstance(self.stack[-1], Call):
            self.stack[-1].state = state

    def tuple_of(self, count: int) -> None:
        """The top values as a tuple."""
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(values)


_PUSHED = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
        *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
    "MARK": lambda: _MARK,
}


def _global(machine: _Machine, argument: Any) -> None:
    machine.stack.append(Symbol(str(argument)))


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(Symbol(f"{module} {name}"))


def _nothing(_: _Machine, __: Any) -> None:
    return


def _object(machine: _Machine, argument: Any) -> None:
    arguments = machine.marked()
    function = arguments.pop(0) if argument is None else Symbol(str(argument))
    machine.stack.append(Call(function, tuple(arguments)))


def _memoize(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else int(argument)] = machine.stack[-1]


def _dict(machine: _Machine, _: Any) -> None:
    items = machine.marked()
    machine.stack.append({})
    machine.put(items)


def _one_item(machine: _Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.put([key, value])


def _pop(machine: _Machine, _: Any) -> None:
    machine.stack.pop()


def _pop_mark(machine: _Machine, _: Any) -> None:
    machine.marked()


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _nothing,
    "FRAME": _nothing,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": lambda machine, _: machine.call(2),
    "NEWOBJ": lambda machine, _: machine.call(2),
    "NEWOBJ_EX": lambda machine, _: machine.call(3),
    "OBJ": _object,
    "INST": _object,
    "BUILD": lambda machine, _: machine.build(machine.stack.pop()),
    "PERSID": lambda machine, argument: machine.stack.append(StorageReference(argument)),
    "BINPERSID": lambda machine, _: machine.stack.append(StorageReference(machine.stack.pop())),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.marked())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "LIST": lambda machine, _: machine.stack.append(machine.marked()),
    "FROZENSET": lambda machine, _: machine.stack.append(machine.marked()),
    "DICT": _dict,
    "SETITEM": _one_item,
    "SETITEMS": lambda machine, _: machine.put(machine.marked()),
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.marked()),
    "ADDITEMS": lambda machine, _: machine.extend(machine.marked()),
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "PUT": _memoize,
    "BINPUT": _memoize,
    "LONG_BINPUT": _memoize,
    "MEMOIZE": _memoize,
    "GET": lambda machine, argument: machine.stack.append(machine.memo[int(argument)]),
    "BINGET": lambda machine, argument: machine.stack.append(machine.memo[int(argument)]),
    "LONG_BINGET": lambda machine, argument: machine.stack.append(machine.memo[int(argument)]),
}

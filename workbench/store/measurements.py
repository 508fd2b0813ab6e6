"""Measured scripts, kept beside the runs: found again by what the script and its arguments are.

``<store>/measured/<key>.json`` holds what ``workbench measure`` learned; the key is made of the
script's content and of its arguments without the batch size, a configuration file among them by its
content. A script that imports files of its own is known by them too: one that has changed since
makes the measurement old. What a script reads from its environment is not in the key.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from workbench.describe.job import Job, default
from workbench.describe.option import declared
from workbench.describe.recorded import from_document
from workbench.describe.workload import Workload
from workbench.errors import UsageError
from workbench.store.calibrations import unwritable
from workbench.store.files import read_json, write_json_atomic
from workbench.store.runs import Store
from workbench.store.secrets import redact_arguments

FOLDER = "measured"
FILE = "measured.json"
"""In the directory of the run that measured."""
VERSION = 1
_BATCH = re.compile(
    r"(?:-b|-bs|--?(?:(?:per[-_](?:device|gpu|rank)|local)[-_])?(?:train(?:ing)?[-_])?"
    r"(?:micro[-_]?|mini[-_]?)?(?:batch|bs)(?:[-_]?size)?(?:[-_]per[-_](?:device|gpu|rank))?)"
)
_WITHOUT_EFFECT = re.compile(
    r"--?(?:lr|learning[-_]rate|seed|epochs?|num[-_](?:train[-_])?epochs|(?:max[-_])?steps"
    r"|max[-_]iters|output[-_]dir|out[-_]dir|run[-_]name|weight[-_]decay"
    r"|log(?:ging)?[-_]?(?:dir|every|file|freq|interval|level|steps)"
    r"|save[-_](?:dir|every|freq|interval|path|steps|strategy)|warmup[-_](?:iters|ratio|steps))"
)
"""Options by which neither the memory nor the work of a step changes; each takes a value."""
_CONFIGURATIONS = {".cfg", ".conf", ".ini", ".json", ".py", ".toml", ".yaml", ".yml"}
_MAX_FILE_BYTES = 8 << 20  # of a script, a module or a configuration; data is larger


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArgument:
    """Where a script's arguments give the batch size."""

    position: int
    """Of the word that holds the number."""
    prefix: str
    """What stands before the number in it: ``--batch-size=``, or nothing."""
    value: int
    """The number."""

    def replaced(self, arguments: Sequence[str], value: int) -> list[str]:
        """The arguments with another batch size.

        >>> words = ["--lr", "1", "--batch_size=8"]
        >>> batch_argument(words).replaced(words, 4)
        ['--lr', '1', '--batch_size=4']
        """
        words = list(arguments)
        words[self.position] = f"{self.prefix}{value}"
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What ``workbench measure`` learned of a script with its arguments."""

    script: str
    """Its path when it was measured."""
    arguments: tuple[str, ...]
    """Its arguments then; of one that is read again, without their secrets."""
    workload: Workload
    """What it trains."""
    content: str = ""
    """Hash of the script."""
    run: str = ""
    """The run that measured it."""
    measured_at: float = 0.0
    """Seconds since 1970."""
    batch_value: int | None = None
    """The batch size in its arguments then, else its default: that of `workload.micro_batch`."""
    batch_default: int | None = None
    """The batch size without an argument, as far as the script's source shows it."""
    batch_source: str = ""
    """Where its batch size was changed for the second probe; "" = there was none."""
    files: tuple[tuple[str, str], ...] = ()
    """Its own files that it imports: path beside it, and the hash of what was in them."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"version": VERSION, **asdict(self)}


def batch_argument(arguments: Sequence[str]) -> BatchArgument | None:
    """The argument that gives the batch size, by the names that scripts use; the last one counts.

    >>> batch_argument(["--per_device_train_batch_size", "16"]).value
    16
    >>> batch_argument(["--eval_batch_size", "16"]) is None
    True
    """
    for position, word in reversed(list(enumerate(arguments))):
        name, equals, value = word.partition("=")
        if not _BATCH.fullmatch(name if name.startswith("-") else f"--{name}"):
            continue
        if equals and value.isdecimal():
            return BatchArgument(position=position, prefix=f"{name}=", value=int(value))
        after = arguments[position + 1] if position + 1 < len(arguments) else ""
        if not equals and word.startswith("-") and after.isdecimal():
            return BatchArgument(position=position + 1, prefix="", value=int(after))
    return None


def is_batch_option(name: str) -> bool:
    """Whether an option of that name gives a training's batch size."""
    return _BATCH.fullmatch(name) is not None


def key_of(script: Path, arguments: Sequence[str]) -> str:
    """What makes a script the same: its content, and what its arguments say beside the batch size.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256(script.read_bytes())
    for word in _telling(arguments):
        digest.update(b"\0" + word.encode(errors="surrogateescape"))
        file = Path(word.rpartition("=")[2])
        if file.suffix in _CONFIGURATIONS:
            digest.update(b"\0" + (content_hash(file) or "").encode())
    return f"{re.sub(r'[^a-z0-9]+', '-', script.stem.lower()).strip('-')}-{digest.hexdigest()[:16]}"


def _telling(arguments: Sequence[str]) -> list[str]:
    batch = batch_argument(arguments)
    words: list[str] = []
    skip = False
    for position, word in enumerate(arguments):
        following = arguments[position + 1] if position + 1 < len(arguments) else "-"
        if skip or (batch is not None and position == batch.position):
            if batch is not None and position == batch.position and not batch.prefix:
                words.pop()  # its option
            skip = False
        elif _WITHOUT_EFFECT.fullmatch(word.partition("=")[0]):
            skip = "=" not in word and not following.startswith("-")
        else:
            words.append(word)
    return words


def keep(store: Store, measurement: Measurement, run: Path | None = None) -> Path:
    """Write it where `find` looks, and into the directory of the run that measured.

    Raises:
        StoreError: the store cannot be written.
    """
    path = store.root / FOLDER / f"{key_of(Path(measurement.script), measurement.arguments)}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Found by a hash of the arguments as they are; none that is a secret is written.
        document = measurement.document()
        document["arguments"] = redact_arguments(measurement.arguments)
        write_json_atomic(path, document, indent=1)
        if run is not None:
            write_json_atomic(run / FILE, document, indent=1)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def find(
    store: Store, script: str | os.PathLike[str], arguments: Sequence[str]
) -> Measurement | None:
    """The measurement of exactly this script, with the micro-batch that the arguments give.

    None: there is none, a file that the script imports has changed since, or the batch size without
    an argument is not known.
    """
    path = Path(script)
    try:
        measurement = read(store.root / FOLDER / f"{key_of(path, arguments)}.json")
    except OSError:
        return None
    if measurement is None or not _imports_as_before(path, measurement):
        return None
    return _at_batch(measurement, arguments)


def _imports_as_before(script: Path, measurement: Measurement) -> bool:
    return all(content_hash(script.parent / name) == old for name, old in measurement.files)


def _at_batch(measurement: Measurement, arguments: Sequence[str]) -> Measurement | None:
    """The measurement for arguments that may differ from the measured ones in the batch size."""
    now = batch_argument(arguments)
    if now is None and batch_argument(measurement.arguments) is None:
        return measurement
    value = measurement.batch_default if now is None else now.value
    if value is None:
        return None  # the measured batch was an argument, and what it is without is not known
    per_unit = (
        measurement.workload.micro_batch / measurement.batch_value
        if measurement.batch_value
        else 1.0
    )
    samples = max(1, round(value * per_unit))
    return replace(measurement, workload=replace(measurement.workload, micro_batch=samples))


def like(store: Store, text: str) -> dict[str, Any]:
    """What a script or a run trains, as options of a job.

    Args:
        store: Where it is kept.
        text: A measured script's path (its latest measurement counts), or the id, name or
            directory of a run that measured a script or whose job is recorded.

    Raises:
        UsageError: the script has not been measured, or has changed since; or no one knows what
            the run trains.
        RunNotFoundError: no such run.
    """
    path = Path(text).expanduser()
    if path.suffix == ".py":
        return _measured_step(_latest(store, path))
    folder = path if path.is_dir() else store.locate(text).directory
    measurement = read(folder / FILE)
    if measurement is not None:
        return _measured_step(measurement)
    record = read_json(folder / "run.json") or {}
    try:
        workload = Job.recorded(record).workload
    except UsageError as error:
        script = record.get("script") or "train.py"
        raise UsageError(
            f"{error} Or measure it: workbench measure {shlex.quote(script)}"
        ) from error
    values = {name: getattr(workload, name) for name in declared(Workload)}
    options = {name: value for name, value in values.items() if value != default(name)}
    return {"model": workload.model, **options, "kernels": workload.kernels}


def _measured_step(measurement: Measurement) -> dict[str, Any]:
    names = ("model", "seq_len", "micro_batch", "accumulate", "precision", "optimizer")
    return {name: getattr(measurement.workload, name) for name in names}


def _latest(store: Store, script: Path) -> Measurement:
    if not script.is_file():
        raise UsageError(f"There is no script {str(script)!r} here. Give its path.")
    content, own = content_hash(script), script.resolve()
    every = [read(path) for path in (store.root / FOLDER).glob("*.json")]
    of_script = [
        measurement
        for measurement in every
        if measurement is not None and Path(measurement.script).resolve() == own
    ]
    fresh = [
        measurement
        for measurement in of_script
        if measurement.content == content and _imports_as_before(own, measurement)
    ]
    if fresh:
        return max(fresh, key=lambda measurement: measurement.measured_at)
    why = "has changed since it was measured" if of_script else "has not been measured"
    raise UsageError(f"{script} {why}. Next: workbench measure {shlex.quote(str(script))}")


def read(path: Path) -> Measurement | None:
    """The measurement in a file; None where there is none that can be read."""
    document: Mapping[str, Any] | None = read_json(path)
    if document is None or document.get("version") != VERSION:
        return None
    try:
        return from_document(Measurement, document)
    except (TypeError, ValueError):
        return None


def content_hash(path: Path) -> str | None:
    """Hash of a plain file's content; None where it cannot be read, or has more than 8 MiB.

    A measurement in a shared store names the files: neither a pipe nor a device may hold us up.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_FILE_BYTES:
                return None
            return hashlib.sha256(file.read(_MAX_FILE_BYTES)).hexdigest()
    except (OSError, ValueError):
        return None

"""TensorBoard: event files, one folder per axis, written without torch or TensorFlow."""

from __future__ import annotations

import importlib
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.observe.trackers.points import Note, Point
from workbench.observe.trackers.progress import Progress
from workbench.observe.trackers.sink import Sink

_AXES = ("steps", "system", "notes")


class TensorBoard(Sink):
    """Readable by ``tensorboard --logdir``. Numbers are 32-bit floats, as TensorBoard's are."""

    def open(self, progress: Progress) -> bool:
        """Begin one more event file per axis."""
        fed = {"steps": progress.step, "system": progress.samples, "notes": len(progress.notes)}
        there = any(any((self.folder / axis).glob("events.out.tfevents.*")) for axis in _AXES)
        self._files = {
            axis: _EventFile(self.folder / axis, count + 1 if count else 0)
            for axis, count in fed.items()
        }
        if not (there and any(fed.values())):
            self._files["notes"].stand_alone()
            self._tell_parameters()
        return there

    def clear(self) -> None:
        """Void all earlier files."""
        for file in self._files.values():
            file.start_at(0)
        self._files["notes"].stand_alone()
        self._tell_parameters()

    def take_back(self, step: int) -> bool:
        """Void the steps beyond `step`."""
        self._files["steps"].start_at(step + 1)
        return True

    def _tell_parameters(self) -> None:
        rows = "\n".join(f"| {name} | `{value}` |" for name, value in self._parameters())
        table = f"| parameter | value |\n| --- | --- |\n{rows}"
        self._files["notes"].text("run", table, 0, self.about.created_at)

    def _parameters(self) -> list[tuple[str, str]]:
        quoted = {"`": "'", "|": "\\|", "\n": " "}
        table = str.maketrans(quoted)
        return [(name, value.translate(table)) for name, value in self.about.parameters.items()]

    def points(self, points: Sequence[Point]) -> None:
        """One event per point."""
        for point in points:
            self._files[point.axis].scalars(point.values, point.at, point.time)

    def notes(self, notes: Sequence[Note], first: int) -> None:
        """Text, one tag per note."""
        for number, note in enumerate(notes, start=first):
            at = f" (step {note.step})" if note.step else ""
            text = f"**{note.level}: {note.title}**{at}\n\n{note.text}"
            self._files["notes"].text(f"note-{number}", text, number, note.time)

    def end(self, outcome: str, ended_at: float) -> None:
        """The note says it; event files do not know any state of a run."""

    def look(self) -> str:
        """The command that shows it."""
        return f"tensorboard --host 127.0.0.1 --logdir {shlex.quote(str(self.folder))}"

    def flush(self) -> None:
        """To the disk, all three."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class _EventFile:
    """One more event file in a folder. What earlier files have from `step` on is void."""

    def __init__(self, folder: Path, step: int) -> None:
        self._event, self._summary = _proto("event"), _proto("summary")
        records = importlib.import_module("tensorboard.summary.writer.record_writer")
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _fresh_path(folder).open("xb")
        self._records: Any = records.RecordWriter(self._file)
        self._unwritten = False
        self._write(file_version="brain.Event:2")
        self.start_at(step)

    def start_at(self, step: int) -> None:
        """TensorBoard's own word for a restart: readers drop everything from `step` on."""
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._write(session_log=start, step=step)

    def stand_alone(self) -> None:
        """Remove the files before this one: readers drop numbers at a restart, but no texts."""
        for path in Path(self._file.name).parent.glob("events.out.tfevents.*"):
            if path != Path(self._file.name):
                path.unlink()

    def scalars(self, values: dict[str, float], step: int, at: float) -> None:
        """Numbers of one step."""
        value = self._summary.Summary.Value
        listed = [value(tag=name, simple_value=number) for name, number in values.items()]
        self._write(summary=self._summary.Summary(value=listed), step=step, at=at)

    def text(self, tag: str, text: str, step: int, at: float) -> None:
        """Markdown for the text tab, which sanitises it."""
        shapes = _proto("tensor_shape")
        shape = shapes.TensorShapeProto(dim=[shapes.TensorShapeProto.Dim(size=1)])
        tensor = _proto("tensor").TensorProto(
            dtype=_proto("types").DT_STRING, tensor_shape=shape, string_val=[text.encode()]
        )
        plugin = self._summary.SummaryMetadata.PluginData(plugin_name="text")
        metadata = self._summary.SummaryMetadata(plugin_data=plugin)
        value = self._summary.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        self._write(summary=self._summary.Summary(value=[value]), step=step, at=at)

    def _write(self, *, at: float | None = None, **fields: Any) -> None:
        event = self._event.Event(wall_time=time.time() if at is None else at, **fields)
        self._records.write(event.SerializeToString())
        self._unwritten = True

    def flush(self) -> None:
        """To the disk, so that the progress never runs ahead of it."""
        if self._unwritten:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._unwritten = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _proto(name: str) -> Any:
    return importlib.import_module(f"tensorboard.compat.proto.{name}_pb2")


def _fresh_path(folder: Path) -> Path:
    """A name that sorts behind all others: readers take the files in the order of their names."""
    numbers = [
        int(parts[3])
        for path in folder.glob("events.out.tfevents.*")
        if len(parts := path.name.split(".")) > 3 and parts[3].isdecimal()
    ]
    second = max([int(time.time()), *(number + 1 for number in numbers)])
    return folder / f"events.out.tfevents.{second:010d}.workbench.{os.getpid()}.0"

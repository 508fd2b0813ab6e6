"""Pictures with captions in a folder: metadata.jsonl, or a .txt of the same name beside each.

What the recipe finetune_image.py trains on, and what `workbench data FOLDER` shows. Pillow opens
the pictures; it comes with diffusers.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from workbench.errors import HostError, UsageError, pip_install

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
METADATA = "metadata.jsonl"
_CAPTIONS = ("text", "caption", "prompt")
_FIRST = 3
_CAPTION_CHARS = 60  # letters of a caption in a sentence
_HEAD_BYTES = 4096
_MOST_BYTES = 64 << 20  # of metadata.jsonl
_MOST_LETTERS = 10_000  # of a caption's file


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture, and its caption."""

    path: Path
    """The file."""
    caption: str
    """What it shows; "" = not known."""
    width: int = 0
    """Pixels; 0 = not opened yet."""
    height: int = 0
    """Pixels; 0 = not opened yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureReport:
    """What is in a folder of pictures."""

    path: Path
    """The folder."""
    captions: str
    """Where captions stand: metadata.jsonl, or text files."""
    pictures: tuple[Picture, ...]
    """Those that can be trained on, by name."""
    problems: tuple[str, ...]
    """Why the others cannot: one sentence each, with the name of the file."""

    @property
    def first(self) -> tuple[Picture, ...]:
        """The first three."""
        return self.pictures[:_FIRST]

    @property
    def sentence(self) -> str:
        """How many there are, and the first three."""
        examples = "; ".join(
            f"{picture.path.name}: {picture.caption[:_CAPTION_CHARS]!r}" for picture in self.first
        )
        first = f", first {examples}" if examples else ""
        return f"{len(self.pictures):,} pictures with captions from {self.captions}{first}."

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        sides = [min(picture.width, picture.height) for picture in self.pictures]
        return {
            "path": str(self.path),
            "captions": self.captions,
            "pictures": len(self.pictures),
            "smallest_side": min(sides, default=None),
            "largest_side": max(
                (max(picture.width, picture.height) for picture in self.pictures), default=None
            ),
            "problems": list(self.problems),
            "first": [{**asdict(picture), "path": picture.path.name} for picture in self.first],
        }


def has_pictures(folder: Path) -> bool:
    """Whether a folder is one of pictures."""
    if not folder.is_dir():
        return False
    if any(file.suffix.lower() in SUFFIXES for file in folder.iterdir()):
        return True
    table = folder / METADATA  # of pictures in folders below
    if not table.is_file():
        return False
    with table.open("rb") as file:
        return b'"file_name"' in file.read(_HEAD_BYTES)


def list_pictures(folder: Path) -> PictureReport:
    """The pictures with a caption, none of them opened.

    Raises:
        UsageError: no such folder, no picture in it, or metadata.jsonl cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give one of pictures with their captions.")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    table = folder / METADATA
    by_table = table.is_file()
    captions, problems = _from_table(table) if by_table else ({}, [])
    if not files and not captions:
        suffixes = ", ".join(sorted(SUFFIXES))
        raise UsageError(f"{folder} holds no picture ({suffixes}): give a folder that does.")
    for name in sorted(set(captions) - {file.name for file in files}):
        if (folder / name).suffix.lower() in SUFFIXES and (folder / name).is_file():
            files.append(folder / name)  # of a folder below
        else:
            problems.append(f"{name} of {METADATA} is not there.")
    pictures = list[Picture]()
    for file in files:
        name = file.relative_to(folder).as_posix()
        caption = captions.get(name, "") if by_table else _text_caption(file)
        if caption:
            pictures.append(Picture(path=file, caption=caption))
        else:
            place = METADATA if by_table else f"{file.stem}.txt beside it"
            problems.append(f"{name} has no caption: write it into {place}.")
    where = METADATA if by_table else "text files"
    return PictureReport(
        path=folder, captions=where, pictures=tuple(pictures), problems=tuple(problems)
    )


def open_all(pictures: Iterable[Picture]) -> tuple[list[Picture], list[str]]:
    """Decode each: those that can be, with their sizes, and a sentence for each other one."""
    good, problems, load = list[Picture](), list[str](), loader()
    for picture in pictures:
        try:
            image = load(picture.path)
        except ValueError as error:
            problems.append(str(error))
        else:
            good.append(replace(picture, width=image.width, height=image.height))
    return good, problems


def examine_pictures(folder: Path) -> PictureReport:
    """Everything in a folder of pictures, each of them decoded.

    Raises:
        UsageError: as `list_pictures`.
        HostError: Pillow is missing.
    """
    listed = list_pictures(folder)
    good, problems = open_all(listed.pictures)
    return replace(listed, pictures=tuple(good), problems=(*listed.problems, *problems))


def loader() -> Callable[[Path], Any]:
    """What opens a picture, upright and in RGB; its ValueError is one sentence with the name.

    Raises:
        HostError: Pillow is missing.
    """
    try:
        pillow: Any = importlib.import_module("PIL.Image")  # not every caller opens pictures
        operations: Any = importlib.import_module("PIL.ImageOps")
    except ImportError as error:
        raise HostError(f"Opening pictures needs Pillow. Next: {pip_install('pillow')}") from error

    def load(path: Path) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pillow.DecompressionBombWarning)
                with pillow.open(path) as image:
                    return operations.exif_transpose(image).convert("RGB")
        except Exception as error:  # Pillow's plugins raise what they like
            words = " ".join(str(error).replace(str(path), path.name).split()).rstrip(".")
            raise ValueError(f"{path.name} cannot be opened: {words}.") from error

    return load


def _from_table(table: Path) -> tuple[dict[str, str], list[str]]:
    """Caption by file name, and what is wrong with the rows."""
    if table.stat().st_size > _MOST_BYTES:
        raise UsageError(f"{table} is larger than {_MOST_BYTES >> 20} MiB: split the pictures up.")
    captions, problems = dict[str, str](), list[str]()
    lines = table.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
            name, caption = _row(row)
        except (ValueError, RecursionError) as error:
            problems.append(f"{METADATA} line {number}: {error}")
        else:
            captions[name] = caption
    return captions, problems


def _row(value: Any) -> tuple[str, str]:
    row = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    file_name = row.get("file_name")
    if not isinstance(file_name, str):
        raise ValueError('no "file_name"; a row is {"file_name": "a.png", "text": "what it shows"}')  # noqa: TRY004 - of a row
    name = Path(file_name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{name} lies outside the folder: move the picture into it")
    caption = next((text for key in _CAPTIONS if isinstance(text := row.get(key), str)), "")
    return name.as_posix(), caption.strip()


def _text_caption(file: Path) -> str:
    try:
        with file.with_suffix(".txt").open(encoding="utf-8-sig", errors="replace") as stream:
            return " ".join(stream.read(_MOST_LETTERS).split())
    except OSError:
        return ""

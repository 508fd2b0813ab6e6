"""What a push to the Hugging Face hub is asked, what it would change there, and what it did."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.units import format_bytes, format_some

NEW, REPLACED, SAME = "new", "replaced", "same"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_LICENSE = re.compile(r"^license:\s*[\"']?([\w.+-]{1,60})", re.MULTILINE)
_MADE_BY_THE_HUB = {".gitattributes"}
_CARD, _PLACEHOLDER = "README.md", b"THIS_FOLDER"
_MOST_OF_A_CARD = 16_000  # bytes
_LISTED = 5  # names in a sentence
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPush:
    """Where a model goes on the hub, and what may happen there."""

    push: Annotated[
        str | None,
        Option(help="Upload it to the Hugging Face hub with your token.", metavar="OWNER/NAME"),
    ] = None
    """None = it is only written to its folder."""
    public: Annotated[bool, Option(help="Everybody may read the new repository.")] = False
    """Else it is private."""
    dry_run: Annotated[
        bool, Option(help="Write the folder and show what would be uploaded; upload nothing.")
    ] = False
    """The next push of the same model takes that folder, with what was changed in its card."""
    yes: Annotated[bool, Option(help="Replace files of a repository that exists.")] = False
    """Else one that has files is refused."""

    def __post_init__(self) -> None:
        check_declared(self)
        if self.push is None:
            option = next(
                (name for name in ("public", "dry_run", "yes") if getattr(self, name)), ""
            )
            if option:
                flag = option.replace("_", "-")
                raise UsageError(f"--{flag} is of a push: name a repository with --push.")
        elif not _REPOSITORY.fullmatch(self.push):
            raise UsageError(f"--push {self.push!r}: give OWNER/NAME, as on the hub.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of the folder, beside what the repository has under its name."""

    path: str
    """In the folder and in the repository."""
    bytes: int
    """Of what is uploaded."""
    state: str
    """``new``, ``replaced``, or ``same``: not sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push would do, or did."""

    repository: str
    """OWNER/NAME."""
    url: str
    """Its page."""
    user: str
    """Whose token it was."""
    exists: bool
    """Whether the repository was there before."""
    public: bool
    """Whether everybody may read it."""
    license: str
    """As the card's header has it."""
    files: tuple[HubFile, ...]
    """By name."""
    stays: tuple[str, ...]
    """Files of the repository that are left as they are."""
    commit: str | None
    """Of the upload; None = nothing was uploaded."""

    @property
    def bytes(self) -> int:
        """Of all files that are sent."""
        return sum(file.bytes for file in self.files if file.state != SAME)

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        files = [asdict(file) for file in self.files]
        return {**asdict(self), "files": files, "stays": list(self.stays), "bytes": self.bytes}


def check_owner(repository: str, look: Mapping[str, Any]) -> None:
    """UsageError if the token's user cannot own a repository of that name.

    `look` is what the hub says: see worker/hub.py.
    """
    owner = repository.partition("/")[0]
    names = [look["user"], *look["organisations"]]
    if owner.lower() not in {name.lower() for name in names}:
        reason = "exists and is not yours" if look["exists"] else "cannot be made"
        name = repository.partition("/")[2]
        raise UsageError(
            f"{repository} {reason}: it is of {owner}, and the token of {look['user']}. "
            f"Next: --push {look['user']}/{name}"
        )


def compare(folder: Path, push: HubPush, look: Mapping[str, Any]) -> Pushed:
    """What pushing `folder` would change, by the hub's own hashes of what is there."""
    assert push.push is not None
    there: dict[str, dict[str, Any]] = {file["path"]: file for file in look["files"]}
    files = [_compared(folder, path, push.push, there.get(path)) for path in files_of(folder)]
    sent = {file.path for file in files}
    return Pushed(
        repository=push.push,
        url=look["url"],
        user=look["user"],
        exists=look["exists"],
        public=not look["private"] if look["exists"] else push.public,
        license=license_of(folder),
        files=tuple(files),
        stays=tuple(sorted(set(there) - sent - _MADE_BY_THE_HUB)),
        commit=None,
    )


def check_replaced(plan: Pushed, push: HubPush) -> None:
    """UsageError if more would happen than was asked for."""
    if plan.exists and plan.public and not push.public:
        raise UsageError(
            f"{plan.repository} exists and is public: everybody could read what is uploaded. Next: "
            "add --public, or name another repository."
        )
    if push.yes or not (plan.stays or any(file.state != NEW for file in plan.files)):
        return
    replaced = [file for file in plan.files if file.state == REPLACED]
    names = [f"{file.path} ({format_bytes(file.bytes)})" for file in replaced]
    effect = f"would replace {format_some(names, _LISTED)}" if replaced else "would replace no file"
    stays = f" and leave {len(plan.stays)} others as they are" if plan.stays else ""
    raise UsageError(
        f"{plan.repository} exists: the push {effect}{stays}. Next: add --yes, or name another "
        "repository. Its history keeps what is replaced."
    )


def files_of(folder: Path) -> list[str]:
    """What is uploaded: all files but hidden ones and links, by name."""
    names = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    return sorted(name for name in names if not any(p.startswith(".") for p in name.split("/")))


def own_content(folder: Path, path: str, repository: str) -> bytes | None:
    """What is uploaded in a file's place: the card names the repository; None = the file itself."""
    if path != _CARD:
        return None
    return (folder / path).read_bytes().replace(_PLACEHOLDER, repository.encode())


def _compared(folder: Path, path: str, repository: str, there: dict[str, Any] | None) -> HubFile:
    content = own_content(folder, path, repository)
    size = (folder / path).stat().st_size if content is None else len(content)
    state = NEW
    if there is not None:
        same = there["bytes"] == size and there["hash"] == _hash(
            folder / path, content, size, git=not there["large"]
        )
        state = SAME if same else REPLACED
    return HubFile(path=path, bytes=size, state=state)


def _hash(file: Path, content: bytes | None, size: int, *, git: bool) -> str:
    """As the hub has it: SHA-256 of a large file, git's name of a small one's content."""
    digest = hashlib.sha1(usedforsecurity=False) if git else hashlib.sha256()
    if git:
        digest.update(b"blob %d\0" % size)
    if content is not None:
        digest.update(content)
        return digest.hexdigest()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def license_of(folder: Path) -> str:
    """As the header of the folder's card has it; unknown where there is none."""
    try:
        with (folder / _CARD).open("rb") as file:
            text = file.read(_MOST_OF_A_CARD).decode(errors="replace")
    except OSError:
        return "unknown"
    match = _LICENSE.search(text.split("\n---", 1)[0]) if text.startswith("---") else None
    return match[1] if match else "unknown"

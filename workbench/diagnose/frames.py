"""Which frame of a traceback is the user's own: one answer for ranks, stacks and findings.

Standard library only, and nothing of ours is imported: the capture hook loads this file by its path
inside the rank whose script has raised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

# Of a path below one of the roots: installed packages, Python itself, hidden folders (.venv,
# .cache with a hub's remote code) and what torch.compile writes.
_INSTALLED = re.compile(
    r"(^|/)((site|dist)-packages|lib(64)?/(python|pypy)\d[^/]*|python\d+\.zip|\.[^/]+|"
    r"torchinductor_[^/]*|transformers_modules)/"
)
_NOTEBOOK = re.compile(r"^<ipython-input-|/ipykernel_\d+/")
_CELL = re.compile(r"/cell/cell_(\d+)\.py$")  # `launching.cell` writes it
_CELL_FRAME = re.compile(r'(?m)^(\s*)File "[^"\n]*/cell/cell_(\d+)\.py", line (\d+)')
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
# The hook's folder, whose frames are never the user's; earlier versions had it in `launch`.
_CAPTURE_FOLDERS = tuple(
    os.path.join("workbench", package, "capture") + os.sep for package in ("launching", "launch")
)
# Distributions that stay libraries when they are installed from a checkout (`pip install -e`).
_LIBRARIES = {
    name.replace("-", "_"): name.replace("-", "_")
    for name in (
        *("torch", "torchvision", "torchaudio", "torchdata", "torchao", "torchtune", "torchtitan"),
        *("transformers", "accelerate", "datasets", "tokenizers", "safetensors", "evaluate"),
        *("diffusers", "peft", "trl", "timm", "sentence-transformers", "huggingface-hub"),
        *("deepspeed", "lightning", "flash-attn", "xformers", "bitsandbytes", "apex", "litgpt"),
        *("numpy", "scipy", "pandas", "wandb", "mlflow", "jax", "keras", "unsloth", "axolotl"),
    )
} | {
    "pytorch_lightning": "pytorch_lightning",
    "megatron_core": "megatron",
    "transformer_engine": "transformer_engine",
    "nemo_toolkit": "nemo",
    "training_workbench": "workbench",
    "scikit_learn": "sklearn",
    "tensorflow": "tensorflow",
}


@dataclass(frozen=True, slots=True)
class CodeTree:
    """Where the code of one script lies, and where that of others."""

    roots: tuple[str, ...] = ()
    """Folders of the script: its own, its package, its project, the working directory."""
    libraries: tuple[str, ...] = ()
    """Folders below them that belong to others: checkouts of known libraries, Python itself."""
    script_folder: str = ""
    """Paths below it are shown relative to it."""

    def owns(self, path: str) -> bool:
        """Whether the file at `path` belongs to the script's own tree."""
        if _NOTEBOOK.search(path):
            return True
        if path.startswith("<") or _is_capture(path):
            return False
        for root in self.roots:
            if path.startswith(root) and not _INSTALLED.search(path[len(root) :]):
                return not any(
                    path.startswith(library)
                    for library in self.libraries
                    if len(library) > len(root)
                )
        return False

    def is_library(self, path: str) -> bool:
        """Whether it is certainly not the user's: installed, Python's own, or ours."""
        if path.startswith("<") or _is_capture(path):
            return not _NOTEBOOK.search(path)
        in_libraries = any(path.startswith(library) for library in self.libraries)
        return not self.owns(path) and (in_libraries or _INSTALLED.search(path) is not None)

    def user_frame(self, paths: Sequence[str]) -> int | None:
        """Index of the deepest frame of the script's own tree; `paths` outermost first.

        Without one it is the deepest that is no library's, say of a package on PYTHONPATH; None
        where all belong to libraries.
        """
        at = range(len(paths) - 1, -1, -1)
        own = next((n for n in at if self.owns(paths[n])), None)
        return (
            own if own is not None else next((n for n in at if not self.is_library(paths[n])), None)
        )

    def display_path(self, path: str) -> str:
        """``models/gpt.py`` below the script's folder, else the file's name."""
        inside = self.script_folder and path.startswith(self.script_folder)
        return path[len(self.script_folder) :] if inside else os.path.basename(path)


UNKNOWN_TREE = CodeTree()
"""Of a script that nothing is known of: what is no library's is the user's."""


def code_tree(code: Mapping[str, Any] | None) -> CodeTree:
    """The tree of a script from what its rank wrote of itself (``code`` of the start record)."""
    code = code or {}
    listed: list[Any] = code.get("packages") or []
    packages = [name for name in listed if isinstance(name, str)]
    folder, script = _text(code, "working_directory"), _script(code, packages)
    script_folder = os.path.dirname(script)
    editable = _editable(packages)
    roots = [script_folder, _package(script), folder, _project(script_folder), _project(folder)]
    roots += [path for name, path in editable if name not in _LIBRARIES]
    libraries = [
        os.path.join(path, source, _LIBRARIES[name])
        for name, path in editable
        if name in _LIBRARIES
        for source in ("", "src")
    ]
    libraries += [_text(code, "standard_library"), *packages]
    return CodeTree(
        roots=tuple(sorted(_folders(roots), key=len, reverse=True)),
        libraries=tuple(folder for folder in _folders(libraries) if not script.startswith(folder)),
        script_folder=next(iter(_folders([script_folder])), ""),
    )


def _is_capture(path: str) -> bool:
    return any(folder in path for folder in _CAPTURE_FOLDERS)


def _text(code: Mapping[str, Any], name: str) -> str:
    value = code.get(name)
    return value if isinstance(value, str) else ""


def _folders(paths: Sequence[str]) -> list[str]:
    """Absolute, with a slash at their ends, as written and resolved; never the root of all."""
    forms = [form for path in paths if path for form in (path, os.path.realpath(path))]
    return list(dict.fromkeys(os.path.join(folder, "") for folder in forms if folder.strip("/")))


def _script(code: Mapping[str, Any], packages: Sequence[str]) -> str:
    """The file that was started; of ``-m name`` it is looked for as Python would."""
    folder, script = _text(code, "working_directory"), _text(code, "script")
    if script:
        return os.path.normpath(os.path.join(folder, script))
    parts = _text(code, "module").split(".")
    for place in (folder, *packages) if parts[0] else ():
        for tail in ([*parts[:-1], f"{parts[-1]}.py"], [*parts, "__main__.py"]):
            path = os.path.join(place, *tail)
            if os.path.isfile(path):
                return path
    return ""


def _package(script: str) -> str:
    """The outermost package that the script is a module of; "" for a plain script."""
    folder = os.path.dirname(script)
    top = ""
    while folder.strip("/") and os.path.isfile(os.path.join(folder, "__init__.py")):
        top, folder = folder, os.path.dirname(folder)
    return top


def _project(folder: str) -> str:
    """The checkout or project that a folder lies in; "" without one, and for installed packages."""
    while folder.strip("/") and not _INSTALLED.search(os.path.join(folder, "")):
        if any(os.path.exists(os.path.join(folder, name)) for name in _PROJECT_FILES):
            return folder
        folder = os.path.dirname(folder)
    return ""


def _editable(packages: Sequence[str]) -> list[tuple[str, str]]:
    """Distributions that are installed from a checkout (PEP 610), with its folder."""
    mappings: list[tuple[str, str]] = []
    for place in packages:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            kind = name.rpartition(".")[2]
            if kind in {"dist-info", "egg-link"}:
                path = _checkout(os.path.join(place, name), kind)
                if path:
                    mappings.append((_normal(name), path))
    return mappings


def _normal(name: str) -> str:
    return re.split(r"-\d|\.(?:dist-info|egg-link)$", name)[0].lower().replace("-", "_")


def _checkout(path: str, kind: str) -> str:
    try:
        with open(path if kind == "egg-link" else os.path.join(path, "direct_url.json")) as file:
            text = file.read(10_000)
    except (OSError, ValueError):
        return ""
    if kind == "egg-link":
        return text.partition("\n")[0].strip().removesuffix("/src")
    local = re.search(r'"url":\s*"file://([^"]+)"', text)
    return local[1] if local and re.search(r'"editable":\s*true', text) else ""


def place(tree: CodeTree, path: str, line: int) -> str:
    """``models/gpt.py:31``; of a notebook's cell ``cell [12], line 3``."""
    cell = _CELL.search(path)
    return f"cell [{cell[1]}], line {line}" if cell else f"{tree.display_path(path)}:{line}"


def with_cells(traceback: str) -> str:
    """A traceback whose frames of a notebook's cell are told as people see them."""
    return _CELL_FRAME.sub(r"\1cell [\2], line \3", traceback)


@dataclass(frozen=True, slots=True)
class Line:
    """One frame of a traceback."""

    path: str
    line: int
    function: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class ChainedException:
    """One exception of a chain."""

    kind: str
    message: str
    frames: tuple[Line, ...] = ()
    """Outermost first."""
    relation: str = ""
    """How it is tied to the one before it in the chain; "" for the outermost."""
    followed: bool = True
    """Whether it leads to the root cause: not one that was only being handled."""

    @property
    def text(self) -> str:
        """``KeyError: 'x'``."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


CAUSED_BY, HANDLING = "caused by", "while handling"
IN_PROCESS, IN_GROUP = "in another process", "in its group"
TRACEBACK = "Traceback (most recent call last):"
"""With which Python begins to print one."""
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)(?:, in (.+))?$')
_RAISED = re.compile(r"^((?:[\w]+\.)*[A-Za-z_]\w*)(?:: (.*))?$")


def parse_traceback(text: str) -> list[ChainedException]:
    """The exceptions of the last traceback printed in `text`, outermost first; [] without one."""
    blocks = text.split(TRACEBACK)
    if len(blocks) < 2:
        return []
    raised: list[ChainedException] = []
    joined = False
    for before, block in zip(reversed(blocks[:-1]), reversed(blocks[1:]), strict=True):
        error = _block(block)
        if error is None or (raised and not joined):
            break
        relation = "" if not raised else CAUSED_BY
        tail = before.rstrip()[-120:]
        joined = tail.endswith(("direct cause of the following exception:", "exception occurred:"))
        raised.append(replace(error, relation=relation))
    return raised


def _block(text: str) -> ChainedException | None:
    """Frames and the exception below them, as Python prints them, at any indentation."""
    frames: list[Line] = []
    for number, raw in enumerate(lines := text.splitlines()):
        match = _FRAME.match(raw)
        if match:
            below = lines[number + 1].strip() if number + 1 < len(lines) else ""
            source = "" if _FRAME.match(below) or _RAISED.match(below) else below
            frames.append(Line(match[1], int(match[2]), match[3] or "<module>", source))
            continue
        raised = _RAISED.match(raw.strip()) if frames and not raw.startswith("    ") else None
        if raised and ("Error" in raised[1] or raised[2] is not None or "." in raised[1]):
            return ChainedException(raised[1].rpartition(".")[2], raised[2] or "", tuple(frames))
    return None


@dataclass(frozen=True, slots=True)
class Failure:
    """A chain of exceptions with the line that is to be looked at."""

    chain: tuple[ChainedException, ...]
    """Outermost first."""
    at: Line | None
    """The user's line."""
    where: str | None
    """``train.py:31 in main``."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form, as the end record of a rank has it."""
        at = self.at
        return {
            "where": self.where,
            "frame": at and {"path": at.path, "line": at.line, "source": at.source[:200]},
            "chain": [
                {"exception": error.text[:1000], "relation": error.relation}
                for error in self.chain[:12]
            ],
        }


def failure(chain: Sequence[ChainedException], tree: CodeTree) -> Failure:
    """Name the line: of the innermost exception that leads to the cause and has a user's frame."""
    own: Line | None = None
    for error in chain:
        at = tree.user_frame([frame.path for frame in error.frames]) if error.followed else None
        if at is not None and (own is None or tree.owns(error.frames[at].path)):
            own = error.frames[at]
    if own is None:
        own = next((error.frames[-1] for error in chain if error.frames), None)
    where = own and f"{place(tree, own.path, own.line)} in {own.function}"
    return Failure(tuple(chain), own, where)

"""Whether the weights in a model's folder are all there: seen before any rank loads them."""

from __future__ import annotations

import json
from pathlib import Path

from workbench.errors import UsageError
from workbench.recover.contents import why_broken

_SINGLE = "model.safetensors"


def check_weights(model: str) -> None:
    """Refuse a folder whose safetensors are missing or cut short, as a broken download leaves them.

    Of a hub name nothing is seen, nor of weights of another kind.

    Raises:
        UsageError: the first file that is wrong, and how to get it.
    """
    folder = Path(model).expanduser()
    index = folder / f"{_SINGLE}.index.json"
    if (folder / _SINGLE).exists():  # what transformers takes where there are both
        names = {_SINGLE}
    elif index.is_file():
        try:
            names = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
            raise _incomplete(model, f"{index.name} cannot be read") from None
    else:
        return
    problems = [problem for name in sorted(names) if (problem := _problem(folder, name))]
    if problems:
        more = f", and {len(problems) - 1} more of its {len(names)} files"
        raise _incomplete(model, problems[0] + (more if len(problems) > 1 else ""))


def _incomplete(model: str, problem: str) -> UsageError:
    return UsageError(
        f"--model {model}: {problem}. Copy the folder again, or download it: "
        "hf download OWNER/NAME --local-dir FOLDER."
    )


def _problem(folder: Path, name: str) -> str:
    path = (folder / name).resolve()  # the hub's cache has links
    if not path.is_file():
        return f"{name} is missing"
    with path.open("rb") as file:
        if file.read(20) == b"version https://git-":
            return f"{name} is a pointer of Git LFS, which git lfs pull replaces by the file"
    wrong = why_broken(path).removeprefix(f"{path.name} ")
    return f"{name} {wrong}" if wrong else ""

"""Which functions of NVML the workbench calls, by the names that the driver's library has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import workbench

_ROOT = Path(workbench.__file__).parent.parent
_CALLED = re.compile(r"\b(nvml(?:Init|System|Device|Event)\w+|nvmlInit)\b")


def called_symbols() -> frozenset[str]:
    """Every one that is named in the engine or the widgets, looked up in nvidia-ml-py."""
    import pynvml

    found = set[str]()
    for folder in ("workbench", "widgets"):
        for path in (_ROOT / folder).rglob("*.py"):
            found |= set(_CALLED.findall(path.read_text(encoding="utf-8")))
    names = {name for name in found if callable(getattr(pynvml, name, None))}
    symbols = {"nvmlDeviceGetMemoryInfo_v2"} if "nvmlDeviceGetMemoryInfo" in names else set[str]()
    while names:
        source = inspect.getsource(getattr(pynvml, names.pop()))
        symbols |= set(re.findall(r'FunctionPointer\("(\w+)"\)', source))
        inner = re.findall(r"(?:return |^    )(nvml\w+)\(", source, re.MULTILINE)
        names |= {one for one in inner if one != "nvmlStructToFriendlyObject"}
    return frozenset(symbols)

"""YAML for people: block style, texts of several lines as they are, a comment on top.

PyYAML comes with accelerate and JupyterLab; JSON would be valid YAML, but nobody reads shell lines
in one JSON string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.errors import HostError, pip_install

_BREAKS = "\x85\u2028\u2029"


def yaml_text(document: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """The document as YAML 1.1 that YAML 1.2 readers read alike, below `comments`.

    Raises:
        HostError: PyYAML is missing.
    """
    try:
        import yaml  # noqa: PLC0415  (not a dependency of the core)
    except ImportError:
        raise HostError(
            f"Writing YAML needs PyYAML. Install it: {pip_install('pyyaml')} (it comes with "
            "training-workbench[train])."
        ) from None

    class Dumper(yaml.SafeDumper):
        """Texts of several lines in literal style."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        if any(char in value for char in _BREAKS):  # YAML takes them for ends of lines
            style = '"'
        return dumper.represent_scalar(  # pyright: ignore[reportUnknownMemberType]
            "tag:yaml.org,2002:str", value, style=style
        )

    Dumper.add_representer(str, text)
    body = yaml.dump(dict(document), Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return "".join(f"# {' '.join(line.split())}\n" for line in comments) + body

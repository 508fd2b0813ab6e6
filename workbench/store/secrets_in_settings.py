"""Secrets in files of settings (YAML, TOML, INI, ``.env``, JSON, shell), and in changes of them.

There a value needs no quotes: it ends with its line, or stands in the lines below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from workbench.store.secrets import HIDDEN, SECRET_WORDS, hide_bytes, is_secret, looks_drawn
from workbench.store.secrets_in_code import hide_assigned_words, hide_in_code

_CODE = {
    *(".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".go", ".rs", ".java"),
    *(".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".html", ".css", ".svg", ".lua", ".r", ".inc"),
    *(".jl", ".rb", ".php", ".kt", ".scala", ".swift", ".pyx", ".pxd", ".proto"),
}
_PROSE = {".md", ".rst", ".ipynb"}
_SIGN = re.compile(
    "|".join(sorted({*SECRET_WORDS, "key", "pass"})), re.IGNORECASE
)  # in each secret's name
_NAME = r"(?<!\w)(?P<name>[A-Za-z_][\w.-]{0,100})"
_IN_QUOTES = re.compile(
    rf"{_NAME}(?P<between>(?:\\?[\"'])?\]?\s*[:=]\s*)(?P<quote>\\?[\"'])"
    r"(?P<value>(?:(?!(?P=quote))(?:\\.|[^\\\n]))+)(?P=quote)"
)
_IN_THREE_QUOTES = re.compile(
    rf"{_NAME}(?P<between>\s*=\s*)(?P<quote>\"\"\"|''')(?P<value>.*?)(?P=quote)", re.DOTALL
)
_IN_BRACES = re.compile(
    rf"(?<=[{{,])(?P<before>\s*[\"']?){_NAME}(?P<between>[\"']?\s*:\s*)"
    r"(?P<value>[^\s\"',{}\[\]][^\"',{}\[\]\n]*)(?=[,}])"
)
_OPTION = re.compile(r"(?<![\w-])--(?P<name>[A-Za-z][\w-]{0,100})[ \t]+(?P<value>[^\s\"'\\-]\S*)")
# Before the name: the mark of a diff or the head of its hunk, the dashes of a list, and the words
# with which shells and Dockerfiles set a variable.
_LINE = re.compile(
    r"(?:@@ -[\d, +]+ @@ ?|[+ -])?\s*(?:-\s+)*(?:(?:export|ENV|ARG|set)\s+)?[\"']?"
    rf"{_NAME}(?P<between>[\"']?\s*(?::=|[:=])\s*)"
    r"(?P<value>.*?)(?P<after>,?\s*(?:(?:^|\s)[#;].*)?)"
)
_LONGEST_LINE = 4096  # a longer one is minified: quotes and braces enclose its values
_QUOTED = re.compile(r"([\"'])((?:\\.|\1\1|(?!\1).)*)\1")
_SCALAR = re.compile(
    r"(?:[!&]\S+\s+)*[|>][\d+-]*"
)  # YAML: all lines below that are indented deeper
_BELOW = re.compile(r"([+-]?\s*(?:-\s+)?)(.*)")
# What says where a secret is: ${X}, $X, $(cat file), {{ x }}, <x>, %(x)s, an alias or tag of YAML
_REFERENCE = re.compile(
    r"\$\{[\w.:]+\}|\$[A-Z_][A-Z0-9_]*|\$\(.*\)|\{\{.*\}\}|<[^<>]*>|%\(\w+\)s|\*\w+|!\w+\s.*"
)
_COUNT = re.compile(r"[\d.eE+-]{1,7}")  # token_types: 2


def hide_in_file(name: str, data: bytes) -> bytes:
    """A file's content without the secrets that its kind, told by its name, can hold.

    Also of a part of a file, as in a diff.
    """
    kind = PurePosixPath(name).suffix.lower()
    if kind in {".py", ".pyi"}:
        return _encoded(hide_in_code(_decoded(data)))
    text = _decoded(hide_bytes(data))
    if kind in _CODE:
        return _encoded(_IN_QUOTES.sub(_hide_match, text))
    return _encoded(_hide_inside(text) if kind in _PROSE else hide_in_settings(text))


def hide_in_settings(text: str) -> str:
    r"""The text without the values of its secret names, quoted or not.

    >>> hide_in_settings("lr: 0.1\npassword: two words  # mine")
    'lr: 0.1\npassword: [redacted]  # mine'
    >>> hide_in_settings("HF_TOKEN=${HF_TOKEN}")
    'HF_TOKEN=${HF_TOKEN}'
    """
    return "\n".join(_lines(_IN_THREE_QUOTES.sub(_hide_lines, text).split("\n")))


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _lines(lines: list[str]) -> Iterator[str]:
    below: int | None = None  # column of a secret's name whose value stands in the lines below it
    scalar = False  # all of them are its value
    entry = ""  # the name in `name: X`, before `value: …`
    for line in lines:
        if below is None and not entry and not _SIGN.search(line):
            yield line
            continue
        match = _LINE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        column = len(line) - len(line.lstrip("+- \t"))
        if below is not None and line[1:].strip() and column <= below:
            below = None
        if below is not None and (scalar or match is None):
            yield _BELOW.sub(rf"\1{HIDDEN}", line, count=1) if line[1:].strip() else line
            continue
        name, value = (match["name"], match["value"]) if match else ("", "")
        named = entry if name == "value" else name
        entry = value.strip("\"'") if name == "name" else ""
        scalar = _SCALAR.fullmatch(value) is not None
        if match and (scalar or not value) and _is_value(named, "x"):
            below = 1 if line.startswith("@@") else match.start("name")
            yield line
        elif match and value not in {"{", "["} and _is_value(named, value.strip("\"'")):
            yield _hide_value(line, match)
        else:
            yield _hide_inside(line)


def _hide_value(line: str, match: re.Match[str]) -> str:
    """A line whose value is a secret; of one in quotes what is between them."""
    before, value = line[: match.start("value")], line[match.start("value") :]
    quoted = _QUOTED.match(value)
    if quoted:
        return f"{before}{quoted[1]}{HIDDEN}{quoted[1]}{_hide_inside(value[quoted.end() :])}"
    mark = '"' if match["between"].startswith('"') else ""  # a number of JSON
    return f"{before}{mark}{HIDDEN}{mark}{match['after']}"


def _hide_inside(text: str) -> str:
    """Only what stands in quotes or braces, or is one word."""
    for pattern in (_IN_QUOTES, _IN_BRACES):
        text = pattern.sub(_hide_match, text)
    return hide_assigned_words(_OPTION.sub(_hide_match, text))


def _hide_match(match: re.Match[str]) -> str:
    if not _is_value(match["name"], match["value"]):
        return match[0]
    begin, end = (match.start("value") - match.start(), match.end("value") - match.start())
    return f"{match[0][:begin]}{HIDDEN}{match[0][end:]}"


def _hide_lines(match: re.Match[str]) -> str:
    """Of several lines each; in a diff their marks stay."""
    if not _is_value(match["name"], match["value"]):
        return match[0]
    hidden = re.sub(r"(?m)^(?![+-]$)([+-]?).+$", rf"\1{HIDDEN}", match["value"])
    return f"{match['name']}{match['between']}{match['quote']}{hidden}{match['quote']}"


def _is_value(name: str, value: str) -> bool:
    """Whether it is a secret itself, and does not say where one is."""
    if value == HIDDEN or not is_secret(name, value) or _REFERENCE.fullmatch(value):
        return False
    if name.lower() in {"key", "x-key"}:  # often of what is no secret
        return looks_drawn(value)
    return not _COUNT.fullmatch(value) or bool(re.search("pass|pwd", name.lower()))

"""Secrets in source code: hidden where they are, and nothing else is changed."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

import workbench
from workbench.store.secrets_in_code import hide_in_code, lines_with_secrets

DRAWN = "c0ffee11Badd4eCafe77"
COMMIT = "ab12cd34ef" * 4
NAMES = ("token", "api_key", "key", "password", "authorization", "HF_TOKEN", "secret", "hub_token")
WITHOUT = (
    *("read(path)", "options.token", "tokens[0]", "x or y", "''", "None", "b''"),
    *("'<s>'", "'<pad>'", "f'{token}'", "f'Bearer {token}'", "'%s'", "os.environ['HF_TOKEN']"),
)
FORMS = (
    *(
        "{name} = {value}",
        "if {name} == {value}: pass",
        "f({name}={value})",
        "x[{name!r}] = {value}",
    ),
    *("x = {{{name!r}: {value}}}", "def f({name}={value}): pass", "{name}: object = {value}"),
    *("{name}=={value}", "x = a;{name}={value}", "assert {name} != {value}  # {name}===…"),
    *("{name} = {value}  # https://host/?{name}={name}&x=1", "f({name!r}, {value})"),
)
HOLD = (
    *(
        "{name} = {value!r}",
        "f({name}={value!r})",
        "x[{name!r}] = {value!r}",
        "x = {{{name!r}: {value!r}}}",
    ),
    *(
        "def f({name}: str = {value!r}): pass",
        "if {name} == {value!r}: pass",
        "f({name!r}, {value!r})",
    ),
    *(
        "x = 1  # {name}={value}",
        "x = 'https://host/a?{name}={value}'",
        "add('--{name}', default={value!r})",
    ),
    *("x = f'{{y}} {name}: {value} {{z}}'", '"""Call with {name}={value}, then go."""'),
)


@pytest.mark.parametrize("form", FORMS)
def test_code_without_a_secret_is_exact(form: str) -> None:
    for name, value in itertools.product(NAMES, WITHOUT):
        line = form.format(name=name, value=value)
        ast.parse(line)
        assert hide_in_code(line) == line
        assert lines_with_secrets(line) == []


@pytest.mark.parametrize("form", HOLD)
def test_a_secret_is_hidden_and_the_code_is_code(form: str) -> None:
    for name in NAMES:
        text = f"import os\n\n{form.format(name=name, value=DRAWN)}\n"
        hidden = hide_in_code(text)
        assert DRAWN not in hidden
        ast.parse(hidden)
        assert hidden.replace("[redacted]", DRAWN) == text
        assert lines_with_secrets(text) == [3]


@pytest.mark.parametrize(
    "line",
    [
        f'load("model", revision="{COMMIT}")  # wandb logs it',
        f"HASHES = {{'model.bin': '{COMMIT}'}}",
        "hf_ThisIsAnIdentifierOfOurs = sk-a_difference_of_two_names_as_it_is",
        "url = 'postgres://{}:{}@{}/x'.format(user, password, host)",
        "headers = {'Authorization': 'Bearer ' + token, 'Cookie': jar.text()}",
        "__all__ = ['TokenClassificationOutput', 'SpaceStage', 'AuthenticationError']",
        "help='mailtos://USER:PASSWORD@HOST?to=NAME@HOST'",
    ],
)
def test_what_only_looks_like_one_stays(line: str) -> None:
    assert hide_in_code(line) == line


@pytest.mark.parametrize(
    "line",
    [
        f'wandb.login(key="{COMMIT}")',
        f"import wandb; mine = '{COMMIT}'",
        f"headers = {{'Authorization': 'Bearer {DRAWN}'}}",
        f"x = 'postgres://me:{DRAWN}@host/x'",
        f"# an old one: hf_{DRAWN * 2}",
        f'"""\nhf_{DRAWN * 2}\n"""',
        f"+    api_key = '{DRAWN}'",
    ],
)
def test_keys_by_their_shape_are_hidden(line: str) -> None:
    assert "[redacted]" in hide_in_code(line)
    assert DRAWN not in hide_in_code(line)


def test_the_environments_own_secrets_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.store import secrets

    monkeypatch.setenv("MY_PASSWORD", "correct horse")
    secrets.known_values.cache_clear()
    assert hide_in_code("x = 'correct horse'\ncorrect.horse()") == (
        "x = '[redacted]'\ncorrect.horse()"
    )
    monkeypatch.undo()
    secrets.known_values.cache_clear()


def test_our_own_sources_are_exact() -> None:
    for path in (Path(workbench.__file__).parent / "recipes").glob("*.py"):
        text = path.read_text()
        assert hide_in_code(text) == text

"""A text of arguments and the fields beside it: each follows the other, and nothing else moves."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import workbench as wb
from workbench.script_options.checks import problem_of
from workbench.script_options.typed_arguments import given_in, words_in
from workbench.script_options.typed_text import Value, is_list, values_in, with_value
from workbench.script_options.values import ScriptOption, options_of

OPTIONS = [
    ScriptOption(names=("data",)),
    ScriptOption(names=("-n", "--num-steps"), kind="integer"),
    ScriptOption(names=("--lr",), kind="number"),
    ScriptOption(names=("--name",)),
    ScriptOption(names=("--kind",), choices=("a", "b")),
    ScriptOption(names=("--names",), most=None),
    ScriptOption(names=("--betas",), kind="number", least=2, most=2),
    ScriptOption(names=("--tag",), repeated=True),
    ScriptOption(names=("--bf16",), kind="switch", least=0, most=0, default=False),
    ScriptOption(
        names=("--compile", "--no-compile"), off=("--no-compile",), kind="switch", least=0, most=0
    ),
    ScriptOption(names=("--fp16",), kind="switch", least=0, most=1, default=False),
]
KNOWN = options_of(OPTIONS, positionals=True)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
PLAIN = WORDS.filter(lambda word: not word.startswith("-"))


def value_for(option: ScriptOption) -> st.SearchStrategy[Value]:
    if option.is_switch:
        return st.booleans()
    if option.choices:
        return st.sampled_from(option.choices)
    if option.kind in {"integer", "number"} and not is_list(option):
        number = st.integers() if option.kind == "integer" else st.floats(allow_nan=False)
        return number.map(str)
    if option.most == 2:
        return st.lists(st.floats(0, 1), min_size=2, max_size=2).map(
            lambda pair: " ".join(map(str, pair))
        )
    if is_list(option):
        return st.lists(PLAIN, min_size=1, max_size=3).map(shlex.join)
    return PLAIN if option.is_word else WORDS


SETTINGS = st.lists(
    st.sampled_from(OPTIONS).flatmap(
        lambda option: st.tuples(st.just(option), st.none() | value_for(option))
    ),
    max_size=6,
)
UNKNOWN = st.sampled_from(["", "--foo", "--foo=1", "--foo 'a  b'", '--extra "x y" --foo'])


@given(UNKNOWN, SETTINGS)
@example("--foo", [(OPTIONS[0], "x"), (OPTIONS[2], "-1e-4"), (OPTIONS[0], None)])
def test_what_a_field_says_is_what_the_text_says(
    unknown: str, settings: list[tuple[ScriptOption, Value | None]]
) -> None:
    text, wanted = unknown, dict[str, Value]()
    for option, value in settings:
        try:
            changed = with_value(text, KNOWN, option.name, value)
        except wb.UsageError as error:
            assert option.name in str(error)  # noqa: PT017 - either is right
            continue
        wanted.pop(option.name, None)
        if value is not None and not (option.default is False and value is False):
            wanted[option.name] = value
        text = changed
        assert values_in(text, KNOWN) == wanted
        assert unknown in text  # to the character
    for option in OPTIONS[1:]:  # and back
        text = with_value(text, KNOWN, option.name, None)
    assert values_in(text, KNOWN).keys() <= {"data"}


@given(st.lists(WORDS, max_size=6))
def test_words_are_those_of_a_shell(words: list[str]) -> None:
    text = "  ".join(map(shlex.quote, words))
    found = words_in(text)
    assert [word for word, _, _ in found] == words
    assert [shlex.split(text[start:end])[0] for _, start, end in found] == words


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert [one[0] for one in words_in(text)] == shlex.split(text)
        values_in(text, KNOWN)
        assert all(one.start < one.end for one in given_in(text, KNOWN))
    except wb.UsageError as error:
        assert "cannot be read" in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize(
    ("text", "name", "value", "changed"),
    [
        ("--lr 1  --x 'a  b'", "--lr", "2", "--lr 2  --x 'a  b'"),
        ("--lr=1 --bf16", "--lr", "2", "--lr=2 --bf16"),
        ("-n5 x", "--num-steps", "7", "-n7 x"),
        ("--num 5", "--num-steps", "7", "--num 7"),
        ("--lr 1 --lr 2", "--lr", "3", "--lr 3"),
        ("--bf16", "--bf16", False, ""),
        ("", "--compile", False, "--no-compile"),
        ("--no-compile", "--compile", True, "--compile"),
        ("--compile", "--compile", None, ""),
        ("--bf16", "data", "my file", "'my file' --bf16"),
        ("--bf16 -- y", "--lr", "-1", "--bf16 --lr=-1 -- y"),
        ("--tag a --bf16 --tag b", "--tag", "c d", "--bf16 --tag c --tag d"),
        ("--fp16", "--fp16", False, ""),
    ],
)
def test_a_field_changes_its_own_place_alone(
    text: str, name: str, value: Value | None, changed: str
) -> None:
    assert with_value(text, KNOWN, name, value) == changed


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("--lr", "fast", "--lr is 'fast'; give a number."),
        ("--num-steps", "1.5", "--num-steps is '1.5'; give a whole number."),
        ("--kind", "c", "--kind is 'c'; choose a, b."),
        ("--betas", "0.9", "--betas takes 2 values, not 1: separate them by spaces."),
        ("--names", "'a", "Close the quotation mark"),
        ("--lr", "1e-4", ""),
        ("--betas", "0.9 0.95", ""),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(name: str, value: str, said: str) -> None:
    option = KNOWN.of(name)
    assert option is not None
    found = problem_of(option, value)
    assert said in found
    assert bool(found) == bool(said)

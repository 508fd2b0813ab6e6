"""What a resumed attempt is started with."""

from __future__ import annotations

import pytest

import workbench as wb
from workbench.launch.orders import merged


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (["--lr", "1", "--steps", "9"], ["--steps", "20"], ["--lr", "1", "--steps", "20"]),
        (["--lr=1", "--bf16"], ["--lr", "2"], ["--bf16", "--lr", "2"]),
        (["data.txt", "--names", "a", "b"], ["--names=c"], ["data.txt", "--names=c"]),
        (["--a", "1"], [], ["--a", "1"]),
        (["--a", "1"], ["--b"], ["--a", "1", "--b"]),
    ],
)
def test_options_given_anew_replace_those_of_their_name(
    old: list[str], new: list[str], found: list[str]
) -> None:
    assert merged(old, new) == found


def test_a_word_that_is_no_option_replaces_nothing() -> None:
    with pytest.raises(wb.UsageError, match="is no option"):
        merged(["--lr", "1"], ["train.txt"])

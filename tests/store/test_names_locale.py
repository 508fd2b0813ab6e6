"""Names from a command line whose locale is plain ASCII."""

import pytest

from workbench.errors import UsageError
from workbench.store.labels import check_tag
from workbench.store.names import check_name, readable


def as_ascii_locale_reads(text: str) -> str:
    """What Python makes of UTF-8 bytes in argv under LC_ALL=C without UTF-8 mode."""
    return text.encode("utf-8").decode("ascii", "surrogateescape")


@pytest.mark.parametrize("name", ["größe-日本", "naïve run", "plain"])
def test_a_name_in_utf_8_is_that_name(name: str) -> None:
    assert check_name(as_ascii_locale_reads(name)) == name


def test_bytes_that_are_not_utf_8_are_said_to_be_that() -> None:
    latin = "größe".encode("latin-1").decode("ascii", "surrogateescape")
    with pytest.raises(UsageError, match="not valid UTF-8"):
        check_name(latin)
    assert readable(latin) == latin


def test_control_characters_are_still_said_to_be_that() -> None:
    with pytest.raises(UsageError, match="control characters"):
        check_name("a\x07b")


def test_a_tag_is_read_the_same_way() -> None:
    assert check_tag(as_ascii_locale_reads("baseline")) == "baseline"
    with pytest.raises(UsageError, match="größe"):
        check_tag(as_ascii_locale_reads("größe"))

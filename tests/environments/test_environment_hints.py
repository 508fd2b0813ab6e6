"""What is said about a failed pip: its own words, as it printed them, and what is made of them."""

import errno

import pytest
from venv_setup.hints import next_step
from venv_setup.main import _cannot_write

RETRYING = (
    "WARNING: Retrying (Retry(total={left}, connect=None, read=None, redirect=None, status=None)) "
    "after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection."
    "HTTPSConnection object at 0x7f42>: Failed to establish a new connection: {why}')': "
    "/simple/{name}/"
)
NONE = "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: {})"
MISSING = "ERROR: No matching distribution found for torch==2.13.0"
TLS = (
    "ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='h', port=443): "
    "Max retries exceeded with url: /simple/hjson/ (Caused by SSLError(...))"
)


def retrying(name, why="[Errno 111] Connection refused"):
    return [RETRYING.format(left=left, why=why, name=name) for left in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([*retrying("torch"), NONE.format("none"), MISSING], "could not be reached when asked"),
        (
            [*retrying("torch", "[Errno -2] Name or service not known"), NONE.format("none"), MISSING],
            "could not be reached",
        ),
        # One of two indexes is down, and the other answered for torch with nothing that fits.
        ([*retrying("rich"), NONE.format("2.6.0, 2.7.0"), MISSING], "too old or too new"),
        ([NONE.format("none"), MISSING], "has no torch for this Python"),
        ([NONE.format("2.6.0, 2.7.0"), MISSING], "other versions of torch"),
        ([TLS], "could not be reached"),
        (["ERROR: ResolutionImpossible: for help visit …"], "exclude each other"),
        (["OSError: [Errno 28] No space left on device"], "Free some space"),
        (["OSError: [Errno 30] Read-only file system: '/x'"], "WORKBENCH_VENV"),
        (["something else"], "Read the lines above"),
    ],
)  # fmt: skip
def test_the_hint_names_the_cause(lines, word):
    assert word in next_step(lines)
    assert ("index could not" in next_step(lines)) == ("could not be reached" in word)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_place_that_cannot_be_written_is_a_sentence(number, tmp_path):
    text = _cannot_write(OSError(number, "reason", "/checkout/.venv"), tmp_path)
    assert text.startswith("/checkout/.venv cannot be written: reason.")
    assert "WORKBENCH_VENV=DIR" in text


def test_another_error_stays_an_error(tmp_path):
    with pytest.raises(OSError, match="reason"):
        _cannot_write(OSError(errno.EIO, "reason"), tmp_path)


def test_a_wheelhouse_that_lacks_a_package_is_named(monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/srv/house")
    said = next_step([NONE.format("none"), MISSING])
    assert said.startswith("/srv/house, where alone pip may look, has no torch that fits")
    assert "make wheelhouse" in said

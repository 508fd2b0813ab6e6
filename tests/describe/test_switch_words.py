"""One reader of the words for on and off, whoever wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.describe.checks import switch_of
from workbench.describe.job import Job
from workbench.describe.trainers.preset import read_value
from workbench.errors import UsageError
from workbench.trainer_configs.config_fields import Reader
from workbench.trainer_configs.document import is_off, is_on

WORDS = {True: ("true", "True", "yes", "on", "1"), False: ("false", "no", "OFF", "0")}


@pytest.mark.parametrize(
    ("text", "is_so"), [(text, is_so) for is_so, words in WORDS.items() for text in words]
)
def test_every_reader_takes_every_word(text: str, is_so: bool) -> None:  # noqa: FBT001
    assert switch_of(text) is is_so
    assert Job.of("gpt2", gpu="h100", compiled=text).workload.kernels.compiled is is_so
    assert read_value("compiled", text, {}) is is_so
    assert Reader(Path("a.yaml"), {"overlap_comm": text}).flag("overlap_comm") is is_so
    is_number = text in {"0", "1"}  # of a trainer's key: a rate, a count
    assert (is_on(text), is_off(text)) == (is_so and not is_number, not (is_so or is_number))


@pytest.mark.parametrize("text", ["2", "", "y?", "none at all"])
def test_any_other_word_is_neither(text: str) -> None:
    assert switch_of(text) is None
    with pytest.raises(UsageError, match="compiled must be True or False"):
        Job.of("gpt2", gpu="h100", compiled=text)

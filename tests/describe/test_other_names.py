"""Other tools' names of our options: each of ours exists, none of theirs is ambiguous."""

from __future__ import annotations

from collections import Counter

import pytest
from workbench_widgets.options import refuse_unknown

import workbench as wb
from workbench.cli.commands import COMMANDS, load
from workbench.describe import other_names
from workbench.describe.other_names import meant
from workbench.recipes import option_flags, recipes

ROWS = other_names._TABLE  # pyright: ignore[reportPrivateUsage]


def test_every_option_of_the_table_is_one_of_ours() -> None:
    flags = {flag for name in recipes() for flag in option_flags(name)}
    for name in COMMANDS:
        command = load(name)
        for inner in (command, *getattr(command, "commands", {}).values()):
            flags |= {flag for parameter in inner.params for flag in parameter.opts}
    unknown = {name for row in ROWS for name in row.here.split() if not {f"--{name}", name} & flags}
    assert unknown <= {"processes"}  # the keyword of a launch


def test_no_word_of_another_tool_stands_for_two_options() -> None:
    words = Counter(word for row in ROWS for word in row.there.split())
    assert not [word for word, count in words.items() if count > 1]


def test_a_word_is_read_with_any_dashes_and_letters() -> None:
    for word in ("--batch_size", "batch-size", "Batch_Size", "micro_batch"):
        assert meant(word, ["micro_batch", "seq_len"]).name == "micro_batch"  # type: ignore[union-attr]
    assert meant("--batch-size", ["--seq-len"]) is None
    assert meant("zero_stage", ["strategy"]).value == "zeroN"  # type: ignore[union-attr]


def test_python_and_the_widgets_say_it_too() -> None:
    with pytest.raises(wb.UnknownNameError, match=r"'batch_size'\. Did you mean micro_batch\?"):
        wb.Job.of("gpt2", gpu="h100", batch_size=4)
    with pytest.raises(wb.UnknownNameError, match=r"Did you mean strategy='tpN'\?"):
        wb.Job.of("gpt2", gpu="h100", tensor_parallel_size=4)
    with pytest.raises(wb.UnknownNameError, match=r"Did you mean processes\?"):
        wb.request("gpt", nproc_per_node=2)
    with pytest.raises(TypeError, match=r"Did you mean 'micro_batch'\?"):
        refuse_unknown("M", ["batch_size"], ["micro_batch", "global_batch"])

"""What a detached process says must not end it."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

from workbench.notifying.__main__ import log as of_messages
from workbench.storage.__main__ import log as of_the_mirror
from workbench.store.process_log import log
from workbench.store.secrets import HIDDEN


def test_a_full_disk_loses_the_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_the_mirror is of_messages is log
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115 - closing it fails
    monkeypatch.setattr(sys, "stdout", full)
    log("not sent")
    with contextlib.suppress(OSError):
        full.close()


def test_a_name_that_the_log_cannot_hold_loses_the_line_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    log("checkpoint größer")


def test_a_secret_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    log("refused: sk-Qd83hZ9kLm2xV7pT4wRb5nYc8")
    assert HIDDEN in capsys.readouterr().out

"""What a finding is of, in words: the same in the report and on the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.widgets.test_page_state import run
from workbench.store.findings import Finding

FINDING = Finding(kind="xid", confidence=1.0, evidence="e", cause="c", next="n")


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({}, "whole run"),
        ({"rank": 0, "gpu": 3}, "rank 0"),
        ({"gpu": 3, "node": 0}, "gpu3"),
        ({"gpu": 0, "node": 2}, "gpu0 of node 2"),
        ({"node": 2}, "node 2"),
    ],
)
def test_report_and_page_agree(tmp_path: Path, more: dict[str, int], place: str) -> None:
    finding = replace(FINDING, **more)
    assert finding.place == place
    source = f"""
        const {{ placeOf }} = await import("./findings.js");
        console.log(JSON.stringify(placeOf({json.dumps(finding.document())})));"""
    assert run(tmp_path, source) == place

"""`make bench` itself: every row runs at its smallest size, and help measures nothing."""

from __future__ import annotations

import shutil

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.rows import BENCHMARKS, Size

NEEDS = {
    "start": "accelerate",
    "warm": "accelerate",
    "arrivals": "accelerate",
    "supervisor": "accelerate",
    "paint": "selenium",
}


def test_help_and_a_wrong_name_measure_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in BENCHMARKS:
        monkeypatch.setitem(BENCHMARKS, name, lambda _: pytest.fail("was measured"))
    for arguments, code in ((["--help"], 0), (["veiw"], 2)):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == code
    seen = capsys.readouterr()
    assert "--quick" in seen.out
    assert "no row 'veiw'; choose from import, start" in seen.err


def test_a_missed_promise_is_exit_code_1_but_not_in_a_smoke_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(BENCHMARKS, "view", lambda _: iter([("p", "2 s", "<= 1 s", False)]))
    assert [main(["view"]), main(["--quick", "view"]), main(["--smoke", "view"])] == [1, 1, 0]
    assert "not judged" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "view",
        *(pytest.param(name, marks=pytest.mark.full) for name in BENCHMARKS if name != "view"),
    ],
)
def test_every_row_runs_at_its_smallest_size(name: str) -> None:
    pytest.importorskip(NEEDS.get(name, "torch"))
    if name == "paint" and shutil.which("chromedriver") is None:
        pytest.skip("not installed: chromedriver")
    rows = list(BENCHMARKS[name](Size.SMOKE))
    assert rows
    for promise, measured, bound, met in rows:
        assert promise
        assert measured
        assert isinstance(bound, str)
        assert isinstance(met, bool)

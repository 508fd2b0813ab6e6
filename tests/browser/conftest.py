"""Fixtures of the browser tests: one JupyterLab and one Chromium for the session."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("train_slowly.py")


def _missing() -> str | None:
    programs = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    modules = [
        name
        for name in ("selenium", "jupyterlab", "anywidget", "accelerate")
        if importlib.util.find_spec(name) is None
    ]
    return f"not installed: {', '.join(programs + modules)}" if programs or modules else None


MISSING = _missing()
collect_ignore = [] if MISSING is None else ["test_live.py", "test_looks.py", "test_faces.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)
            if MISSING:
                item.add_marker(pytest.mark.skip(reason=MISSING))


if MISSING is None:
    import workbench as wb
    from tests.browser.lab import Chromium, Lab, Page
    from workbench.store.processes import find_marked

    @pytest.fixture(scope="session")
    def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
        folder = tmp_path_factory.mktemp("lab")
        server = Lab(folder / "root", folder / "home")
        shutil.copy(SCRIPT, server.root / "train.py")
        yield server
        server.close()

    @pytest.fixture(scope="session")
    def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
        kept = Chromium(tmp_path_factory.mktemp("chromium"))
        yield kept
        kept.close()

    @pytest.fixture
    def page(chromium: Chromium, request: pytest.FixtureRequest) -> Iterator[Page]:
        """An empty page of the session's Chromium; scripts are cached, nothing else is kept.

        The kernels that the test started in the lab end with it.
        """
        with_lab = "lab" in request.fixturenames
        lab: Lab | None = request.getfixturevalue("lab") if with_lab else None
        yield chromium.empty_page()
        if lab is not None:
            chromium.empty_page()  # first: a page that is left may still ask for a kernel
            for kernel in lab.api("GET", "kernels"):
                lab.api("DELETE", f"kernels/{kernel['id']}")

    @pytest.fixture
    def store(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Path]:
        """A store of the test's own below the lab's root; its runs are ended afterwards."""
        folder = lab.root / f"runs-{request.node.name[:40]}"
        yield folder
        end_runs(folder)

    @pytest.fixture
    def foreign_store(tmp_path: Path) -> Iterator[Path]:
        """A store that no Jupyter serves."""
        yield tmp_path / "elsewhere"
        end_runs(tmp_path / "elsewhere")

    def end_runs(folder: Path) -> None:
        """Those that have processes: a written one would be waited for as if it were elsewhere."""
        for row in wb.runs(folder):
            run = wb.attach(row["run"], folder)
            if row["outcome"] is None and find_marked(run.document.get("marker") or "none"):
                run.stop(now=True)


def marked(marker: str) -> list[int]:
    """Processes that bear a run's marker in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found

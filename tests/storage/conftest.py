"""A real S3 server for the session, and a run to send."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compare.made_runs import make_run
from workbench.recipes import checkpoint_files
from workbench.storage import remote
from workbench.store.layout import RunPaths

ROOT = Path(__file__).resolve().parents[2]
SECRET = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"
BUCKET = "s3://pods"


class S3:
    """The server as a test sees it."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def faults(self, *faults: dict[str, Any]) -> None:
        """Ask for faults in place of earlier ones, and forget what was seen."""
        data = json.dumps(faults).encode()
        request = urllib.request.Request(f"{self.address}/__faults__", data, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()

    @property
    def seen(self) -> list[tuple[str, str, int]]:
        """(method, path, bytes) of each request since."""
        with urllib.request.urlopen(f"{self.address}/__seen__", timeout=30) as answer:
            return [tuple(one) for one in json.load(answer)]

    @property
    def written(self) -> list[str]:
        """Paths that were written since, in order."""
        return [path for method, path, _ in self.seen if method == "PUT"]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    pytest.importorskip("moto", reason="pip install -e '.[dev,storage]'")
    pytest.importorskip("s3fs", reason="pip install -e '.[dev,storage]'")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.storage.s3_server"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    yield S3(int(process.stdout.readline()))
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server with an empty bucket, found through the environment alone."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(remote, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    s3_server.faults()
    request = urllib.request.Request(f"{s3_server.address}/moto-api/reset", b"", method="POST")
    urllib.request.urlopen(request, timeout=30).close()
    urllib.request.urlopen(
        urllib.request.Request(f"{s3_server.address}/pods", b"", method="PUT"), timeout=30
    ).close()
    s3_server.faults()
    return s3_server


def save(paths: RunPaths, step: int, size: int = 300_000) -> Path:
    """A sealed checkpoint of random bytes, as the recipes publish one."""
    partial = paths.checkpoints / f"partial-{step}"
    partial.mkdir(parents=True)
    (partial / "weights.bin").write_bytes(os.urandom(size))
    (partial / "optimizer.bin").write_bytes(os.urandom(size))
    checkpoint_files.seal(partial, step=step, kind="recipe", world_size=2)
    final = paths.checkpoints / checkpoint_files.STEP.format(step)
    checkpoint_files.publish(partial, final)
    return final


@pytest.fixture
def made(tmp_path: Path) -> RunPaths:
    """An ended run with two checkpoints."""
    paths = make_run(
        tmp_path / "here",
        "gpt-2",
        steps=40,
        command=[sys.executable, "train.py"],
        environment={"WORKBENCH_RUN_DIR": str(tmp_path / "here" / "gpt-2")},
        working_directory=str(tmp_path),
    )
    (paths.logs / "rank-0.log").write_text("said\n")
    (paths.control / "stop-now").touch()
    save(paths, 10)
    save(paths, 20)
    return paths

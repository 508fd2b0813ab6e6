"""What lies at an address may have been made by anybody: it is refused, or lies inert in its place."""

from __future__ import annotations

import copy
import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.storage.conftest import save
from workbench.errors import ForeignRunError, StorageError
from workbench.launching.resume.arrival import pull
from workbench.launching.resume.resumable import startable_record
from workbench.storage.push import push
from workbench.storage.remote import Remote
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import identify
from workbench.store.runs import Store

PATHS = (
    *("../outside", "logs/../../outside", "/etc/outside", "control/stop-now", "logs//x", "./x"),
    *("logs/a\\b", "x" * 300, "logs/\x1b[2Jx", "logs/\0", "a/" * 600 + "x", "", "run.json/x"),
)


@pytest.fixture
def pushed(made: RunPaths) -> tuple[Remote, dict[str, Any]]:
    """Where the run lies, and its manifest. Its state names living processes of this machine."""
    here = identify(os.getpid())
    names = ("supervisor", "watcher", "launcher")
    state = (read_json(made.state) or {}) | dict.fromkeys(names, here) | {"ranks": {"0": here}}
    write_json_atomic(made.state, state)
    url = f"memory://{uuid.uuid4().hex}"
    push(made, url)
    there = Remote(f"{url}/gpt-2")
    return there, json.loads(there.read("manifest.json", 1 << 20))


def refused(there: Remote, document: Any, store: Path) -> str:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    there.write("manifest.json", data)
    before = sorted(store.parent.rglob("*"))
    with pytest.raises(StorageError) as error:
        pull(there.url, Store(store))
    left = {path for path in store.parent.rglob("*") if ".pulling-" not in str(path)}
    assert left - {store} == set(before) - {store}, "nothing lies anywhere else"
    return str(error.value)


@pytest.mark.parametrize("path", PATHS)
def test_a_file_lies_inside_of_the_run_or_nowhere(
    pushed: tuple[Remote, dict[str, Any]], tmp_path: Path, path: str
) -> None:
    there, document = pushed
    document["files"].append({**document["files"][0], "path": path})
    told = refused(there, document, tmp_path / "there")
    assert "damaged or not written by workbench push" in told
    assert told.isprintable()


def test_other_manifests_that_no_push_writes(
    pushed: tuple[Remote, dict[str, Any]], tmp_path: Path
) -> None:
    there, document = pushed
    first = document["files"][0]
    huge = {**first, "bytes": 1 << 40, "pieces": [[first["pieces"][0][0], 1 << 40]]}
    wrong = (
        {**document, "run": "../../evil"},
        {**document, "run": ".queue"},
        {**document, "files": [*document["files"], first]},
        {**document, "files": [huge]},
        {**document, "files": [{**first, "pieces": [["../../x", first["bytes"]]]}]},
        {**document, "files": [{**first, "bytes": -1, "pieces": [[first["pieces"][0][0], -1]]}]},
        {**document, "files": [{**first, "bytes": 1}]},
        {**document, "checkpoints": [{**document["checkpoints"][0], "path": "../../x"}]},
        {**document, "schema": 99},
        {**document, "pushed_at": 10**400},
        {**document, "pushed_at": float("nan")},
        {**document, "checkpoints": [{**document["checkpoints"][0], "saved_at": float("inf")}]},
        b"[]",
        b"{",
        b"[" * 100_000,
    )
    for one in wrong:
        assert "push" in refused(there, copy.deepcopy(one), tmp_path / "there")


def test_a_record_of_elsewhere_starts_nothing_until_it_is_adopted(
    pushed: tuple[Remote, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, _ = pushed
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another-key"))
    paths = RunPaths(pull(there.url, Store(tmp_path / "there")).directory)
    with pytest.raises(ForeignRunError, match="workbench adopt gpt-2"):
        startable_record(paths)
    assert not (read_json(paths.run) or {}).get("vouched")
    state = read_json(paths.state) or {}
    held = [state.get(name) for name in ("supervisor", "watcher", "launcher", "ranks")]
    assert not any(held), "no process here is taken for its"


def test_what_was_changed_there_loses_the_users_own_seal(made: RunPaths, tmp_path: Path) -> None:
    from workbench.launching.prepare.acceptance import accept

    url = f"memory://{uuid.uuid4().hex}"
    accept(made)
    push(made, url)
    there = Remote(f"{url}/gpt-2")
    same = RunPaths(pull(there.url, Store(tmp_path / "same")).directory)
    assert startable_record(same).marker == "made-gpt-2", "the user's own, as it was pushed"
    document = json.loads(there.read("manifest.json", 1 << 20))
    document["files"] = [one for one in document["files"] if not one["path"].startswith("logs/")]
    there.write("manifest.json", json.dumps(document).encode())
    with pytest.raises(ForeignRunError, match="workbench adopt"):
        startable_record(RunPaths(pull(there.url, Store(tmp_path / "changed")).directory))


def test_links_in_a_run_are_not_sent(made: RunPaths, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("private")
    (made.logs / "rank-1.log").symlink_to(secret)
    (save(made, 30) / "more").symlink_to(secret)
    (made.directory / "away").symlink_to(tmp_path)
    push(made, str(tmp_path / "volume"))
    pieces = (tmp_path / "volume" / "gpt-2" / "pieces").iterdir()
    assert not [path for path in pieces if b"private" in path.read_bytes()]

"""`export-model --push` against a hub of our own over HTTP: huggingface_hub itself is unchanged."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, command  # noqa: F401  (a fixture)
from tests.trained_model.hub_server import TOKEN, Hub, Repository
from tests.trained_model.made import exported_run
from workbench.errors import HostError, UsageError, WorkbenchError
from workbench.store.layout import RunPaths
from workbench.trained_model.export import export_model
from workbench.trained_model.exported import ModelExport
from workbench.trained_model.hub import HubPush
from workbench.trained_model.pushing import push_model

pytestmark = pytest.mark.slow
NAME = "ann/model"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")  # files go by git-lfs's protocol
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with Hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        yield made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """A run whose model is exported once, into a folder that tests take copies of."""
    folder = tmp_path_factory.mktemp("made")
    paths = RunPaths(exported_run(folder))
    export_model(paths, ModelExport(to=str(folder / "model")))
    return paths


def pushed(run: RunPaths, folder: Path, name: str = NAME, **how: Any) -> Any:
    target = folder / "model"
    if not target.exists():
        shutil.copytree(run.directory.parent.parent / "model", target)
    return push_model(run, HubPush(push=name, **how), ModelExport(to=str(target)))


def test_it_arrives_whole_private_and_in_one_commit(
    hub: Hub, run: RunPaths, tmp_path: Path
) -> None:
    _, plan = pushed(run, tmp_path, dry_run=True)
    assert plan.commit is None
    assert not hub.repositories
    assert {one.state for one in plan.files} == {"new"}
    assert plan.license == "unknown"
    card = tmp_path / "model" / "README.md"
    card.write_text(card.read_text().replace("license: unknown", "license: mit"))
    exported, done = pushed(run, tmp_path)  # the folder as it is, its card with it
    there = hub.repositories[NAME]
    assert there.private
    assert there.commits[1:] == [done.commit]
    sent = {one.path: one.bytes for one in done.files}
    assert {name: len(content) for name, content in there.files.items()} == {
        ".gitattributes": 6,
        **sent,
    }
    for name in set(sent) - {"README.md"}:
        assert there.files[name] == (exported.path / name).read_bytes()
    assert b"license: mit" in there.files["README.md"]
    assert done.license == "mit"
    everything = "".join(
        one.read_text(errors="replace") for one in tmp_path.rglob("*") if one.is_file()
    )
    assert "hf_WWW" not in everything + json.dumps(done.document())
    receipt = (tmp_path / "model" / ".workbench-export.json").read_text()
    assert str(run.directory.parent) not in receipt


@pytest.mark.full
def test_what_exists_is_replaced_only_when_asked(hub: Hub, run: RunPaths, tmp_path: Path) -> None:
    pushed(run, tmp_path)
    there = hub.repositories[NAME]
    there.files |= {"config.json": b"{}", "notes.txt": b"mine"}
    with pytest.raises(UsageError) as refused:
        pushed(run, tmp_path)
    text = str(refused.value)
    assert re.search(r"would replace config\.json \(.* B\) and leave 1 others", text)
    assert "add --yes" in text
    assert there.files["config.json"] == b"{}"
    hub.requests.clear()
    _, done = pushed(run, tmp_path, yes=True)
    states = {one.path: one.state for one in done.files}
    assert states.pop("config.json") == "replaced"
    assert set(states.values()) == {"same"}
    assert done.stays == ("notes.txt",)
    assert there.files["notes.txt"] == b"mine"
    assert there.files["config.json"] != b"{}"
    assert not [one for one in hub.requests if "/stored/" in one]  # weights are not sent again


@pytest.mark.full
def test_a_failed_upload_goes_on_where_it_was(hub: Hub, run: RunPaths, tmp_path: Path) -> None:
    hub.refuse = {"commit": (503, "maintenance")}
    with pytest.raises(HostError, match=r"The hub fails \(503\)\. maintenance\. Next: the same"):
        pushed(run, tmp_path)
    hub.refuse, hub.requests = {}, []
    _, done = pushed(run, tmp_path)
    assert done.commit == hub.repositories[NAME].commits[-1]
    assert not [one for one in hub.requests if "/stored/" in one]


@pytest.mark.full
def test_of_an_organisation_and_public(hub: Hub, run: RunPaths, tmp_path: Path) -> None:
    _, done = pushed(run, tmp_path, "lab/model", public=True)
    assert done.public
    assert not hub.repositories["lab/model"].private
    with pytest.raises(UsageError, match="is public: everybody could read"):
        pushed(run, tmp_path, "lab/model", yes=True)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bad token": ({"token": "hf_" + "x" * 34}, r"refuses the token.*\(401\).*hf auth login with"),
    "no token": ({"token": None}, r"No token .* Next: hf auth login, or set HF_TOKEN"),
    "read token": ({"role": "read"}, r"of ann may only read\. Next: a token of .* may write"),
    "forbidden": (
        {"refuse": {"create": (403, "no create rights")}},
        r"may not write to ann/model \(403\)\. no create rights\. Next: a token",
    ),
    "taken": (
        {"name": "bob/model"},
        r"bob/model exists and is not yours: it is of bob.*Next: --push ann/model",
    ),
    "foreign": (
        {"name": "eve/model"},
        r"eve/model cannot be made: it is of eve.*Next: --push ann/model",
    ),
    "full hub": (
        {"refuse": {"batch": (403, "Private repository storage limit reached")}},
        r"no room for ann/model \(403\).*--dtype bf16",
    ),
    "offline": ({"environment": {"HF_HUB_OFFLINE": "1"}}, r"HF_HUB_OFFLINE is set"),
    "no network": ({"dead": True}, r"cannot be reached \(Connect\w+\)\. Next: look at the network"),
    "bad card": ({"card": "license: ["}, r'refuses the card: .*"license" must be a string'),
    "changed": ({"changed": True}, r"has changed since it was looked at \(412\)"),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(one, marks=() if one in {"bad token", "taken"} else pytest.mark.full)
        for one in REFUSED
    ],
)
def test_each_refusal_is_one_sentence_and_what_to_do(
    hub: Hub, run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    how, expected = REFUSED[case]
    hub.repositories["bob/model"] = Repository(private=False)
    hub.refuse, hub.role = how.get("refuse", {}), how.get("role", "write")
    for name, value in how.get("environment", {}).items():
        monkeypatch.setenv(name, value)
    if "token" in how:
        monkeypatch.delenv("HF_TOKEN")
        if how["token"]:
            monkeypatch.setenv("HF_TOKEN", how["token"])
    if "card" in how:
        pushed(run, tmp_path, dry_run=True)
        card = tmp_path / "model" / "README.md"
        card.write_text(card.read_text().replace("license:", how["card"]))
    if "changed" in how:
        hub.repositories[NAME] = Repository()
        hub.refuse = {"commit": (412, "A commit has happened since")}
    if "dead" in how:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(WorkbenchError, match=expected) as raised:
        pushed(run, tmp_path, how.get("name", NAME))
    assert "\n" not in str(raised.value)
    assert TOKEN not in str(raised.value)
    assert len(hub.repositories.get(NAME, Repository()).files) <= 1


@pytest.mark.full
def test_the_command_shows_and_pushes(
    hub: Hub,
    run: RunPaths,
    tmp_path: Path,
    command: Command,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN")  # the login's file instead
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text(TOKEN)
    monkeypatch.chdir(tmp_path)
    words = ("export-model", run.directory.name, "--store", str(run.directory.parent))
    shown = command(*words, "--push", NAME, "--dry-run").out
    assert f"would be uploaded to {hub.url}/{NAME} as ann" in shown
    assert "repository: new, private; license: unknown" in shown
    assert re.search(r"new +\d[\d.]* KiB  model\.safetensors", shown)
    assert "Next: the same command without --dry-run" in shown
    document = json.loads(command(*words, "--push", NAME, "--json").out)
    assert document["push"]["commit"] == hub.repositories[NAME].commits[-1]
    assert document["push"]["public"] is False
    assert TOKEN not in json.dumps(document)
    assert Path(document["path"]).name == "a-step-2"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"push": "model"}, "give OWNER/NAME"),
        ({"push": "../x"}, "give OWNER/NAME"),
        ({"public": True}, "--public is of a push"),
        ({"dry_run": True}, "--dry-run is of a push"),
    ],
)
def test_options_that_do_not_belong_together(how: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        HubPush(**how)

"""Targets: what is accepted, what is kept and how it is shown."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workbench.cli.entry import app
from workbench.errors import StoreError, UnknownNameError, UsageError
from workbench.notifying import (
    Target,
    chosen,
    delivery,
    read_targets,
    targets,
    write_targets,
)
from workbench.notifying.targets import changing_targets, targets_path

pytest.importorskip("apprise")
SLACK = "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def command(*words: str, given: str | None = None) -> str:
    done = CliRunner().invoke(app, ["notify", *words], input=given, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        (SLACK, SLACK),
        ("https://discord.com/api/webhooks/4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js", None),
        ("https://ntfy.sh/a-topic", None),
        ("mailtos://user:password@example.com", None),
        ("https://example.com/hook?team=a", "jsons://example.com/hook?team=a"),
        ("http://localhost:8080/x", "json://localhost:8080/x"),
    ],
)
def test_addresses_that_people_copy_are_understood(url: str, kept: str | None) -> None:
    assert delivery.understood(url) == (kept or url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://chat.example.com/hooks/SECRETTOKEN", "jsons://chat.example.com/ho.../SE..."),
        ("https://user:SECRET@example.com:8443/SECRET", "jsons://user:****@example.com:8443/SE..."),
        ("xml://example.com/SECRET?a=SECRET", "xml://example.com/SE..."),
        ("forms://example.com", "forms://example.com"),
        ("https://ntfy.sh/SECRET-topic", "ntfys://SE..."),
        ("ntfys://ntfy.example.com/SECRET/SECRETS", "ntfys://ntfy.example.com/SE.../SE..."),
        (
            "mailtos://user:SECRET@gmail.com?to=me@gmail.com",
            "mailtos://user:****@gmail.com/me%40gmail.com",
        ),
    ],
)
def test_a_secret_in_the_path_is_not_shown(url: str, shown: str) -> None:
    assert delivery.masked_address(delivery.understood(url)).rstrip("/") == shown


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://example.com/x", "slack://"])
def test_others_are_refused_with_the_forms_that_work(url: str) -> None:
    with pytest.raises(UsageError, match=r"ntfy\.sh/TOPIC"):
        delivery.understood(url)


def test_of_targets_added_at_once_none_is_lost() -> None:
    def add(number: int) -> None:
        with changing_targets() as known:
            known[f"target-{number}"] = Target(name=f"target-{number}", url=SLACK)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert len(read_targets()) == 24


def test_added_listed_changed_and_removed(home: Path) -> None:
    assert "Added team" in command("add", "team", SLACK)
    assert "Added phone" in command("add", "phone", given="https://ntfy.sh/topic\n")
    assert "Changed phone" in command("add", "phone", "https://ntfy.sh/other", "--findings", "none")
    assert stat.S_IMODE(targets_path().stat().st_mode) == 0o600
    rows = json.loads(command("list", "--json"))
    assert [(one["name"], one["findings"]) for one in rows] == [
        ("team", "warning"),
        ("phone", "none"),
    ]
    for shown in (command("list"), json.dumps(rows)):
        assert "TIiajkdnlazkcOXrIdevi7FQ" not in shown
    command("remove", "team")
    assert list(read_targets()) == ["phone"]


@pytest.mark.parametrize(
    "url",
    [
        SLACK,
        "https://discord.com/api/webhooks/4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
        "mailtos://user:9f8A7c6B5d4e@example.com?to=me@example.com",
        "jsons://example.com/hook?token=9f8A7c6B5d4e3F2a1b0c",
    ],
)
def test_an_address_is_kept_with_its_secret(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is written hides it; messages need it."""
    monkeypatch.setenv("HOOK_TOKEN", url)
    command("add", "team", url)
    assert read_targets()["team"].url == url
    assert "not understood" not in command("list")


def test_an_unknown_severity_is_refused_with_the_known_ones() -> None:
    done = CliRunner().invoke(app, ["notify", "add", "a", SLACK, "--findings", "warnin"])
    assert str(done.exception).startswith("Unknown severity 'warnin'. Did you mean warning")


@pytest.mark.parametrize("name", ["", "all", "none", "a b", "a,b", "-x", "x" * 41])
def test_names_that_could_not_be_told_apart_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a name"):
        Target(name=name, url=SLACK)


def test_a_file_that_others_can_read_is_refused() -> None:
    path = write_targets({"team": Target(name="team", url=SLACK)})
    path.chmod(0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        read_targets()


def test_a_damaged_file_is_said() -> None:
    path = write_targets({})
    path.write_text("{")
    with pytest.raises(StoreError, match="workbench notify add"):
        read_targets()


def test_what_a_launch_may_name() -> None:
    assert chosen(["all"]) == []
    with pytest.raises(UsageError, match="workbench notify add phone URL"):
        chosen(["phone"])
    write_targets({name: Target(name=name, url=SLACK) for name in ("phone", "team")})
    assert chosen(["all"]) == ["phone", "team"]
    assert chosen(["team", "team"]) == ["team"]
    assert chosen(["none"]) == chosen([]) == []
    with pytest.raises(UsageError, match="Did you mean phone"):
        chosen(["phon"])
    with pytest.raises(UsageError, match="stands alone"):
        chosen(["phone", "all"])


def test_a_first_target_is_asked_for_where_there_is_none() -> None:
    done = CliRunner().invoke(app, ["notify", "test", "phone"])
    assert isinstance(done.exception, UnknownNameError)
    assert "workbench notify add phone URL" in str(done.exception)


def test_the_help_has_the_look_of_the_other_commands() -> None:
    assert "completion" not in command("--help")


@pytest.mark.parametrize("words", [("test", "team"), ("list",), ("add", "other", SLACK)])
def test_without_apprise_each_command_says_what_to_install(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    command("add", "team", SLACK)
    monkeypatch.setattr(targets, "find_spec", lambda module: None)
    done = CliRunner().invoke(app, ["notify", *words])
    assert isinstance(done.exception, UsageError)
    assert "-m pip install apprise" in str(done.exception)
